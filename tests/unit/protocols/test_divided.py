"""Clusters in which no member keeps all of the optimizer's state: nothing of it is lost."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from protocols import effects, events, limits
from protocols.cluster.stripes import OnLost, held_by
from protocols.errors import LocalProtocolError, RemoteProtocolError
from protocols.member.cycle_table import CycleState
from protocols.network.link_end import LinkEnd
from protocols.recovery.missing_parts import MissingParts
from protocols.rounds.control_word import EMPTY
from protocols.rounds.round import Decided, KeepSum, Lane, Round, RoundSpec, SendSum
from protocols.scheduler.fence import Lost
from protocols.wire import messages as m
from tests.simulation.world import World
from tests.unit.protocols.clusters import cluster, enter, node_of, settle
from tests.unit.protocols.divided_clusters import STRIPES, divided, ends, is_level, policy_of
from tests.unit.protocols.records import LINEAGE, node
from tests.unit.protocols.test_recovery import decision, without
from tests.variants import variants

if TYPE_CHECKING:
    from protocols.cluster.policy import Policy
    from protocols.member.context import Context
    from tests.simulation.host import Host


@pytest.mark.parametrize(("size", "copies"), [(2, 0), (3, 1), (4, 2), (2, 3)])
def test_members_hold_equally_much(size: int, copies: int) -> None:
    world, hosts = divided(size, size, copies)
    policy, at = policy_of(hosts[0]), max(h.iteration for h in hosts)
    world.run(lambda: all(h.iteration > at + 1 for h in hosts))  # what is given up is freed then
    held = [len(held_by(policy.stripes, k)) for k in range(size)]
    assert max(held) - min(held) <= 1
    assert sum(held) == STRIPES * min(size, copies + 1)
    for host in hosts:
        mine = held_by(policy.stripes, policy.view.nodes.index(host.me.node))
        assert len(host.slots.here) == len(mine)
    ends(world)


MOMENTS = variants(range(0, 240, 12), range(240))


@pytest.mark.parametrize("moment", MOMENTS)
def test_one_is_killed_at_any_moment(moment: int) -> None:
    world, hosts = divided(1, 4, 1, steps=50)
    dead = hosts[moment % 4]
    world.before(moment + 1, lambda: world.kill(dead))
    ends(world, dead)


@pytest.mark.parametrize("moment", variants(range(5, 240, 48), range(240)))
def test_two_are_killed_at_once(moment: int) -> None:
    world, hosts = divided(2, 4, 2, steps=50)
    dead = [hosts[moment % 4], hosts[(moment + 1 + moment // 4 % 3) % 4]]
    for host in dead:
        world.before(moment + 1, lambda host=host: world.kill(host))  # type: ignore[misc]
    ends(world, *dead)


@pytest.mark.parametrize("moment", variants(range(0, 200, 40), range(200)))
def test_one_is_killed_while_others_learn(moment: int) -> None:
    world, hosts = divided(3, 3, 1, steps=50)
    hosts.append(world.join(3, hosts[0]))
    enter(world, hosts[-1])
    dead = hosts[moment % 4]
    world.before(moment + 1, lambda: world.kill(dead))
    world.run(lambda: dead.gone is not None)
    world.run(lambda: not world.members or is_level(world, 1))
    ends(world, dead)


def test_who_alone_holds_something_hands_it_over_before_it_leaves() -> None:
    world, hosts = divided(4, 3, 0, steps=200)
    hosts[1].handle(events.LeaveWanted())
    world.run(lambda: hosts[1].gone is not None)
    assert hosts[1].gone == "left"
    ends(world, hosts[1])


def test_the_scheduler_leaves() -> None:
    world, hosts = divided(5, 3, 1, steps=200)
    told = [r.values["survives"] for r in hosts[1].reports if r.event == "copies"]
    assert told[-1] == 1
    hosts[0].handle(events.LeaveWanted())
    world.run(lambda: hosts[0].gone is not None)
    ends(world, hosts[0])


def test_who_is_lost_survives_nothing_any_more() -> None:
    """Until the others have agreed to go on, the policy still names a member that is dead."""
    world, hosts = divided(4, 3, 1, steps=200)
    world.run(lambda: is_level(world, 1))
    policy, nodes = policy_of(hosts[1]), [host.me.node for host in hosts]
    assert MissingParts.survives(policy, Lost()) == 1
    assert MissingParts.survives(policy, Lost(nodes=(nodes[2],))) == 0
    assert MissingParts.survives(policy, Lost(dead=(nodes[2],), out=(nodes[0],))) == 0
    recovery = node_of(hosts[1]).recovery
    assert all(len(nodes) == 2 for nodes in recovery.smallest_losses)
    world.vanish(hosts[2])
    world.run(lambda: all(len(nodes) == 1 for nodes in recovery.smallest_losses))
    assert policy_of(hosts[1]) is policy, "nothing is decided yet"
    lone, (alone, *_) = cluster(4, 3)
    assert node_of(alone).recovery.smallest_losses == ()
    assert lone.members


def test_all_leave() -> None:
    world, hosts = divided(6, 2, 0, steps=5000)
    for host in hosts:
        host.handle(events.LeaveWanted())
    world.run(lambda: all(h.gone for h in hosts))
    assert [h.gone for h in hosts] == ["left", "left"]


def test_copies_publish_for_an_owner_whose_trainer_hangs() -> None:
    world, hosts = divided(7, 3, 1, steps=400)
    world.run(lambda: node_of(hosts[1]).cycle.state is CycleState.PUBLISHING)
    hosts[1].hang(500.0)
    world.run(lambda: hosts[1].gone is not None)
    assert hosts[1].gone == "stalled"
    ends(world, hosts[1])


def measure(world: World) -> None:
    """Have all members measure themselves twice a second from now on, as shells do."""
    for host in world.members:
        host.handle(events.Measured((), None, None, None))
    world.later(0.5, lambda: measure(world))


def two_publish(seed: int) -> tuple[World, list[Host], list[Host]]:
    """Return a world, its members, and two that alone keep some stripe, while all wait for the
    results of both."""
    world, hosts = divided(seed, 4, 1, steps=400)
    policy, nodes = policy_of(hosts[0]), [h.me.node for h in hosts]
    two = [hosts[nodes.index(policy.view.nodes[k])] for k in policy.stripes[0].holders]
    states = [node_of(host).cycle for host in two]
    world.run(lambda: all(cycle.state is CycleState.PUBLISHING for cycle in states))
    return world, hosts, two


def hang_at_once(seed: int) -> tuple[World, list[Host], list[Host]]:
    """The same, and the trainers of both hang for a minute."""
    world, hosts, two = two_publish(seed)
    for host in two:
        host.hang(60.0)
    measure(world)
    return world, hosts, two


@pytest.mark.parametrize("seed", range(4))
def test_of_two_owners_that_hang_at_once_one_goes_before_the_other_and_nothing_is_lost(
    seed: int,
) -> None:
    """They alone keep a part, so both must not leave in the belief that the other one has it."""
    world, hosts, two = hang_at_once(seed)
    world.run(lambda: all(host.gone is not None or not host.hangs for host in two))
    assert not any(r.event == "parts_missing" for h in hosts for r in h.reports)
    ends(world, *(host for host in two if host.gone))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_who_has_just_left_has_no_copy(order: tuple[int, int]) -> None:
    """A trainer hangs, and just before its node would leave, the link to the only other node that
    has a copy ends, which may have left for the same reason. No fence has begun yet."""
    world, _, two = two_publish(1)
    other, late = (two[k] for k in order)
    late.hang(60.0)
    debt = node_of(late).debt
    world.run(lambda: debt.is_late_publisher)
    ends = partial(world.unlink, other, late, LinkEnd.GOODBYE)
    world.later(limits.PUBLISHERS_TOLD_SECONDS - 1e-5, ends)
    world.run(lambda: debt.is_overdue_publisher)
    assert not node_of(late).context.freeze.holds
    assert late.gone is None


def test_of_two_owners_whose_scripts_are_away_neither_goes() -> None:
    world, hosts = divided(9, 4, 1, steps=400)
    world.run(lambda: is_level(world, 1))
    policy, nodes = policy_of(hosts[0]), [h.me.node for h in hosts]
    two = [hosts[nodes.index(policy.view.nodes[k])] for k in policy.stripes[0].holders]
    for host in two:
        host.handle(events.AwayWanted(away=True))
    since = world.now
    world.run(lambda: world.now > since + 20.0)
    assert [host.gone for host in two].count(None) >= 1
    assert not any(r.event == "parts_missing" for h in hosts for r in h.reports)
    for host in two:
        host.handle(events.AwayWanted(away=False))
    ends(world, *(host for host in two if host.gone))


def test_an_only_owner_whose_trainer_has_ended_leaves_at_once_if_all_wait_for_its_results() -> None:
    world, hosts = divided(8, 3, 0, steps=80, on_lost=OnLost.FRESH)
    world.run(lambda: node_of(hosts[1]).cycle.state is CycleState.PUBLISHING)
    since = world.now
    hosts[1].lose_trainer()
    before = hosts[1].gone  # the agent has not been told to leave yet
    hosts[1].handle(events.LeaveWanted())
    assert (before, hosts[1].gone) == (None, "left")
    ends(world, hosts[1])
    assert world.now - since < limits.LEAVE_SECONDS


def test_all_wait_for_the_only_holder() -> None:
    world, hosts = divided(8, 2, 0, steps=80)
    world.run(lambda: node_of(hosts[1]).cycle.state is CycleState.PUBLISHING)
    before = node_of(hosts[0]).context.iteration
    hosts[1].hang(100.0)
    world.run(lambda: not hosts[1].hangs)
    assert node_of(hosts[0]).context.iteration <= before + 1
    ends(world)


def test_micro_batches_that_are_handed_back_are_computed_before_anybody_publishes() -> None:
    world, hosts = divided(9, 3, 1, steps=40)
    hosts[2].refuses = True
    hosts.append(world.join(3, hosts[0]))  # it follows the rounds meanwhile
    ends(world)


def test_a_member_whose_state_slipped_makes_no_results() -> None:
    world, hosts = divided(10, 3, 1, steps=200)
    hosts[1].slips = True
    world.run(lambda: hosts[1].gone is not None)
    assert hosts[1].gone == "diverged"
    ends(world, hosts[1])


def test_who_differs_and_alone_keeps_a_part_does_not_keep_the_others_waiting() -> None:
    world, hosts = divided(10, 3, 0, steps=200, on_lost=OnLost.FRESH)
    hosts[1].slips = True
    begun = world.now
    world.run(lambda: hosts[1].gone is not None)
    assert hosts[1].gone == "diverged"
    assert world.now < begun + 30.0
    iteration = hosts[0].iteration
    world.run(lambda: hosts[0].iteration > iteration + 5, 90.0)


def test_a_learner_misses_a_lender_that_has_left() -> None:
    """Who holds an update otherwise does not miss a neighbour that leaves."""
    _, hosts = divided(16, 3, 1, steps=400)
    learner, gone = node_of(hosts[2]), hosts[1].me.node
    policy = policy_of(hosts[2])
    later = replace(without(policy, hosts[1]), version=policy.version + 9)
    learner.context.policies[later.key] = later
    del learner.context.links[gone]
    learner.cycle.state = CycleState.HOLDING
    assert gone not in learner.recovery._missing_links
    learner.cycle.learning._wanted = {0: gone}
    assert gone in learner.recovery._missing_links


def test_who_finishes_an_iteration_begins_anew_what_the_policies_before_said() -> None:
    world, hosts = divided(21, 3, 1, steps=400, on_lost=OnLost.FRESH)
    one = node_of(hosts[0])
    world.run(lambda: one.cycle.state is CycleState.REDUCING)
    at, policy = one.context.iteration, policy_of(hosts[0])
    first = replace(policy.stripes[0], anew=at)
    one.context.policy = replace(policy, stripes=(first, *policy.stripes[1:]))
    one.context.freeze.asked()
    last = replace(policy, version=policy.version + 9)
    one.cycle.restart(replace(decision(last, at), applied=True))
    one.context.effects.clear()
    one.cycle._apply(EMPTY)
    [applied] = [e for e in one.context.effects if isinstance(e, effects.Apply)]
    assert applied.anew == (0,)


def test_a_side_that_lacks_a_part_waits_for_the_other() -> None:
    world, hosts = divided(11, 4, 0, steps=400)
    for host in hosts[2:]:
        for other in hosts[:2]:
            world.cut(host, other)
    iteration = max(node_of(h).context.iteration for h in hosts)
    end = world.now + 100.0
    world.later(100.0, lambda: None)
    world.run(lambda: world.now >= end)
    assert all(node_of(h).context.iteration <= iteration + 2 for h in hosts)
    assert all(h.is_member for h in hosts)


def test_one_that_lacks_a_part_and_most_members_does_not_stand_for_election() -> None:
    world, hosts = divided(17, 4, 0, steps=400)
    alone = next(h for h in hosts if not node_of(h).context.election.leads)
    others = [h for h in hosts if h is not alone]
    for other in others:
        world.cut(alone, other)
    end = world.now + 3 * limits.PARTITION_WAIT_SECONDS
    world.later(end - world.now, lambda: None)
    world.run(lambda: world.now >= end)
    assert alone.is_member
    told = [r.values["nodes"] for r in alone.reports if r.event == "parts_missing"]
    assert sorted(told[-1]) == sorted(h.me.name for h in others)
    assert not node_of(alone).context.election.leads


def test_results_wait_until_a_late_trainer_has_caught_up() -> None:
    world, hosts = divided(14, 2, 0, steps=120)
    world.run(lambda: node_of(hosts[1]).cycle.state is CycleState.APPLYING)
    hosts[1].hang(15.0)
    world.run(lambda: not hosts[1].hangs)
    ends(world)


def test_who_is_missing() -> None:
    world, hosts = divided(15, 3, 0, steps=400)
    recovery = node_of(hosts[0]).recovery
    assert not recovery.missing_holders
    world.kill(hosts[2])
    world.run(lambda: bool(recovery.missing_holders))
    assert list(recovery.missing_holders) == [hosts[2].me.node]
    told = [r.values["nodes"] for r in hosts[0].reports if r.event == "parts_missing"]
    assert told == [[hosts[2].me.name]]
    assert not node_of(world.add(9)).recovery.missing_holders
    assert not node_of(World(0).found()).recovery.missing_holders


def test_whom_all_wait_for_is_told_when_it_changes() -> None:
    hosts = divided(18, 3, 0, steps=400)[1]
    context = node_of(hosts[0]).context
    policy, told = policy_of(hosts[0]), [h.me for h in hosts[1:]]
    parts = MissingParts(context)
    context.effects.clear()
    for at, lost in ((1.0, told[:1]), (2.0, told[:1]), (3.0, told), (7.5, []), (8.0, [])):
        parts.tell(at, Lost(tuple(m.node for m in lost)))
    found = [(e.event, e.values) for e in context.effects if isinstance(e, effects.Report)]
    both = sorted((m.name for m in told), key=names(policy).index)
    assert found == [
        ("parts_missing", {"nodes": [told[0].name], "then": "wait"}),
        ("parts_missing", {"nodes": both, "then": "wait"}),
        ("parts_complete", {"seconds": 6.5}),
    ]
    context.effects.clear()


def names(policy: Policy) -> list[str]:
    """Return the names of the members in the order in which they hold stripes first."""
    order = dict.fromkeys(k for stripe in policy.stripes for k in stripe.holders)
    return [policy.view.members[k].name for k in order]


def test_what_a_member_is_about_to_learn() -> None:
    world, hosts = divided(16, 2, 1, steps=400)
    hosts.append(world.join(2, hosts[0]))
    enter(world, hosts[-1])
    learning = node_of(hosts[-1]).cycle.learning
    world.run(lambda: bool(learning.coming))
    assert learning.is_busy
    world.run(lambda: is_level(world, 1))
    assert not learning.coming
    ends(world)


def test_slots_that_no_trainer_steps_any_more_are_lent_to_nobody() -> None:
    world, hosts = divided(16, 2, 1, steps=400)
    hosts.append(world.join(2, hosts[0]))
    enter(world, hosts[-1])
    world.run(lambda: any(node_of(h).cycle.learning.owes for h in hosts))
    lender = next(h for h in hosts if node_of(h).cycle.learning.owes)
    learning, at = node_of(lender).cycle.learning, node_of(lender).context.iteration
    lender.lose_trainer()
    for learner in hosts:
        learning.asked(learner.me.node, m.StripesWanted(at, tuple(range(STRIPES))))
    assert learning.owes
    lender.handle(events.LeaveWanted())
    ends(world, lender)


def test_who_leaves_without_a_trainer_and_owes_slots_goes_at_once() -> None:
    """Nobody else can lend them, and it never will (protocol.md, H70)."""
    world, hosts = divided(16, 2, 0, steps=400, on_lost=OnLost.FRESH)
    hosts.append(world.join(2, hosts[0]))
    enter(world, hosts[-1])
    world.lose = lambda _s, _r, message: isinstance(message, m.StripesWanted)

    def owes(host: Host) -> bool:
        cycle = node_of(host).cycle
        return cycle.state is CycleState.HOLDING and bool(cycle.learning.owes)

    world.run(lambda: any(owes(host) for host in hosts))
    lender = next(host for host in hosts if owes(host))
    lender.lose_trainer()
    begun = world.now
    lender.handle(events.LeaveWanted())
    world.lose = lambda _s, _r, _m: False
    world.run(lambda: lender.gone is not None)
    assert world.now < begun + 1.0
    assert lender.gone == "left"


def test_who_owes_slots_and_is_away_for_long_makes_way_for_those_who_keep_copies() -> None:
    world, hosts = divided(16, 3, 1, steps=400)
    world.run(lambda: is_level(world, 1))
    lender = node_of(hosts[1])
    hosts[1].handle(events.AwayWanted(True))
    me = policy_of(hosts[1]).view.nodes.index(hosts[1].me.node)
    world.run(lambda: all(s.owner != me for s in policy_of(hosts[1]).stripes))
    hosts[1].hang(600.0)
    world.run(lambda: lender.debt.has_old_slots)
    learning = lender.cycle.learning
    world.run(lambda: lender.cycle.state is not CycleState.APPLYING)
    learning._owed, learning._begun_at = {(0, hosts[0].me.node): None}, world.now
    begun = world.now
    assert not learning.owes_long
    world.run(lambda: hosts[1].gone is not None)
    assert hosts[1].gone == "stalled"
    assert begun + limits.TRAINER_LET_GO_SECONDS <= world.now < begun + 40.0


def test_what_was_learned_is_remembered_while_the_policy_changes() -> None:
    world, hosts = divided(19, 2, 1, steps=400)
    hosts.append(world.join(2, hosts[0]))
    enter(world, hosts[-1])
    world.run(lambda: any(s.learners for s in policy_of(hosts[0]).stripes))
    leader = next(h for h in hosts if node_of(h).context.election.leads)
    negotiator, policy = node_of(leader).negotiator, policy_of(leader)
    assert negotiator is not None
    number = next(n for n, s in enumerate(policy.stripes) if s.learners)
    learner = policy.view.nodes[policy.stripes[number].learners[0]]
    negotiator.learned(learner, (number,))
    assert (number, learner) in negotiator._learned
    negotiator.in_force(leader.clock(), policy)  # one that was on its way when it was told
    assert (number, learner) in negotiator._learned
    whole = tuple(replace(s, learners=b"") for s in policy.stripes)
    negotiator.in_force(leader.clock(), replace(policy, stripes=whole))
    assert not negotiator._learned


def test_joins_beside_the_training() -> None:
    world, hosts = cluster(12, 2, 300, stripes=STRIPES, copies=1, beside=True)
    hosts.append(world.join(2, hosts[0]))
    enter(world, hosts[-1])
    settle(world)
    world.run(lambda: is_level(world, 1))
    ends(world)


def test_what_a_learner_asks_for_in_vain() -> None:
    world, hosts = divided(13, 2, 1, steps=400)
    learning, me = node_of(hosts[0]).cycle.learning, hosts[1].me.node
    at = node_of(hosts[0]).context.iteration
    for iteration in (at, at + 1, at + 2):
        learning.asked(me, m.StripesWanted(iteration, (0, 9)))
    assert not learning.owes
    for number in range(limits.MAX_LINKS_PER_NODE + 1):
        learning.asked(node(number), m.StripesWanted(at + 1, (0,)))
    assert len(learning._early) == limits.MAX_LINKS_PER_NODE
    world.run(lambda: node_of(hosts[0]).cycle.state is CycleState.REDUCING)
    hosts[0].handle(events.RoundDecided(node_of(hosts[0]).context.iteration, 7, EMPTY))
    assert node_of(hosts[0]).cycle.state is CycleState.REDUCING
    hosts[0].handle(events.StripeArrived(at, 0))
    hosts[0].handle(events.Published(at, 7))
    hosts[0].handle(events.RoundDecided(at, 7, EMPTY))
    scheduler = node_of(hosts[0]).negotiator
    assert scheduler is not None
    scheduler.learned(b"stranger", (0,))
    scheduler.learned(me, (0, 99))
    ends(world)


# --- the round ------------------------------------------------------------------------------------

A, B = node(1), node(2)


def spec_of(lane: Lane, *, contributes: bool = True, parent: bytes | None = None) -> RoundSpec:
    """Return the round of one held data chunk; the word's tree has `parent`."""
    children = () if parent else (B,)
    where = (parent, children, ())
    return RoundSpec(
        LINEAGE, 1, 2, 3, 4, *where, 2, contributes, lanes=(lane,), turns=(0,), is_held=True
    )


