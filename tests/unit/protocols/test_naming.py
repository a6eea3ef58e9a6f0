"""A policy that becomes ready while a round runs comes into force when that round is over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from edgeagent.planner.standard import StandardPlanner
from protocols import events
from protocols.effects import HoldWord, NamePolicy
from protocols.member.cycle_table import CycleState
from protocols.member.naming import Naming
from protocols.scheduler.join import Join, JoinState
from protocols.scheduler.negotiator import Negotiator
from protocols.wire import messages as m
from tests.unit.protocols.clusters import cluster, node_of, policy_of
from tests.unit.protocols.records import member, node, star_policy

if TYPE_CHECKING:
    from protocols.cluster.policy import Policy

COUNT = 4
ONE, TWO, THREE, FOUR = (node(k) for k in range(1, COUNT + 1))
RUNNING, OTHER = b"a" * 32, b"b" * 32  # attempts
AT = 7  # the running iteration


class Room:
    """One node of a star around ONE, which is the root of the control word's tree."""

    def __init__(self, me: bytes, negotiator: Negotiator | None = None) -> None:
        policy = star_policy(COUNT)
        self.done: list[object] = []
        self.sent: list[tuple[bytes, object]] = []
        self.context: Any = SimpleNamespace(
            node=me,
            now=0.0,
            is_member=True,
            iteration=AT,
            policy=policy,
            policies={policy.key: policy, (1, 2): policy},
            freeze=SimpleNamespace(holds=False),
            election=SimpleNamespace(scheduler=TWO),
            do=self.done.append,
        )
        self.cycle: Any = SimpleNamespace(
            state=CycleState.REDUCING, attempt_ids=(RUNNING, bytes(32)), is_finishing=False
        )
        mail = SimpleNamespace(post=lambda to, message: self.sent.append((to, message)))
        parts: tuple[Any, ...] = (self.context, mail, SimpleNamespace(negotiator=negotiator))
        self.naming = Naming(*parts)

    def told(
        self, iteration: int = AT, attempt: bytes = RUNNING, version: int = 2, *, ready: bool = True
    ) -> None:
        """The scheduler says that a policy is to come."""
        self.naming.told(TWO, m.PolicyComing(1, version, iteration, attempt, ready))

    def looks(self) -> list[object]:
        """Return what is done when the node looks again."""
        self.done.clear()
        self.naming.look(self.cycle)
        return list(self.done)


def test_the_root_names_what_the_scheduler_says_is_ready() -> None:
    room = Room(ONE)
    room.told()
    assert room.looks() == [NamePolicy((1, 2))]
    assert room.looks() == [], "once is enough"
    assert room.naming.offered() == star_policy(COUNT).key, "its own word is another matter"


def test_the_root_holds_the_word_back_for_a_policy_that_is_not_ready() -> None:
    room = Room(ONE)
    room.told(version=9, ready=False)
    assert room.looks() == [HoldWord()], "it need not have its body yet"
    room.told()
    assert room.looks() == [NamePolicy((1, 2))]


def test_it_believes_nobody_else() -> None:
    room = Room(ONE)
    room.naming.told(THREE, m.PolicyComing(1, 2, AT, RUNNING, True))
    assert room.looks() == []


def test_it_is_only_for_the_attempt_that_the_scheduler_runs() -> None:
    room = Room(ONE)
    room.told(attempt=OTHER)
    assert room.looks() == []
    room.cycle.attempt_ids = (OTHER, RUNNING)  # which the root begins now
    assert room.looks() == [NamePolicy((1, 2))]


def test_it_is_of_no_use_after_that_iteration() -> None:
    room = Room(ONE)
    room.cycle.state = CycleState.APPLYING
    room.told()
    assert room.looks() == []
    room.context.iteration += 1
    room.cycle.state = CycleState.COMPUTING
    assert room.looks() == []
    room.context.iteration -= 1
    assert room.looks() == [], "it is forgotten"


