"""The bound of copying against the volume that it lets flow."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.planner import bounds


def test_a_fluid_fills_what_is_open() -> None:
    assert bounds.fluid_bound(100, [10, 40], [0, 0]) == 2
    assert bounds.fluid_bound(100, [10, 40], [0, 1]) == pytest.approx(1 + 90 / 50)
    assert bounds.fluid_bound(10, [10, 40], [0, 1]) == 1
    assert bounds.fluid_bound(100, [10, 0], [2, 0]) == 12
    assert bounds.fluid_bound(100, [10, 40], [3, 3], down_rate=20) == 8
    assert bounds.fluid_bound(100, [10, 40], [0, 1], down_rate=20) == 1 + 90 / 20
    assert bounds.fluid_bound(0, [1], [1]) == 0
    assert bounds.fluid_bound(1, [0, 0], [0, 1]) == math.inf
    assert bounds.fluid_bound(1, [], []) == math.inf
    with pytest.raises(ValueError, match="positive"):
        bounds.fluid_bound(1, [1], [0], down_rate=0)


@given(
    st.lists(st.tuples(st.floats(0.1, 100), st.floats(0, 10)), min_size=1, max_size=6),
    st.floats(0.1, 1000),
    st.floats(0.1, 300),
)
def test_a_fluid_bound_delivers_just_the_size(
    sources: list[tuple[float, float]], size: float, down_rate: float
) -> None:
    rates, offsets = [r for r, _ in sources], [o for _, o in sources]
    theta = bounds.fluid_bound(size, rates, offsets)
    got = sum(max(0.0, theta - o) * r for r, o in sources)
    assert got == pytest.approx(size)
    slower = bounds.fluid_bound(size, rates, offsets, down_rate)
    assert slower >= max(theta, min(offsets) + size / down_rate) * (1 - 1e-12)
    moments = sorted({0.0, slower, *(o for o in offsets if o < slower)})
    arrived = sum(
        (b - a) * min(down_rate, sum(r for r, o in sources if o <= a)) for a, b in pairwise(moments)
    )
    assert arrived == pytest.approx(size)
