"""With a divided optimizer ways lead to members that can own what is complete there."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from edgeagent.planner.standard import StandardPlanner
from edgeagent.planner.ways.choice import plan_ways
from edgeagent.planner.ways.division import Division, division_of, turned, within
from edgeagent.planner.ways.loads import peak
from edgeagent.planner.ways.network import Network
from edgeagent.planner.ways.of_view import choose_ways, search_ways
from edgeagent.planner.ways.packed import packed
from edgeagent.planner.ways.way import PARTS, ROOT, Way, way_fault
from protocols.cluster.policy import Policy
from protocols.cluster.stripes import Stripe
from protocols.network.measures import NOTHING_KNOWN, Measures, Rate
from protocols.scheduler.planning import Found
from tests.unit.planner.ways.overlays import overlay
from tests.unit.planner.ways.test_of_view import CHUNK, MBIT, PAYLOAD, mesh
from tests.variants import variants

if TYPE_CHECKING:
    from protocols.cluster.view import View

SIZES = (PAYLOAD, CHUNK)


def divided(view: View, *holders: tuple[int, ...]) -> Policy:
    """Return a policy under which these members hold the stripes, the first ones as owners."""
    plan = StandardPlanner().plan(view, 8, ())
    stripes = tuple(Stripe(bytes(found)) for found in holders)
    return Policy(1, 1, view, plan.parents, plan.shares, (), "", (), stripes)


def rooted(ways: tuple[Way, ...], count: int) -> list[int]:
    """Return the weight of the ways that lead to each of so many members."""
    found = [0] * count
    for way in ways:
        found[way.root] += way.weight
    return found


@pytest.mark.parametrize("seed", variants(range(6), long=range(16)))
def test_no_member_is_the_root_of_more_than_it_may_be(seed: int) -> None:
    network = overlay(seed)
    for copies in (0, 1):
        each = -(-PARTS * (1 + copies) // network.count)
        for ways in packed(
            network, (1, 2, network.count), Division((each,) * network.count, copies)
        ):
            if ways is not None:
                assert max(rooted(ways, network.count)) <= each
                assert sum(way.weight for way in ways) == PARTS
                assert all(way_fault(way, network.rates) is None for way in ways)


def test_there_is_no_plan_without_enough_room_near_enough() -> None:
    line = {(0, 1): 1.0, (1, 0): 1.0, (1, 2): 1.0, (2, 1): 1.0}
    network = Network(line, {}, (9.0,) * 3, (9.0,) * 3)
    shallow, deep = packed(network, (1, 2), Division((PARTS, PARTS // 2, 0), 0))
    assert shallow is None  # only the member in the middle has all others beside it
    assert deep is not None
    assert rooted(deep, 3)[2] == 0
    assert packed(network, (2,), Division((1, 1, 1), 0)) == (None,)


def test_slow_members_own_little_where_others_can() -> None:
    """Along stars, whose root sends the result to each: deeper trees let others pass it on."""
    rates = {(u, v): 100.0 for u in range(4) for v in range(4) if u != v}
    slow = Network(rates, {}, (20.0, 300.0, 300.0, 300.0), (300.0,) * 4)
    free, alike = (packed(slow, (1,), Division((PARTS // n,) * 4, 4 // n - 1))[0] for n in (2, 4))
    assert free is not None
    assert alike is not None
    assert rooted(alike, 4)[0] == PARTS // 4
    assert rooted(free, 4)[0] <= PARTS // 16
    assert peak(slow, free) < 0.8 * peak(slow, alike)


def test_sums_and_results_load_the_links_one_after_the_other() -> None:
    """On equal links stars load every direction of every link equally in both phases."""
    rates = {(u, v): 1.0 for u in range(4) for v in range(4) if u != v}
    network = Network(rates, {}, (math.inf,) * 4, (math.inf,) * 4)
    stars = tuple(
        Way(tree, tree)
        for tree in (tuple(ROOT if v == u else u for v in range(4)) for u in range(4))
    )
    assert peak(network, stars) == pytest.approx(1 / 2)
    assert peak(network, stars, 0) == pytest.approx(1 / 4 + 1 / 4)
    assert peak(network, stars, 1) == pytest.approx(1 / 4 + 1 / 12 + 1 / 4)
    assert peak(network, stars, 9) == pytest.approx(1 / 4 + 3 / 12 + 1 / 4)
    # A chain carries the sums for all behind a link, away from the root, where no other sums go.
    chain = Way((1, 2, 3, ROOT), (1, 2, 3, ROOT))
    assert peak(network, (chain,), 3) == pytest.approx(3 + 1)
    # All first up and then down: each link is idle for half of the time.
    tree = Way((1, ROOT, 1, 1), (1, ROOT, 1, 1))
    assert peak(network, (tree,)) == 1
    assert peak(network, (tree,), 0) == 2
    for copies in (0, 1, 2):
        division = Division((PARTS * (1 + copies) // 4,) * 4, copies)
        plan = plan_ways(network, PAYLOAD, division=division)
        assert peak(network, plan.ways, copies) <= 1.05 * peak(network, stars, copies)


@pytest.mark.parametrize("seed", range(8))
def test_plans_for_two_phases_are_better_in_two_phases(seed: int) -> None:
    network = overlay(seed)
    division = Division((PARTS * 2 // network.count + 1,) * network.count, 1)
    times = [
        min(peak(network, ways, 1) for ways in plans if ways is not None)
        for plans in (packed(network, (1, 2, 3, 9), division), packed(network, (1, 2, 3, 9)))
    ]
    assert times[0] <= 1.1 * times[1]  # although the other ones may have any root


def test_one_tree_is_turned_towards_each_member_that_can_be_a_root() -> None:
    tree = (1, 3, 3, ROOT)
    ways = turned(tree, Division((1, 0, 1, 1), 0))
    assert ways == (
        Way((ROOT, 0, 3, 1), (ROOT, 0, 3, 1), 42),
        Way((1, 3, ROOT, 2), (1, 3, ROOT, 2), 43),
        Way(tree, tree, 43),
    )


def test_members_can_be_roots_of_what_they_hold() -> None:
    view = mesh(3)[0]
    policy = divided(view, (0, 1), (0, 1), (1, 0))
    assert division_of(policy, view) == Division((PARTS, PARTS, 0), 1)
    joined = mesh(4)[0]
    assert division_of(policy, joined) == Division((PARTS, PARTS, 0, 0), 1)
    assert division_of(divided(view), view) is None
    assert division_of(divided(view, (0,), (2,), (2,)), view) == Division((43, 0, 86), 0)
    star = Way((ROOT, 0, 0), (ROOT, 0, 0), 2)
    assert within((star,), Division((128, 0, 0), 0))
    assert not within((star,), Division((127, 1, 0), 0))
    assert within((star,), None)


def test_what_is_searched_leads_to_holders_and_is_searched_again_when_others_hold() -> None:
    view, measures = mesh(5)
    alone = divided(view, (3,), (3,))
    found = search_ways(alone, measures, *SIZES, "packed")
    assert {way.root for way in found.ways} == {3}
    assert search_ways(replace(alone, ways=found.ways), measures, *SIZES, "packed", found) is found
    both = divided(view, (3, 1), (3, 1))
    more = search_ways(replace(both, ways=found.ways), measures, *SIZES, "packed", found)
    assert {way.root for way in more.ways} <= {1, 3}
    assert more is not found
    assert search_ways(alone, NOTHING_KNOWN, *SIZES, "packed").ways == ()


@pytest.mark.parametrize("name", ["star", "kary", "mst", "ring", "packed"])
def test_shapes_lead_to_all_holders(name: str) -> None:
    view, measures = mesh(4)
    policy = divided(view, (0, 1), (1, 2), (2, 3), (3, 0))
    found = search_ways(policy, measures, *SIZES, name)
    ways = choose_ways(view, measures, *SIZES, name, policy.parents, policy, found)[0]
    assert ways == found.ways
    assert {way.root for way in ways} == {0, 1, 2, 3}


def test_a_single_tree_serves_a_divided_optimizer_too() -> None:
    """Small vectors over long links: the tree has each holder as its root."""
    view, _ = mesh(3)
    nodes = view.nodes
    far = {(a, b): Rate(0.1, 100 * MBIT) for a in nodes for b in nodes if a != b}
    policy = divided(view, (0,), (1,))
    found = search_ways(policy, Measures(far), 100.0, 100.0, "packed")
    assert {way.root for way in found.ways} == {0, 1}


def test_ways_in_force_that_lead_to_no_holder_give_way_to_those_found() -> None:
    view, measures = mesh(4)
    before = divided(view, (0,), (0,))
    old = search_ways(before, measures, *SIZES, "packed")
    policy = replace(divided(view, (1,), (2,)), ways=old.ways)
    new = search_ways(policy, measures, *SIZES, "packed", old)
    rest = (view, measures, *SIZES, "packed", policy.parents, policy)
    assert choose_ways(*rest, new)[0] == new.ways
    # What was found for other holders does not take the place of ways that fit.
    assert choose_ways(*rest[:-1], replace(policy, ways=new.ways), old)[0] == new.ways
    assert choose_ways(*rest[:-1], replace(policy, ways=()), old)[0] == ()
    assert choose_ways(*rest[:-1], replace(policy, ways=()), new)[0] == new.ways
    assert choose_ways(*rest, Found((), ""))[0] == ()  # each owner then has a star or the tree
