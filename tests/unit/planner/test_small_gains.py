"""What does not shorten a step changes no plan: the tree of the word beside ways, and shares where
devices sum for much longer than they compute."""

from __future__ import annotations

import random
from dataclasses import replace
from math import isclose
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from edgeagent.planner.shares import LEAST_OF_STEP, measured_shares
from edgeagent.planner.standard import StandardPlanner
from edgeagent.planner.trees import WORD_BYTES, round_time, word_tree
from protocols.cluster.tree import Tree
from protocols.network.measures import Measures, Rate
from tests.unit.protocols.records import node, view_of

from .test_trees import all_trees, cases
from .ways.test_of_view import CHUNK, PAYLOAD, mesh, policy

if TYPE_CHECKING:
    from protocols.cluster.view import View


def word_s(tree: Tree, measures: Measures) -> float:
    return round_time(tree, measures, WORD_BYTES, chunk_bytes=WORD_BYTES)


def like_both_ways(measures: Measures) -> Measures:
    """Return the measures with each direction of a link as its first one."""
    return Measures({(a, b): measures.links[min(a, b), max(a, b)] for a, b in measures.links})


@given(cases(delays=True))
def test_no_tree_is_sooner_done_with_a_word_where_links_are_alike_both_ways(
    case: tuple[View, Measures],
) -> None:
    view, measures = case[0], like_both_ways(case[1])
    plan = word_tree(view, measures, None, 0.0)
    best = min(word_s(tree, measures) for tree in all_trees(view))
    assert isclose(word_s(Tree(view.nodes, plan.parents), measures), best)


def test_the_words_tree_stays_while_chunks_take_longer() -> None:
    view = view_of(3, [(1, 2), (2, 3), (1, 3)])
    links = {
        (a, b): Rate(0.03 if node(2) in (a, b) else 0.3, 1e6)
        for a in view.nodes
        for b in view.nodes
        if a != b
    }
    measures = Measures(links)
    far = (b"", node(1), node(1))  # the word crosses the link of 0.3 s twice
    near = (node(2), b"", node(2))
    now_s, best_s = (word_s(Tree(view.nodes, tree), measures) for tree in (far, near))
    assert now_s > 4 * best_s
    for round_s, keeps in ((0.0, False), (best_s, False), (0.84 * now_s, False), (now_s, True)):
        plan = word_tree(view, measures, far, round_s)
        assert (plan.parents == far) is keeps, round_s
        assert ("in force" in plan.reason) is keeps
    assert word_tree(view, measures, (b"", node(3), node(9)), 9.0).parents == near  # no tree
    unknown = word_tree(view, Measures(), far, 0.0)
    assert unknown.parents == far
    assert word_tree(view, Measures(), None, 1.0).depth == 1


@given(st.floats(0.0, 10.0), st.floats(0.2, 5.0))
def test_other_shares_save_a_part_of_the_whole_step(beside_s: float, faster: float) -> None:
    nodes = (node(1), node(2))
    speeds = {nodes[0]: 0.1, nodes[1]: 0.1 / faster}
    best = measured_shares(nodes, 8, (), speeds)
    plan = measured_shares(nodes, 8, (), speeds, (4, 4), beside_s=beside_s)
    now_s = 4 * max(speeds.values())
    assert best.predicted_s is not None
    saved = now_s - best.predicted_s
    pays = saved > 0.15 * now_s + 1e-9 and saved >= LEAST_OF_STEP * (now_s + beside_s)
    assert plan.shares == (best.shares if pays else (4, 4))
    if plan.shares != best.shares:
        assert "others would not save" in plan.reason


def test_noise_changes_no_plan_of_devices_that_mostly_sum() -> None:
    """Nine devices compute for milliseconds, which differ as their processors are busy, and sum for
    a second over links whose rates differ by 6 % from one time to the next."""
    chance = random.Random(3)
    view, measures = mesh(9)
    before = policy(view, "packed", measures)
    assert before.ways
    planner = StandardPlanner(int(PAYLOAD), int(CHUNK), trees="packed")
    for _ in range(40):
        noisy = {
            ends: replace(rate, rate=rate.rate * chance.uniform(0.94, 1.06))
            for ends, rate in measures.links.items()
        }
        speeds = {n: 0.001 * chance.uniform(1.0, 4.0) for n in view.nodes}
        plan = planner.plan(view, 8, (), before, Measures(noisy, speeds))
        assert (plan.parents, plan.shares) == (before.parents, before.shares)
        assert plan.ways == before.ways
