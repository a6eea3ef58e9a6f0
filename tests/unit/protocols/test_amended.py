"""A policy that waits for the end of a long step is amended by what was desired later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeagent.planner.standard import StandardPlanner
from protocols import limits
from protocols.cluster.view import edge
from protocols.scheduler.agenda import MOST_MADE, Switch
from protocols.scheduler.negotiator import Negotiator
from protocols.wire import messages as m
from tests.unit.protocols.records import member, node, star_policy

if TYPE_CHECKING:
    from protocols.cluster.policy import Policy
    from protocols.wire.messages import Letter

COUNT = 5
ALL = [node(k) for k in range(1, COUNT + 1)]
ONE, TWO, THREE, FOUR, FIVE = ALL
LATER = limits.AMEND_SECONDS


class Room:
    """A scheduler of five members whose users want fewer links."""

    def __init__(self) -> None:
        self.scheduler = Negotiator(ONE, 1, star_policy(COUNT), 4, StandardPlanner())
        for policy in self.ticks(0.0):  # what the planner makes of the star
            self.scheduler.in_force(0.0, policy)
        assert self.ticks(0.0) == []
        self.before = self.scheduler.policy

    def ticks(self, now: float) -> list[Policy]:
        """Return the policies that members are to store."""
        return list(dict.fromkeys(bodies(self.scheduler.tick(now))))

    def stores(self, policy: Policy, *nodes: bytes) -> None:
        """These have stored `policy`."""
        for sender in nodes:
            self.scheduler.stored(sender, policy.key)

    def parts(self, a: bytes, b: bytes) -> None:
        """The user of `a` wants no link to `b`."""
        assert self.scheduler.link_wish(a, b, wanted=False) == []

    def first(self) -> Policy:
        """Have one link less in the next policy, which is returned."""
        self.parts(TWO, THREE)
        (policy,) = self.ticks(0.0)
        return policy


def bodies(mail: list[Letter]) -> list[Policy]:
    return [x.policy for _, x in mail if isinstance(x, m.PolicyBody)]


def test_what_is_desired_since_then_is_in_the_policy_that_comes_into_force() -> None:
    room = Room()
    first = room.first()
    room.stores(first, TWO, THREE)
    room.parts(FOUR, FIVE)
    assert room.ticks(LATER / 2) == [], "the step may end at any moment"
    assert room.scheduler.deadline == LATER
    (second,) = [p for p in room.ticks(LATER) if p != first]
    assert second.view.apart == (edge(TWO, THREE), edge(FOUR, FIVE))
    assert second.key > first.key
    room.stores(second, TWO, THREE)
    assert room.scheduler.offer() == second.key
    room.scheduler.in_force(10.0, second)
    assert room.ticks(10.0) == [], "nothing else is desired"


def test_the_first_one_is_offered_if_not_enough_have_stored_the_second() -> None:
    room = Room()
    first = room.first()
    room.stores(first, TWO, THREE)
    room.parts(FOUR, FIVE)
    (second,) = [p for p in room.ticks(LATER) if p != first]
    room.stores(second, TWO)
    room.parts(THREE, FOUR)
    repeated = room.ticks(5.0)
    assert sorted(p.key for p in repeated) == [first.key, second.key], "one is amended at a time"
    assert room.scheduler.offer() == first.key
    room.stores(second, THREE, FOUR)
    assert room.scheduler.offer() == first.key, "it may be in force at somebody"
    assert set(room.ticks(6.0)) <= {first}
    room.scheduler.in_force(7.0, first)
    (third,) = room.ticks(7.0)
    assert third.key > second.key
    assert set(third.view.apart) > set(second.view.apart)


def test_nothing_is_offered_before_enough_have_stored_it() -> None:
    room = Room()
    first = room.first()
    room.stores(first, TWO)
    assert room.scheduler.offer() == room.before.key
    assert room.scheduler.switch is not None
    assert not room.scheduler.switch.offered


def test_an_offered_policy_is_amended_no_more() -> None:
    room = Room()
    first = room.first()
    room.stores(first, TWO, THREE)
    assert room.scheduler.offer() == first.key
    room.parts(FOUR, FIVE)
    assert set(room.ticks(LATER)) <= {first}
    assert room.scheduler.made == (first,)


def test_few_policies_are_made_until_one_comes_into_force() -> None:
    """A member that is late with the running step must still know the one that does."""
    room = Room()
    policies = [room.first()]
    pairs = [(FOUR, FIVE), (THREE, FOUR), (TWO, FIVE), (TWO, FOUR), (THREE, FIVE)]
    for k, pair in enumerate(pairs, 1):
        room.stores(policies[-1], TWO, THREE)
        room.parts(*pair)
        policies += [p for p in room.ticks(2.0 * k) if p not in policies]
    assert len(policies) == MOST_MADE
    assert room.scheduler.offer() == policies[-1].key
    room.scheduler.in_force(20.0, policies[-1])
    (then,) = room.ticks(20.0)
    assert len(then.view.apart) == 1 + len(pairs)


def test_who_is_lost_is_not_waited_for_when_no_other_policy_may_be_made() -> None:
    room = Room()
    first = room.first()
    agenda = room.scheduler._agenda
    assert agenda.switch is not None
    room.stores(first, TWO, THREE)
    agenda.made = MOST_MADE
    agenda.changed(TWO)
    assert agenda.under_way, "it has to come into force"
    agenda.made = 1
    agenda.changed(TWO)
    assert not agenda.under_way


def test_a_policy_that_lets_nobody_in_stays_when_a_joiner_is_lost() -> None:
    room = Room()
    first = room.first()
    room.stores(first, TWO, THREE)
    agenda = room.scheduler._agenda
    agenda.amended = Switch(star_policy(9))
    agenda.changed(node(9))
    assert room.scheduler.made == (first,)


def test_what_changes_nothing_makes_no_other_policy() -> None:
    room = Room()
    first = room.first()
    room.parts(TWO, THREE)
    assert set(room.ticks(LATER)) <= {first}
    assert room.scheduler.made == (first,)


def test_only_the_policy_that_names_a_joiner_is_withdrawn_with_its_parent() -> None:
    room = Room()
    first = room.first()
    joiner = member(9)
    room.scheduler.joins.request(0.0, m.JoinRequest(joiner, ()))
    (number,) = room.scheduler.joins.open
    for neighbour in ALL:
        room.scheduler.joins.introduced(neighbour, number)
    links = m.LinksOpen(number, (TWO, THREE), (10**7, 10**7))
    room.scheduler.joins.links_open(0.0, joiner.node, links)
    (second,) = [p for p in room.ticks(limits.MOST_BATCH_SECONDS) if p != first]
    assert [pull.joiner for pull in second.pulls] == [joiner]
    assert room.scheduler.joins.link_lost(TWO, joiner.node) == [], "another one forwards the rounds"
    assert room.scheduler.made == (first,)
    (third,) = [p for p in room.ticks(limits.MOST_BATCH_SECONDS) if p != first]
    assert [pull.parent for pull in third.pulls] == [THREE]