def test_an_owner_keeps_the_sum_and_publishes_once_the_word_is_there() -> None:
    round_ = Round(spec_of(Lane(None, (B,), None, (B,), held=True, sums_to=(B,))))
    with pytest.raises(LocalProtocolError, match="before the round was decided"):
        round_.publish()
    round_.contribute()
    assert round_.owned == (1,)
    effects = round_.up(B, 1)
    assert KeepSum(1) in effects
    assert SendSum(1, (B,)) in effects
    assert Decided() in round_.up(B, 0)
    assert round_.have == b"\1"
    round_.publish()
    assert round_.have == b"\3"
    assert not list(round_.owned)


def test_a_copy_gives_its_word_only_when_it_has_the_sum() -> None:
    lane = Lane(A, (), A, (), held=True, sums_from=A, keeps=True)
    round_ = Round(spec_of(lane, parent=A))
    with pytest.raises(RemoteProtocolError, match="before its parts were sent"):
        round_.sum_down(A, 1)
    sent = round_.contribute()
    assert [type(e).__name__ for e in sent] == ["SendUp"]
    with pytest.raises(RemoteProtocolError, match="before its parts were sent"):
        round_.check_down(A, 0)
    assert round_.owes(A)
    with pytest.raises(RemoteProtocolError, match="does not send it"):
        round_.sum_down(B, 1)
    assert [type(e).__name__ for e in round_.sum_down(A, 1)] == ["KeepSum", "SendUp"]
    with pytest.raises(RemoteProtocolError, match="twice"):
        round_.sum_down(A, 1)


