"""Ways as a policy holds them: from a view and its measurements, and which of them stay."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from edgeagent.config import TREES
from edgeagent.planner import StandardPlanner
from edgeagent.planner.ways.named import SHAPES
from edgeagent.planner.ways.of_view import KEPT, ways_of
from protocols.cluster.policy import Policy
from protocols.cluster.view import View, edge, make_view
from protocols.network.measures import NOTHING_KNOWN, Measures, Rate
from tests.unit.protocols.records import LINEAGE, member

PAYLOAD = 8e6  # bytes
CHUNK = 64e3
MBIT = 1e6 / 8


def mesh(count: int, seed: int = 0) -> tuple[View, Measures]:
    """Return members that are all linked, with rates of 20 to 155 Mbit/s in each direction."""
    chance = random.Random(seed)
    members = [member(k + 1) for k in range(count)]
    nodes = [m.node for m in members]
    edges = [edge(a, b) for a in nodes for b in nodes if a < b]
    links = {
        (a, b): Rate(0.002, chance.uniform(20, 155) * MBIT) for a in nodes for b in nodes if a != b
    }
    return make_view(LINEAGE, 1, members, edges), Measures(links)


def policy(view: View, trees: str, measures: Measures, present: Policy | None = None) -> Policy:
    """Return the standard planner's policy, after one without ways if there is no `present`."""
    planner = StandardPlanner(int(PAYLOAD), int(CHUNK), trees=trees)
    first = planner.plan(view, 8, (), None, measures)
    before = present or Policy(1, 1, view, first.parents, first.shares, (), first.reason)
    plan = planner.plan(view, 8, (), before, measures)
    return Policy(1, 2, view, plan.parents, plan.shares, (), plan.reason, plan.ways)


def test_every_name_that_a_user_can_give_has_a_shape() -> None:
    assert sorted(TREES) == sorted(SHAPES)


@pytest.mark.parametrize("trees", TREES)
def test_every_shape_makes_valid_policies_and_stays_in_force(trees: str) -> None:
    view, measures = mesh(6)
    made = policy(view, trees, measures)  # raises if the ways are not valid
    assert bool(made.ways) is (trees != "one")
    again = policy(view, trees, measures, made)
    assert again.ways == made.ways


def test_packed_ways_use_every_link_and_say_what_is_gained() -> None:
    view, measures = mesh(6)
    made = policy(view, "packed", measures)
    used = {(k, p) for way in made.ways for k, p in enumerate(way.up) if k != p}
    assert len(used) > 20  # of 30 directions; a tree has five
    assert "packed ways" in made.reason
    assert "one tree would take" in made.reason


def test_other_rates_bring_other_ways_only_if_that_is_worth_it() -> None:
    view, measures = mesh(6)
    for trees in ("packed", "mst"):
        made = policy(view, trees, measures)
        slightly = {ends: Rate(r.delay_s, r.rate * 1.02) for ends, r in measures.links.items()}
        kept = policy(view, trees, Measures(slightly), made)
        assert kept.ways == made.ways
        other = policy(view, trees, mesh(6, seed=5)[1], made)
        assert other.ways != made.ways
    assert KEPT in kept.reason


def test_there_are_no_ways_where_a_tree_is_as_good_or_nothing_is_known() -> None:
    view, measures = mesh(6)
    sizes = (PAYLOAD, CHUNK)
    assert ways_of(view, NOTHING_KNOWN, *sizes, "packed", None)[0] == ()
    assert ways_of(view, measures, *sizes, "one", None)[0] == ()
    assert ways_of(mesh(1)[0], measures, *sizes, "packed", None)[0] == ()
    assert ways_of(view, measures, 10.0, 10.0, "packed", None)[0] == ()
    line = replace(view, edges=tuple(edge(*ends) for ends in pairwise(view.nodes)))
    assert ways_of(line, measures, *sizes, "star", None)[0] == ()
    assert ways_of(line, measures, *sizes, "star", None)[1]


def test_ways_of_other_members_are_not_kept() -> None:
    view, measures = mesh(6)
    made = policy(view, "packed", measures)
    smaller, rates = mesh(5)
    again = policy(smaller, "packed", rates, made)
    assert {len(way.up) for way in again.ways} == {5}
    fewer = replace(view, edges=view.edges[1:])
    some = policy(fewer, "packed", measures, made)
    assert some.ways != made.ways


def test_a_fence_which_all_wait_for_gets_a_tree_alone() -> None:
    view, measures = mesh(6)
    planner = StandardPlanner(int(PAYLOAD), int(CHUNK), trees="packed")
    assert planner.plan(view, 8, (), None, measures).ways == ()
