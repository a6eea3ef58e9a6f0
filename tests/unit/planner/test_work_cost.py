"""What shares cost: of all micro-batches as much as there are, of none nothing."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from edgeagent.planner.work_cost import IN_PROPORTION, WorkCost

parts = st.floats(0, 1, allow_nan=False)


@given(parts, parts, st.integers(1, 200))
def test_costs_grow_from_none_to_all(fixed: float, square: float, of: int) -> None:
    cost = WorkCost(fixed, square)
    assume(cost.is_possible)
    units = [cost.units(share, of) for share in range(of + 1)]
    assert units[0] == 0
    assert units[-1] == pytest.approx(of)
    assert all(a < b + 1e-9 for a, b in pairwise(units))


@given(parts, parts, st.integers(1, 200), st.data())
def test_what_can_be_afforded_is_what_costs_so_much(
    fixed: float, square: float, of: int, data: st.DataObject
) -> None:
    cost = WorkCost(fixed, square)
    assume(cost.fixed + cost.square < 1 or cost.square > 1e-3)
    assume(cost.is_possible and cost.fixed < 0.999)
    share = data.draw(st.integers(1, of))
    assert cost.affordable(cost.units(share, of), of) == pytest.approx(share, rel=1e-6, abs=1e-6)
    assert cost.affordable(fixed * of, of) == 0.0


@given(st.integers(0, 10**6))
def test_in_proportion_a_share_costs_exactly_as_many_units(share: int) -> None:
    assert IN_PROPORTION.units(share, 10**6) == share
    assert IN_PROPORTION.affordable(share, 10**6) == share


def test_parts_that_are_none_are_impossible() -> None:
    assert WorkCost(0.5, 0.5).is_possible
    assert WorkCost(0.0, 1.0).is_possible
    for fixed, square in ((1.0, 0.0), (0.6, 0.5), (-0.1, 0.0), (0.0, -0.1), (math.nan, 0.0)):
        assert not WorkCost(fixed, square).is_possible
