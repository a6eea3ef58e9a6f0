"""Ways as a policy holds them: from a view and its measurements, and which of them stay."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from edgeagent.config import TREES
from edgeagent.planner.policies import PolicyAnswer, PolicyRequest
from edgeagent.planner.standard import StandardPlanner
from edgeagent.planner.ways.loads import loads
from edgeagent.planner.ways.named import SHAPES
from edgeagent.planner.ways.of_view import KEPT, network_of, search_ways
from edgeagent.planner.ways.way import ROOT, Way
from protocols.cluster.policy import Policy
from protocols.cluster.view import View, edge, make_view
from protocols.network.measures import NOTHING_KNOWN, Measures, Rate
from tests.unit.protocols.records import LINEAGE, member

if TYPE_CHECKING:
    from protocols.cluster.ways import Way as PolicyWay

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
    found = planner.search(replace(before, view=view, parents=first.parents, ways=()), measures)
    plan = planner.plan(view, 8, (), before, measures, found)
    return Policy(1, 2, view, plan.parents, plan.shares, (), plan.reason, plan.ways)


def planned(way: PolicyWay) -> Way:
    """Return a way as the planner counts it."""
    up, down = (
        tuple(ROOT if parent == k else parent for k, parent in enumerate(parents))
        for parents in (way.up, way.down)
    )
    return Way(up, down, way.weight)


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
    tree = policy(view, "one", measures)
    lonely = policy(mesh(1)[0], "one", measures)
    line_view = replace(view, edges=tuple(edge(*ends) for ends in pairwise(view.nodes)))
    line = policy(line_view, "one", measures)
    sizes = (PAYLOAD, CHUNK)
    assert search_ways(tree, NOTHING_KNOWN, *sizes, "packed").ways == ()
    assert search_ways(tree, measures, *sizes, "one").ways == ()
    assert search_ways(lonely, measures, *sizes, "packed").ways == ()
    assert search_ways(tree, measures, 10.0, 10.0, "packed").ways == ()
    assert search_ways(line, measures, *sizes, "star").ways == ()
    assert search_ways(line, measures, *sizes, "star").reason


def test_what_limits_the_members_counts() -> None:
    """Without limits the links of the slow member look as if it could use all of them at once."""
    view, measures = mesh(6)
    tree = policy(view, "one", measures)
    slow = view.nodes[2]
    limited = replace(measures, up={slow: 90 * MBIT}, down={slow: 80 * MBIT})
    network = network_of(view, limited)
    assert network.up_limits[2] == pytest.approx(90 * MBIT, rel=0.03)
    assert network.down_limits[2] == pytest.approx(80 * MBIT, rel=0.03)
    assert network.up_limits.count(math.inf) == network.down_limits.count(math.inf) == 5
    sizes = (PAYLOAD, CHUNK, "packed")
    blind, seeing = (search_ways(tree, known, *sizes) for known in (measures, limited))
    sent = [loads(6, [planned(way) for way in found.ways])[2].sum() for found in (blind, seeing)]
    assert sent[1] == pytest.approx(1.0), "as little as possible, its own sum"
    assert sent[0] > 1.3


def test_nothing_is_searched_again_until_ways_have_become_worse() -> None:
    view, measures = mesh(6)
    made = policy(view, "packed", measures)
    sizes = (PAYLOAD, CHUNK, "packed")
    first = search_ways(made, measures, *sizes)
    assert first.over_floor >= 1
    before = replace(first, reason="found before")
    doubled = {ends: Rate(r.delay_s, 2 * r.rate) for ends, r in measures.links.items()}
    assert search_ways(made, measures, *sizes, before) is before
    assert search_ways(made, Measures(doubled), *sizes, before) is before
    slow = dict(measures.links)
    slow[view.nodes[0], view.nodes[1]] = Rate(0.002, 1 * MBIT)
    assert search_ways(made, Measures(slow), *sizes, before) is not before
    tree = replace(made, ways=())
    assert search_ways(tree, measures, *sizes, before) is not before
    smaller, rates = mesh(5)
    alike = replace(before, over_floor=100.0)  # it fits no more, however good the tree is
    assert search_ways(policy(smaller, "one", rates), rates, *sizes, alike) is not alike


def test_ways_of_other_members_or_links_are_repaired_until_better_ones_are_found() -> None:
    view, measures = mesh(6)
    planner = StandardPlanner(int(PAYLOAD), int(CHUNK), trees="packed")
    made = policy(view, "packed", measures)
    smaller, rates = mesh(5)
    larger, more_rates = mesh(7)
    fewer = replace(view, edges=view.edges[1:])
    for other, known in ((smaller, rates), (larger, more_rates), (fewer, measures)):
        old = planner.search(made, measures)  # for links that are no more
        plan = planner.plan(other, 8, (), made, known, old)
        now = Policy(1, 2, other, plan.parents, plan.shares, (), plan.reason, plan.ways)
        assert plan.ways  # they are valid, or the policy would have raised
        assert {len(way.up) for way in plan.ways} == {len(other.nodes)}
        assert KEPT in plan.reason
        assert policy(other, "packed", known, now).ways  # what is found fits


def test_ways_that_are_no_better_than_the_tree_any_more_are_given_up() -> None:
    view, measures = mesh(6)
    planner = StandardPlanner(10, 10, trees="packed")  # so small that only delays count
    made = policy(view, "packed", measures)
    slow = replace(made.ways[0], up=bytes([0, 0, 1, 2, 3, 4]), down=bytes([0, 0, 1, 2, 3, 4]))
    chain = replace(made, ways=(slow,))
    assert planner.plan(view, 8, (), chain, measures).ways == (slow,)
    found = planner.search(chain, measures)
    assert found.ways == ()
    plan = planner.plan(view, 8, (), chain, measures, found)
    assert plan.ways == ()
    assert found.reason in plan.reason


def test_without_a_search_and_without_ways_there_is_the_tree() -> None:
    view, measures = mesh(6)
    planner = StandardPlanner(int(PAYLOAD), int(CHUNK), trees="packed")
    assert planner.plan(view, 8, (), None, measures).ways == ()
    assert planner.searches
    assert not StandardPlanner().searches
    assert not StandardPlanner(custom=_star, trees="packed").searches


def _star(request: PolicyRequest) -> PolicyAnswer:
    hub = request.members[0].node
    parents = {m.node: hub for m in request.members} | {hub: b""}
    return PolicyAnswer(parents, {hub: request.micro_batches})
