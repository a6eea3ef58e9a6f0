"""Which joiners begin to copy together, and which one is put off."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgeagent.planner.standard import StandardPlanner
from protocols import limits
from protocols.cluster.policy import Pull
from protocols.scheduler.join import Join, JoinState
from protocols.scheduler.join_cost import JoinCost, JoinWay
from protocols.scheduler.negotiator import Negotiator
from protocols.scheduler.together import OthersFirst
from protocols.wire import messages as m
from tests.unit.protocols.records import member, node, star_policy

if TYPE_CHECKING:
    from protocols.cluster.view import Member
    from protocols.wire.messages import Letter

MB = 1_000_000
ONE, TWO = node(1), node(2)
COST = JoinCost(20 * MB, 20 * MB, way=JoinWay.PAUSE)


class Room:
    """A scheduler of two members that devices ask to be let in."""

    def __init__(self, cost: JoinCost = COST) -> None:
        self.scheduler = Negotiator(ONE, 1, star_policy(2), 4, StandardPlanner(), cost)

    def comes(self, number: int, *, opens: float = 0.0, rate: int = 0) -> Member:
        """A device asks, and opens one link with this `rate` (bytes/s) at the time `opens` (s)."""
        joiner, joins = member(number), self.scheduler.joins
        joins.request(0.0, m.JoinRequest(joiner, ()))
        join = self.join(joiner)
        for neighbour in (ONE, TWO):
            joins.introduced(neighbour, join.number)
        if rate:
            self.opens(joiner, opens, rate)
        return joiner

    def opens(self, joiner: Member, at: float, rate: int) -> None:
        """The link of `joiner` is open."""
        links = m.LinksOpen(self.join(joiner).number, (ONE,), (rate,))
        self.scheduler.joins.links_open(at, joiner.node, links)

    def join(self, joiner: Member) -> Join:
        """Return the open join of this device."""
        joins = self.scheduler.joins.open.values()
        return next(j for j in joins if j.joiner.node == joiner.node)

    def pulls(self, now: float, *joiners: Member) -> None:
        """A policy comes into force by which these copy while the others hold their update."""
        pulls = [Pull(self.join(j).number, j, (ONE,), ONE) for j in joiners]
        self.scheduler.in_force(now, star_policy(2, tuple(pulls)))

    def ticks(self, now: float) -> list[Letter]:
        """Let deadlines pass."""
        return self.scheduler.joins.tick(now)


def put_off(mail: list[Letter]) -> dict[bytes, int]:
    """Return which joiners are put off, and for how many ms."""
    said = [message for _, message in mail if isinstance(message, m.JoinAborted)]
    assert all("faster links" in message.reason for message in said)
    return {message.joiner: message.pause_ms for message in said}


def test_who_comes_while_the_others_hold_their_update_begins_when_they_go_on() -> None:
    room = Room()
    first = room.comes(8, rate=MB)
    assert room.ticks(10.0) == []
    room.pulls(10.0, first)
    later = room.comes(9, opens=11.0, rate=MB)
    assert room.join(later).waits_until is not None
    room.ticks(30.0)
    assert room.join(later).waits_until is not None
    assert room.scheduler.joins.deadline == 10.0 + limits.JOIN_PROGRESS_SECONDS
    room.scheduler.joins.pulled(room.join(first).number)
    room.ticks(31.0)
    assert room.join(later).waits_until is None
    assert room.join(later).state is JoinState.LINKED


def test_a_joiner_with_a_slow_link_lets_others_join_first() -> None:
    room = Room()
    fast, slow, unknown = room.comes(8, rate=4 * MB), room.comes(9, rate=MB), room.comes(7)
    room.opens(unknown, 0.0, 0)
    (gone,) = [x for _, x in room.ticks(10.0) if isinstance(x, m.JoinAborted)]
    assert gone.joiner == slow.node
    assert "faster links join first" in gone.reason
    assert gone.pause_ms == 1000 * limits.JOIN_AGAIN_SECONDS
    assert [j.joiner for j in room.scheduler.joins.open.values()] == [fast, unknown]


def begins(number: int, rate: int, *, beside: bool = False) -> Join:
    """Return the join of a device that is about to copy, whose faster link has this rate."""
    join = Join(number, member(number), (ONE, TWO), 0.0, JoinState.LINKED)
    join.links, join.rates, join.beside = (ONE, TWO), {ONE: rate // 2, TWO: rate}, beside
    return join


def test_nobody_is_put_off_more_than_twice_until_it_has_become_a_member() -> None:
    first = OthersFirst(COST)
    together = [begins(8, 4 * MB), begins(9, MB)]
    slow = {9: limits.JOIN_AGAIN_SECONDS}
    assert [first.choose(together) for _ in range(3)] == [slow, slow, {}]
    first.entered(node(9))
    first.entered(node(8))
    assert first.choose(together) == slow


def test_how_long_one_is_put_off_follows_from_how_long_the_others_take() -> None:
    def pause(fast: int, slow: int) -> float:
        (seconds,) = OthersFirst(COST).choose([begins(8, fast), begins(9, slow)]).values()
        return seconds

    assert pause(2 * MB, MB // 4) == 20.0
    assert pause(MB // 4, MB // 100) == limits.JOIN_MUCH_LATER_SECONDS


def test_nobody_is_put_off_for_a_moment_or_if_nobody_waits() -> None:
    assert OthersFirst(COST).choose([]) == {}
    assert OthersFirst(COST).choose([begins(8, MB)]) == {}
    assert OthersFirst(COST).choose([begins(8, 3 * MB), begins(9, 2 * MB)]) == {}
    assert OthersFirst(COST).choose([begins(8, 4 * MB), begins(9, MB, beside=True)]) == {}
    assert OthersFirst(COST).choose([begins(8, 4 * MB), begins(9, 0)]) == {}
    small = OthersFirst(replace(COST, gradient_bytes=MB))
    assert small.choose([begins(8, 4 * MB), begins(9, MB)]) == {}


def test_only_the_last_joiners_are_remembered() -> None:
    first = OthersFirst(COST)
    for number in (9, 9, *range(10, 10 + limits.MAX_OPEN_JOINS)):
        assert first.choose([begins(8, 4 * MB), begins(number, MB)])
    assert first.choose([begins(8, 4 * MB), begins(9, MB)]), "the first was forgotten"