def test_frames_of_a_sum_are_owed_until_they_come() -> None:
    lane = Lane(A, (), B, (), held=True, sums_from=A, keeps=True)
    round_ = Round(spec_of(lane, parent=B))
    round_.contribute()
    assert round_.owes(A)
    round_.sum_down(A, 1)
    assert not round_.owes(A)


def test_a_node_that_only_passes_sums_on_keeps_none() -> None:
    lane = Lane(A, (), A, (), held=True, sums_from=A, sums_to=(B,))
    round_ = Round(spec_of(lane, parent=A))
    round_.contribute()
    assert round_.sum_down(A, 1) == [SendSum(1, (B,))]


@pytest.mark.parametrize("moment", variants(range(0, 40, 5), range(40)))
def test_one_is_killed_while_all_say_farewell(moment: int) -> None:
    world, hosts = divided(19, 3, 1, steps=30)
    world.run(lambda: any(node_of(h).cycle.state is CycleState.FAREWELL for h in hosts))
    dead = hosts[moment % 3]
    world.before(moment + 1, lambda: world.kill(dead))
    world.run(lambda: all(h.gone for h in hosts))
    for host in hosts:
        assert host.gone in ("steps", "killed")
        assert host.state == world.right(30) or host is dead


def test_a_candidate_fetches_what_it_was_refused_for() -> None:
    world, hosts = divided(20, 3, 1, steps=4000)
    one, sender = node_of(hosts[0]), hosts[1].me.node
    context = one.context
    term, version = context.newest_key
    asked = (
        (m.Vote(9, False, term, version), 0),
        (m.Vote(9, True, term, version + 1), 0),
        (m.Vote(9, False, term, version + limits.MAX_VERSION_STEP + 1), 0),
        (m.Vote(9, False, term + limits.MAX_TERM_STEP + 1, version), 0),
        (m.Vote(9, False, term, version + 1), len(context.links)),
    )
    for vote, count in asked:
        context.effects.clear()
        one.succession.take(world.now, sender, vote)
        sent = [e for e in context.effects if isinstance(e, effects.Send)]
        fetches = [e for e in sent if isinstance(e.envelope.message, m.PolicyFetch)]
        assert len(fetches) == count, vote
    del context.links[sender]  # it is asked all the same, over others
    context.effects.clear()
    one.succession.take(world.now, sender, asked[-1][0])
    sent = [e for e in context.effects if isinstance(e, effects.Send)]
    assert len(sent) == len(hosts) - 1
    context.effects.clear()
    one.succession.take(world.now, node(77), asked[-1][0])
    assert not context.effects


def test_a_farewell_round_has_nothing_to_finish() -> None:
    world, hosts = divided(21, 3, 1, steps=30)
    world.run(lambda: any(node_of(h).cycle.state is CycleState.FAREWELL for h in hosts))
    host = next(h for h in hosts if node_of(h).cycle.state is CycleState.FAREWELL)
    one = node_of(host)
    one.context.freeze.asked()
    one.recovery.fenced.frozen(b"\x01")  # the word is here, and so is all of the round
    reports = [x for x in sent(one.context) if isinstance(x, m.FenceReport)]
    reports += [x for x in one.context.inbox if isinstance(x, m.FenceReport)]
    assert [report.have for report in reports] == [b""]


def sent(context: Context) -> list[m.Message]:
    """Return the messages that a node is about to send, which it then does not."""
    found = [e.envelope.message for e in context.effects if isinstance(e, effects.Send)]
    context.effects.clear()
    return found
