"""When the scheduler has ways searched for, and what it does with the answers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from edgeagent.planner.standard import StandardPlanner
from protocols import limits
from protocols.cluster.policy import Pull
from protocols.cluster.stripes import Stripe
from protocols.cluster.view import edge, make_view
from protocols.cluster.ways import Way
from protocols.events import Measured, WaysFound
from protocols.scheduler.join import Join, JoinState
from protocols.scheduler.negotiator import Negotiator
from protocols.scheduler.planning import Found
from protocols.scheduler.ways_search import MOST_ANSWERS, WaysSearch
from tests.simulation.ways import WaysPlanner

from .clusters import cluster, policy_of, settle
from .records import LINEAGE, member, node, star_policy, view_of

if TYPE_CHECKING:
    from protocols.cluster.policy import Policy
    from tests.simulation.world import World

STAR = Way(bytes([0, 0, 0]), bytes([0, 0, 0]), 1)
OTHER = Way(bytes([1, 1, 1]), bytes([1, 1, 1]), 2)


def policy_for(count: int) -> Policy:
    """Return a policy whose members are all linked."""
    members = [member(k + 1) for k in range(count)]
    nodes = [m.node for m in members]
    pairs = [edge(a, b) for a in nodes for b in nodes if a < b]
    view = make_view(LINEAGE, 1, members, pairs)
    plan = StandardPlanner().plan(view, 8, ())
    return replace(star_policy(1), view=view, parents=plan.parents, shares=plan.shares)


def leader(count: int = 3, trees: str = "packed") -> Negotiator:
    policy = policy_for(count)
    return Negotiator(node(1), policy.term, policy, 8, StandardPlanner(trees=trees))


VIEW = view_of(3)


def test_there_is_one_search_at_a_time_and_not_too_often() -> None:
    search = WaysSearch(3, searches=True)
    first = search.begin(10.0, [VIEW])
    assert first is not None
    search.want()
    due = search.deadline
    assert due is None
    assert search.begin(100.0, [VIEW]) is None  # the first is not answered
    assert search.answered(10.2, first[0], Found((STAR,), "a"))
    assert search.found(VIEW) == Found((STAR,), "a")
    assert search.deadline == pytest.approx(12.0)  # so the tenth of the time is for searches
    assert search.begin(10.5, [VIEW]) is None
    assert search.begin(13.0, []) is None
    second = search.begin(13.0, [VIEW])
    assert second is not None
    assert second[0] > first[0]


@pytest.mark.parametrize(("took_s", "pause_s"), [(0.001, 1.0), (0.15, 1.5), (0.5, 3.0), (7.0, 3.0)])
def test_the_next_search_waits_for_longer_the_longer_one_takes(
    took_s: float, pause_s: float
) -> None:
    search = WaysSearch(1, searches=True)
    begun = search.begin(20.0, [VIEW])
    assert begun is not None
    search.want()
    assert search.answered(20.0 + took_s, begun[0], Found((), ""))
    assert search.deadline == pytest.approx(20.0 + pause_s)


def test_answers_to_other_searches_are_dropped() -> None:
    search = WaysSearch(3, searches=True)
    begun = search.begin(0.0, [VIEW])
    assert begun is not None
    late = WaysSearch(2, searches=True).begin(0.0, [VIEW])
    assert late is not None
    assert not search.answered(
        0.1, late[0], Found((), "")
    )  # to this node, when it led an earlier term
    assert search.answered(0.1, begun[0], Found((), ""))
    assert not search.answered(0.1, begun[0], Found((STAR,), ""))  # twice
    assert search.found(VIEW) == Found((), "")


def test_the_members_and_they_with_the_joiners_are_searched_for_in_turn() -> None:
    search, views = WaysSearch(3, searches=True), [VIEW, view_of(4)]
    sought = []
    for number, at in enumerate((0.0, 10.0, 20.0, 30.0)):
        begun = search.begin(at, views)
        assert begun is not None
        sought.append(begun[1])
        assert search.answered(0.1, begun[0], Found((), str(number)))
        assert (search.deadline is None) is (number > 0), "the other one waits for its first"
        search.want()
    assert sought == 2 * views
    assert [found.reason for view in views if (found := search.found(view))] == ["2", "3"]
    for size in range(5, 4 + MOST_ANSWERS):
        begun = search.begin(10.0 * size, [view_of(size)])
        assert begun is not None
        assert search.answered(0.1, begun[0], Found((), "4"))
        search.want()
    assert search.found(VIEW) is None, "it was the oldest"
    assert search.found(view_of(4)) is not None


def test_nothing_is_searched_where_nothing_can_be_found() -> None:
    search = WaysSearch(1, searches=False)
    search.want()
    assert search.deadline is None
    assert search.begin(0.0, [VIEW]) is None
    for negotiator in (leader(trees="one"), leader(count=1)):
        assert negotiator.begin_search(0.0) is None


def test_what_is_found_becomes_a_policy() -> None:
    negotiator = leader(trees="star")
    wanted = negotiator.begin_search(1.0)
    assert wanted is not None
    assert wanted.policy == negotiator.policy
    negotiator.tick(1.0)
    before = negotiator.switch
    assert before is None
    negotiator.ways_found(1.0, WaysFound(wanted.number, Found((OTHER,), "drawn")))
    negotiator.tick(1.0)
    assert negotiator.switch is not None
    made = negotiator.switch.policy
    assert made.ways == (OTHER,)
    assert "drawn" in made.reason
    negotiator.in_force(2.0, made)
    negotiator.tick(2.0)
    assert negotiator.switch is None  # what is found stays, and is no news


def test_a_search_follows_measurements_and_other_links_but_no_other_shares() -> None:
    negotiator = leader()
    wanted = negotiator.begin_search(0.0)
    assert wanted is not None
    negotiator.ways_found(0.0, WaysFound(wanted.number, Found((), "")))
    assert negotiator.begin_search(5.0) is None
    negotiator.measured()
    assert negotiator.begin_search(5.0) is None  # not before the next plan
    negotiator.tick(5.0)
    again = negotiator.begin_search(5.0)
    assert again is not None
    assert again.before == Found((), "")
    negotiator.ways_found(5.0, WaysFound(again.number, Found((), "")))
    policy = negotiator.policy
    negotiator.in_force(9.0, replace(policy, version=policy.version + 1, shares=(7, 1, 0)))
    assert negotiator.begin_search(9.0) is None
    view = replace(policy.view, number=2, edges=policy.view.edges[1:])
    newest = replace(policy, version=policy.version + 2, view=view, parents=(node(3), node(3), b""))
    negotiator.in_force(9.0, newest)
    assert negotiator.deadline is not None
    assert negotiator.deadline <= 9.0
    assert negotiator.begin_search(9.0) is not None


def test_a_search_counts_on_who_leaves_as_long_as_it_alone_holds_a_stripe() -> None:
    negotiator = leader()
    first, second, third = (bytes([k]) for k in range(3))
    stripes = tuple(Stripe(x) for x in (first, second, third))
    negotiator.in_force(0.0, replace(negotiator.policy, version=9, stripes=stripes))
    negotiator.leave_request(node(3))
    negotiator.joins.open[7] = coming = Join(7, member(9), (), 1e9, JoinState.COPYING)
    coming.links = (node(1),)
    before = negotiator.begin_search(1.0)
    assert before is not None
    assert before.policy == negotiator.policy, "the members come first"
    negotiator.ways_found(1.0, WaysFound(before.number, Found((), "")))
    wanted = negotiator.begin_search(1.0 + limits.SEARCH_MOST_SECONDS)
    assert wanted is not None
    assert [m.node for m in wanted.policy.view.members] == [node(k) for k in (1, 2, 3, 9)]
    assert [s.holders for s in wanted.policy.stripes] == [first, second, third]


def test_no_search_begins_while_the_role_is_handed_over() -> None:
    negotiator = leader()
    negotiator.hold_back(True)
    assert negotiator.begin_search(0.0) is None
    negotiator.hold_back(False)
    assert negotiator.begin_search(0.0) is not None


def test_a_cluster_searches_while_it_trains_and_switches_to_what_was_found() -> None:
    planner = WaysPlanner(3, searches=True)
    world, hosts = cluster(1, ways=planner)
    seen = {policy_of(hosts[0]).ways}
    for _ in range(3):
        hosts[0].handle(Measured((), 0.001 * (len(seen) + 1), None, None))
        run_for(world, 2 * limits.SEARCH_MOST_SECONDS)
        settle(world)
        seen.add(policy_of(hosts[0]).ways)
    assert len(seen) > 1
    assert {policy_of(host).key for host in hosts} == {policy_of(hosts[0]).key}


def run_for(world: World, seconds: float) -> None:
    until = world.now + seconds
    world.run(lambda: world.now > until)


def test_only_the_scheduler_takes_an_answer() -> None:
    _, hosts = cluster(1, ways=WaysPlanner(3, searches=True))
    other = hosts[1].node
    assert other is not None
    assert other.negotiator is None
    before = policy_of(hosts[1])
    other.handle(hosts[1].clock(), WaysFound(1 << 32, Found((OTHER,), "late")))
    assert policy_of(hosts[1]) == before


@pytest.mark.parametrize("count", [1, 2])
def test_ways_are_searched_for_with_the_joiners_that_will_enter(count: int) -> None:
    negotiator = leader(count)
    if (search := negotiator.begin_search(0.0)) is not None:
        negotiator.ways_found(0.0, WaysFound(search.number, Found((), "")))
    sources = negotiator.policy.view.nodes
    pull = Pull(7, member(9), sources, sources[0])
    negotiator.in_force(5.0, replace(negotiator.policy, version=2, pulls=(pull,)))
    assert negotiator.joins.open[7].state is JoinState.PULLING
    negotiator.measured()
    negotiator.tick(6.0)
    assert negotiator.deadline is not None
    assert negotiator.deadline <= 6.0
    wanted = negotiator.begin_search(6.0)
    assert wanted is not None
    assert sorted(wanted.policy.view.nodes) == sorted((*sources, node(9)))
    assert len(wanted.policy.parents) == count + 1
    assert negotiator.policy.view.nodes == sources


@pytest.mark.parametrize("count", [2, 3])
def test_a_joiner_whose_members_are_all_lost_is_not_counted_in(count: int) -> None:
    negotiator = leader(count)
    if (search := negotiator.begin_search(0.0)) is not None:
        negotiator.ways_found(0.0, WaysFound(search.number, Found((), "")))
    last = node(count)
    pull = Pull(7, member(9), (last,), last, beside=True)
    negotiator.in_force(5.0, replace(negotiator.policy, version=2, pulls=(pull,)))
    assert negotiator.joins.open[7].state is JoinState.COPYING
    left = replace(policy_for(count - 1), version=3)
    negotiator.in_force(6.0, left)  # as a fence has decided
    negotiator.measured()
    wanted = negotiator.begin_search(10.0)
    assert (wanted.policy if wanted is not None else None) == (left if count == 3 else None)