def test_the_root_needs_the_body() -> None:
    room = Room(ONE)
    room.told(version=3)
    assert room.looks() == []
    room.context.policies[1, 3] = room.context.policy
    assert room.looks() == [NamePolicy((1, 3))]


def test_messages_may_overtake_each_other() -> None:
    room = Room(ONE)
    room.told()
    room.told(ready=False)
    assert room.looks() == [NamePolicy((1, 2))]
    room.told(ready=False)
    room.told(version=1, ready=False)
    assert room.looks() == [], "the word need not wait for what it names"
    room.told()
    assert room.looks() == [], "once is enough"


def test_a_round_that_a_fence_has_finished_is_left_alone() -> None:
    room = Room(ONE)
    room.cycle.is_finishing = True
    room.told()
    assert room.looks() == []


def test_a_root_that_has_not_begun_the_round_names_it_then() -> None:
    room = Room(ONE)
    room.told(iteration=AT + 1, attempt=OTHER)
    assert room.looks() == []
    room.context.iteration, room.cycle.attempt_ids = AT + 1, (OTHER, RUNNING)
    room.cycle.state = CycleState.COMPUTING
    assert room.looks() == [NamePolicy((1, 2))]


def test_nothing_is_named_while_a_fence_is_open() -> None:
    room = Room(ONE)
    room.told()
    room.context.freeze.holds = True
    assert room.looks() == []


def wanted(scheduler: bytes) -> tuple[Negotiator, Policy]:
    """Return a negotiator whose members want to leave, and the policy by which FOUR does."""
    negotiator = Negotiator(scheduler, 1, star_policy(COUNT), 4, StandardPlanner())
    for policy in made(negotiator):  # what the planner makes of the star
        negotiator.in_force(0.0, policy)
    negotiator.leave_request(FOUR)
    (policy,) = made(negotiator)
    return negotiator, policy


def made(negotiator: Negotiator) -> list[Policy]:
    mail = negotiator.tick(0.0)
    return list(dict.fromkeys(x.policy for _, x in mail if isinstance(x, m.PolicyBody)))


def test_the_scheduler_has_the_root_name_what_becomes_ready() -> None:
    negotiator, policy = wanted(TWO)
    room = Room(TWO, negotiator)
    about = (*policy.key, AT, RUNNING)
    room.cycle.state = CycleState.COMPUTING
    room.looks()
    assert room.sent == [], "its own word may name it"
    room.cycle.state = CycleState.REDUCING
    assert room.looks() == room.looks() == []
    assert room.sent == [(ONE, m.PolicyComing(*about, False))], "it is told once"
    for sender in (ONE, THREE):
        negotiator.stored(sender, policy.key)
    room.sent.clear()
    assert room.looks() == room.looks() == []
    assert room.sent == [(ONE, m.PolicyComing(*about, True))]
    assert negotiator.switch is not None
    assert negotiator.switch.offered


def test_a_scheduler_that_is_the_root_names_it_itself() -> None:
    negotiator, policy = wanted(ONE)
    room = Room(ONE, negotiator)
    assert room.looks() == [HoldWord()]
    assert room.looks() == []
    for sender in (TWO, THREE):
        negotiator.stored(sender, policy.key)
    assert room.looks() == [NamePolicy(policy.key)]
    assert room.sent == []


def expected() -> Join:
    """Return a joiner that is sent the last updates since this moment."""
    return Join(5, member(9), (ONE,), 0.0, JoinState.PULLING, copied=True, due_at=0.0)


