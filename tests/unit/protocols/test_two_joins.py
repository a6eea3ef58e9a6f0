"""A new scheduler finds two joins of one device; members may hold an update for the older one."""

from __future__ import annotations

from dataclasses import replace

from edgeagent.planner.standard import StandardPlanner
from protocols.cluster.policy import Policy, Pull
from protocols.scheduler.join import JoinState
from protocols.scheduler.joins import STARTED_AGAIN
from protocols.scheduler.negotiator import Negotiator
from protocols.wire import messages as m
from tests.unit.protocols.records import member, node, star_policy

ONE, TWO, JOINER = node(1), node(2), member(8)
OLDER, NEWER = (1 << 32) + 4, (1 << 32) + 5  # joins of the term before


def named(join: int) -> Policy:
    """Return a policy by which the joiner copies, for this join."""
    return star_policy(2, (Pull(join, JOINER, (ONE,), ONE),))


def ended(scheduler: Negotiator) -> list[tuple[int, str]]:
    """Return which joins all are told to be over, and why."""
    said = [message for _, message in scheduler.joins.tick(1.0)]
    return [(x.join, x.reason) for x in said if isinstance(x, m.JoinAborted)]


def test_the_pull_of_a_device_that_has_asked_again_is_ended_when_it_comes_into_force() -> None:
    scheduler = Negotiator(ONE, 2, star_policy(2), 4, StandardPlanner())
    again = replace(JOINER, incarnation=JOINER.incarnation + 1)
    scheduler.joins.request(0.0, m.JoinRequest(again, ()))
    (join,) = scheduler.joins.open.values()
    for neighbour in (ONE, TWO):
        scheduler.joins.introduced(neighbour, join.number)
    links = m.LinksOpen(join.number, (ONE,), (1_000_000,))
    scheduler.joins.links_open(0.0, again.node, links)
    scheduler.in_force(0.0, named(OLDER))
    assert scheduler.joins.open == {join.number: join}
    assert join.state is JoinState.LINKED, "the pull that is named is not its own"
    assert ended(scheduler) == [(OLDER, STARTED_AGAIN)]
    scheduler.in_force(1.0, named(OLDER))
    assert ended(scheduler) == []
    scheduler.in_force(2.0, star_policy(2, (Pull(join.number, again, (ONE,), ONE),)))
    assert join.state is JoinState.PULLING


def test_the_newer_join_of_a_device_takes_the_place_of_the_older_one() -> None:
    scheduler = Negotiator(ONE, 2, named(OLDER), 4, StandardPlanner())
    scheduler.joins.resume(0.0)
    assert list(scheduler.joins.open) == [OLDER]
    scheduler.in_force(0.0, named(NEWER))
    assert list(scheduler.joins.open) == [NEWER]
    assert scheduler.joins.open[NEWER].state is JoinState.PULLING
    assert ended(scheduler) == [(OLDER, STARTED_AGAIN)]
