"""Chunks are dealt to ways in proportion and evenly."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.planner.ways.interleaving import way_of_chunk

WEIGHTS = st.lists(st.integers(1, 20), min_size=1, max_size=12)


def test_chunks_of_a_way_are_spread_over_the_vector() -> None:
    assert way_of_chunk([5, 1, 1], 7) == (0, 0, 1, 0, 2, 0, 0)
    assert way_of_chunk([1, 1, 1], 7) == (0, 1, 2, 0, 1, 2, 0)


@given(WEIGHTS)
def test_a_period_gives_each_way_exactly_its_weight(weights: list[int]) -> None:
    times = 3
    found = Counter(way_of_chunk(weights, times * sum(weights)))
    assert found == {k: times * weight for k, weight in enumerate(weights)}


@given(WEIGHTS, st.integers(0, 300))
def test_no_way_is_a_whole_chunk_ahead(weights: list[int], chunks: int) -> None:
    order = way_of_chunk(weights, chunks)
    assert len(order) == chunks
    seen: Counter[int] = Counter()
    for so_far, chosen in enumerate(order, 1):
        seen[chosen] += 1
        assert seen[chosen] - so_far * weights[chosen] / sum(weights) < 1


@given(WEIGHTS, st.integers(0, 100), st.integers(2, 5))
def test_common_factors_and_more_chunks_change_nothing(
    weights: list[int], chunks: int, factor: int
) -> None:
    order = way_of_chunk(weights, chunks)
    assert way_of_chunk([factor * weight for weight in weights], chunks) == order
    assert way_of_chunk(weights, chunks + 17)[:chunks] == order


@pytest.mark.parametrize(
    ("weights", "chunks", "words"),
    [([], 1, "no way"), ([2, 0], 1, "at least 1, not 0"), ([1], -1, "-1 chunks")],
)
def test_what_cannot_be_dealt(weights: list[int], chunks: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        way_of_chunk(weights, chunks)
