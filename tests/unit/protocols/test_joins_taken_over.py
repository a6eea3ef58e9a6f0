"""What a new scheduler makes of joins that the last one had begun."""

from __future__ import annotations

import math
from dataclasses import replace

from edgeagent.planner.standard import StandardPlanner
from protocols.cluster.policy import Policy, Pull
from protocols.member.joining_table import JoiningState
from protocols.scheduler.join import JoinState
from protocols.scheduler.joins import STARTED_AGAIN, UNKNOWN
from protocols.scheduler.negotiator import Negotiator
from protocols.wire import messages as m
from tests.unit.protocols.clusters import cluster, reach
from tests.unit.protocols.records import member, node, star_policy

ONE, TWO, JOINER = node(1), node(2), member(8)
OLDER, NEWER = (1 << 32) + 4, (1 << 32) + 5  # joins of the term before


def named(join: int, *, beside: bool = False) -> Policy:
    """Return a policy by which the joiner copies, for this join."""
    return star_policy(2, (Pull(join, JOINER, (ONE,), ONE, beside=beside),))


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
    assert ended(scheduler) == [(OLDER, UNKNOWN)]
    scheduler.in_force(1.0, named(OLDER))
    assert ended(scheduler) == [(OLDER, UNKNOWN)], "it may have been forgotten meanwhile"
    scheduler.in_force(2.0, star_policy(2, (Pull(join.number, again, (ONE,), ONE),)))
    assert scheduler.joins.open[join.number].state is JoinState.PULLING


def test_a_joiner_that_has_copied_for_the_last_scheduler_pulls_the_rest() -> None:
    scheduler = Negotiator(ONE, 2, named(OLDER, beside=True), 4, StandardPlanner())
    scheduler.joins.resume(0.0)
    join = scheduler.joins.open[OLDER]
    assert (join.state, join.stops_until) == (JoinState.COPYING, math.inf)
    scheduler.in_force(1.0, named(OLDER))
    assert join.state is JoinState.PULLING
    assert join.copied
    assert not join.beside
    assert join.stops_until < math.inf, "the others hold their update"


def test_a_joiner_all_whose_links_are_to_members_that_have_left_begins_again() -> None:
    scheduler = Negotiator(ONE, 2, star_policy(3), 4, StandardPlanner())
    joins = scheduler.joins
    joins.request(0.0, m.JoinRequest(JOINER, ()))
    (join,) = joins.open.values()
    for neighbour in (ONE, TWO, node(3)):
        joins.introduced(neighbour, join.number)
    joins.links_open(0.0, JOINER.node, m.LinksOpen(join.number, (node(3),), (1_000_000,)))
    assert join.state is JoinState.LINKED
    assert ended(scheduler) == []
    scheduler.in_force(1.0, star_policy(2))
    assert ended(scheduler) == [(join.number, "all members that it was linked to have left")]


def test_a_joiner_that_waits_learns_of_a_new_scheduler_with_the_decision_of_its_fence() -> None:
    """The announcement is sent once, and may be lost with a link."""
    world, hosts = cluster(0, 4)
    joiner = world.join(9, hosts[1])
    reach(world, joiner, JoiningState.WAITING)
    for host in hosts:
        if host is not hosts[1] and joiner.me.node in host.links:
            world.cut(host, joiner)
    world.lose = lambda _s, receiver, message: receiver is joiner and isinstance(message, m.Lead)
    world.kill(hosts[0])
    world.run(lambda: joiner.is_member or bool(joiner.joins_failed), 30.0)


def test_the_newer_join_of_a_device_takes_the_place_of_the_older_one() -> None:
    scheduler = Negotiator(ONE, 2, named(OLDER), 4, StandardPlanner())
    scheduler.joins.resume(0.0)
    assert list(scheduler.joins.open) == [OLDER]
    scheduler.in_force(0.0, named(NEWER))
    assert list(scheduler.joins.open) == [NEWER]
    assert scheduler.joins.open[NEWER].state is JoinState.PULLING
    assert ended(scheduler) == [(OLDER, STARTED_AGAIN)]