def test_the_word_waits_for_a_joiner_that_is_expected_to_ask() -> None:
    negotiator = Negotiator(TWO, 1, star_policy(COUNT), 4, StandardPlanner())
    for policy in made(negotiator):
        negotiator.in_force(0.0, policy)
    room, key = Room(TWO, negotiator), negotiator.policy.key
    room.cycle.state = CycleState.COMPUTING
    room.looks()
    assert room.sent == []
    join = negotiator.joins.open[5] = expected()
    room.looks()
    room.cycle.state = CycleState.REDUCING
    room.looks()
    assert room.sent == [(ONE, m.PolicyComing(*key, AT, RUNNING, False))], "it is told once"
    room.cycle.state = CycleState.APPLYING
    room.cycle.attempt_ids = (OTHER, RUNNING)
    room.looks()
    assert len(room.sent) == 1
    room.cycle.state = CycleState.COMPUTING
    join.copied = False
    room.looks()
    assert len(room.sent) == 1


def test_it_waits_no_longer_once_the_schedulers_own_word_names_a_policy() -> None:
    negotiator, policy = wanted(TWO)
    room, about = Room(TWO, negotiator), (AT, RUNNING)
    room.cycle.state = CycleState.COMPUTING
    negotiator.joins.open[5] = expected()
    assert negotiator.switch is not None
    negotiator.switch.amend_at = 5.0  # so another one could still be made in its place
    room.naming._await(negotiator.policy.key, room.cycle)
    for sender in (ONE, THREE):
        negotiator.stored(sender, policy.key)
    assert room.naming.offered() == policy.key
    room.cycle.state = CycleState.REDUCING
    assert room.looks() == room.looks() == []
    last = m.PolicyComing(*policy.key, *about, True)
    assert [message for _, message in room.sent[1:]] == [last], "it is told once"
    room.context.iteration += 1
    room.looks()
    assert negotiator.switch.offered, "its own word named it, so that was in time"


def test_the_word_does_not_wait_once_a_policy_is_offered() -> None:
    negotiator, policy = wanted(TWO)
    for sender in (ONE, THREE):
        negotiator.stored(sender, policy.key)
    negotiator.joins.open[5] = expected()
    assert negotiator.expects(0.0)
    negotiator.hold_back(True)
    assert not negotiator.expects(0.0)
    negotiator.hold_back(False)
    negotiator.offer()
    assert not negotiator.expects(0.0)


def test_what_was_named_too_late_may_be_amended_again() -> None:
    negotiator, policy = wanted(ONE)
    for sender in (TWO, THREE):
        negotiator.stored(sender, policy.key)
    room = Room(ONE, negotiator)
    room.looks()
    room.context.iteration += 1
    room.cycle.state = CycleState.COMPUTING
    room.looks()
    assert negotiator.switch is not None
    assert not negotiator.switch.offered
    assert room.naming.offered() == policy.key
    room.looks()
    assert negotiator.switch.offered, "this node's own word has it by now"


def test_another_plan_can_wait() -> None:
    negotiator = Negotiator(ONE, 1, star_policy(COUNT), 4, StandardPlanner())
    (policy,) = made(negotiator)  # another tree than the star
    for sender in (TWO, THREE):
        negotiator.stored(sender, policy.key)
    room = Room(ONE, negotiator)
    assert negotiator.switch is not None
    assert negotiator.switch.ready
    assert policy.view == star_policy(COUNT).view
    assert room.looks() == []


@pytest.mark.parametrize("seed", range(4))
def test_a_member_that_wants_to_leave_goes_with_the_running_round(seed: int) -> None:
    world, hosts = cluster(seed, 4)
    slow, leaver = hosts[-1], hosts[-2]
    scheduler = hosts[0]
    negotiator = node_of(scheduler).negotiator
    assert negotiator is not None
    begun = CycleState.COMPUTING
    world.run(
        lambda: all(node_of(h).cycle.state is begun for h in hosts) and negotiator.switch is None
    )
    slow.hang(4.0)
    world.run(lambda: node_of(scheduler).cycle.state is CycleState.REDUCING)
    at = node_of(scheduler).context.iteration
    leaver.handle(events.LeaveWanted())
    world.run(lambda: leaver.me.node not in policy_of(scheduler).view.nodes)
    assert node_of(scheduler).context.iteration == at + 1
    world.run(lambda: leaver.gone is not None)
    assert leaver.gone == "left"
