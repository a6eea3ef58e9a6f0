"""Reducers on whole trees, and on several at once, in random interleavings against a plain sum."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols import limits
from protocols.cluster.ways import Way

from .cluster import CHUNKS, Cluster, Shape, Tag

ROUNDS: list[Tag] = [(3, 0), (4, 0), (4, 1), (5, 0), (6, 0)]


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """Trees of up to seven members with up to two subscribers."""
    count = draw(st.integers(1, 7))
    parents = [0] + [draw(st.integers(0, k - 1)) for k in range(1, count)]
    feeders = st.lists(st.integers(0, count - 1), min_size=1, max_size=4)
    return Shape(parents, draw(st.lists(feeders, max_size=2)))


@given(shapes(), st.integers(0, 1 << 32), st.sampled_from(["float32", "float64"]))
def test_every_node_ends_with_the_sum_in_tree_order_bit_by_bit(
    shape: Shape, seed: int, dtype: str
) -> None:
    cluster = Cluster(shape, ROUNDS, seed, dtype)
    cluster.run()
    cluster.check()


@st.composite
def several_ways(draw: st.DrawFn) -> Shape:
    """A tree, subscribers, and up to four ways: any two trees with one root each."""
    shape = draw(shapes())

    def tree(root: int) -> bytes:
        order = draw(st.permutations([k for k in range(shape.members) if k != root]))
        parents, reached = {root: root}, [root]
        for k in order:
            parents[k] = draw(st.sampled_from(reached))
            reached.append(k)
        return bytes(parents[k] for k in range(shape.members))

    for _ in range(draw(st.integers(1, 4))):
        root = draw(st.integers(0, shape.members - 1))
        shape.ways.append(Way(tree(root), tree(root), 1))
    shape.window = draw(st.integers(1, CHUNKS))
    return shape


@given(several_ways(), st.integers(0, 1 << 32))
def test_chunks_on_several_ways_are_summed_bit_by_bit(shape: Shape, seed: int) -> None:
    cluster = Cluster(shape, ROUNDS, seed, "float32")
    cluster.run()
    cluster.check()


@pytest.mark.parametrize("seed", range(20))
def test_a_small_bound_slows_neighbours_down_and_changes_nothing(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_EARLY_BYTES", 100)
    cluster = Cluster(Shape([0, 0, 0, 1, 1], [[2, 3, 0], [4]]), ROUNDS, seed, "float32")
    cluster.run()
    cluster.check()
    assert cluster.holds > 0
    assert not any(stream.held for stream in cluster.streams.values())
