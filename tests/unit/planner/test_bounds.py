"""The bounds against enumeration, linear programs and the figures of worked examples."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import combinations, pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.planner import bounds
from tests.bounds.packing import packing

MBIT = 1e6 / 8
NEAR = 1e-6  # what a linear program is exact to

Matrix = list[list[float]]


def rates_of(*rows: tuple[float, ...]) -> Matrix:
    """Mbit/s as bytes/s."""
    return [[rate * MBIT for rate in row] for row in rows]


TRIANGLE = rates_of((0, 100, 40), (100, 0, 60), (40, 60, 0))
CLOCKWISE = rates_of((0, 100, 10), (10, 0, 100), (100, 10, 0))


@st.composite
def networks(draw: st.DrawFn, most: int = 5, equal: bool = False, least: int = 2) -> Matrix:
    """Rates between a few nodes, some of them without a link."""
    count = draw(st.integers(least, most))
    rate = st.one_of(st.just(0.0), st.floats(0.5, 100))
    rates = [[draw(rate) if u != v else 0.0 for v in range(count)] for u in range(count)]
    if equal:
        rates = [[rates[min(u, v)][max(u, v)] for v in range(count)] for u in range(count)]
    return rates


def partitions(nodes: list[int]) -> Iterator[list[list[int]]]:
    """All partitions, by taking out the first node's part."""
    if not nodes:
        yield []
        return
    first, *others = nodes
    for size in range(len(others) + 1):
        for part in combinations(others, size):
            for rest in partitions([n for n in others if n not in part]):
                yield [[first, *part], *rest]


def tau_of(rates: Matrix, parts: list[list[int]]) -> float:
    """What a partition allows."""
    home = {node: k for k, part in enumerate(parts) for node in part}
    every = range(len(rates))
    between = sum(rates[u][v] for u in every for v in every if home[u] != home[v])
    return between / (2 * (len(parts) - 1))


def near(a: float, b: float) -> bool:
    return a == b or math.isclose(a, b, rel_tol=NEAR, abs_tol=NEAR)


# Copying


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


def test_several_joiners() -> None:
    assert bounds.joiners_bound(100, [10, 10], [50], 0) == 5
    assert bounds.joiners_bound(100, [10, 10], [50, 4], 0) == 25
    assert bounds.joiners_bound(100, [20, 20], [50, 50, 50], 10) == 6
    assert bounds.joiners_bound(100, [20, 20], [50, 50, 50], 1000) == 2.5
    assert bounds.joiners_bound(100, [], [50], 10) == math.inf
    assert bounds.joiners_bound(0, [], [50], 10) == 0
    assert bounds.joiners_bound(100, [10], [], 10) == 0


@given(st.floats(1, 1e9), st.floats(0, 0.79), st.floats(1, 1e9))
def test_a_replay_copies_while_the_log_grows(size: float, part: float, free: float) -> None:
    theta = bounds.replay_time(size, part * free, free)
    assert theta is not None
    assert theta >= size / free * (1 - 1e-9)
    # held' = B - g held / size, from 0 to size
    held, steps = 0.0, 2000
    for _ in range(steps):
        middle = held + (free - part * free * held / size) * theta / steps / 2
        held += (free - part * free * middle / size) * theta / steps
    assert held == pytest.approx(size, rel=1e-4)


def test_a_replay_that_takes_too_much_is_none() -> None:
    assert bounds.replay_time(100, 8, 10) is None
    assert bounds.replay_time(100, 0, 0) is None
    assert bounds.replay_time(100, 5, 10) == pytest.approx(20 * math.log(2))
    assert bounds.replay_time(100, 0, 10) == 10


# Summing


def test_the_triangle_of_100_60_and_40() -> None:
    size = 100e6
    assert bounds.weakest_partition(TRIANGLE)[0] == pytest.approx(100 * MBIT)
    assert bounds.partition_bound(size, TRIANGLE) == pytest.approx(8.0)
    assert bounds.cut_bound(size, TRIANGLE) == pytest.approx(8.0)
    assert bounds.tree_time(size, TRIANGLE) == pytest.approx(40 / 3)
    assert bounds.ring_time(size, TRIANGLE, both_ways=True) == pytest.approx(40 / 3)
    assert bounds.ring_time(size, TRIANGLE) == pytest.approx(80 / 3)
    found = packing(TRIANGLE)
    assert found.rate == pytest.approx(100 * MBIT)
    for u, v in combinations(range(3), 2):
        for link in ((u, v), (v, u)):
            most = TRIANGLE[u][v] * (1 + NEAR)
            assert found.reduce[link] + found.broadcast[link] <= most


def test_a_triangle_with_unequal_directions() -> None:
    size = 100e6
    slower = [[min(CLOCKWISE[u][v], CLOCKWISE[v][u]) for v in range(3)] for u in range(3)]
    assert bounds.weakest_partition(slower)[0] == pytest.approx(15 * MBIT)  # same tree both ways
    assert size / bounds.ring_time(size, CLOCKWISE) == pytest.approx(75 * MBIT)
    assert size / bounds.ring_time(size, CLOCKWISE, both_ways=True) == pytest.approx(82.5 * MBIT)
    assert bounds.weakest_partition(CLOCKWISE)[0] == pytest.approx(82.5 * MBIT)
    assert packing(CLOCKWISE).rate == pytest.approx(82.5 * MBIT)
    assert size / bounds.tree_time(size, CLOCKWISE) == pytest.approx(10 * MBIT)


@given(networks(most=6))
def test_the_weakest_partition_is_the_weakest(rates: Matrix) -> None:
    tau, parts = bounds.weakest_partition(rates)
    assert sorted(node for part in parts for node in part) == list(range(len(rates)))
    assert near(tau, tau_of(rates, [list(part) for part in parts]))
    every = [p for p in partitions(list(range(len(rates)))) if len(p) > 1]
    assert near(tau, min(tau_of(rates, p) for p in every))


@given(networks(most=6))
def test_a_cut_bound_is_the_worst_cut(rates: Matrix) -> None:
    nodes = range(len(rates))
    worst = min(
        sum(rates[u][v] for u in part for v in nodes if v not in part)
        for size in range(1, len(rates))
        for part in combinations(nodes, size)
    )
    bound = bounds.cut_bound(100, rates)
    assert bound == math.inf if worst == 0 else bound == pytest.approx(100 / worst)


def test_a_flow_takes_back_what_was_sent_the_wrong_way() -> None:
    rates = [[0.0] * 7 for _ in range(7)]
    for u, v in ((0, 1), (1, 3), (3, 6), (0, 2), (2, 3), (1, 4), (4, 5), (5, 6)):
        rates[u][v] = 1.0  # 0-1-3-6 is found first, but 0-2-3-6 and 0-1-4-5-6 are two
    assert bounds.max_flow(rates, 0, 6) == 2


@given(networks(most=5))
def test_the_best_tree_and_the_best_ring_are_the_best(rates: Matrix) -> None:
    count = len(rates)
    best = 0.0
    for edges in combinations(combinations(range(count), 2), count - 1):
        reached = [0]
        for node in reached:
            near_by = [v if u == node else u for u, v in edges if node in (u, v)]
            reached += [n for n in near_by if n not in reached]
        if len(reached) == count:
            best = max(best, min(min(rates[u][v], rates[v][u]) for u, v in edges))
    assert bounds.tree_time(1, rates) == (1 / best if best else math.inf)
    part = 2 * (count - 1) / count
    ways = [
        [(order[k - 1], order[k]) for k in range(count)] for order in permutations(range(count))
    ]
    best = max(min(rates[u][v] for u, v in ring) for ring in ways)
    assert near(bounds.ring_time(1, rates), part / best if best else math.inf)
    if count > 2:
        both = max(
            min(rates[u][v] for u, v in ring) + min(rates[v][u] for u, v in ring) for ring in ways
        )
        assert near(bounds.ring_time(1, rates, True), part / both if both else math.inf)


@given(networks(most=5))
def test_no_packing_beats_a_bound_and_no_scheme_beats_the_packing(rates: Matrix) -> None:
    rate = packing(rates).rate
    for bound in (bounds.cut_bound(1, rates), bounds.partition_bound(1, rates)):
        assert rate * bound <= 1 + NEAR if bound < math.inf else near(rate, 0)
    for both_ways in (False, True):
        assert 1 / bounds.ring_time(1, rates, both_ways) <= rate + NEAR * 100
    assert 1 / bounds.tree_time(1, rates) <= rate + NEAR * 100


@given(networks(most=5, equal=True))
def test_with_equal_directions_packed_trees_reach_the_partition_bound(rates: Matrix) -> None:
    assert packing(rates).rate == pytest.approx(
        bounds.weakest_partition(rates)[0], rel=NEAR, abs=NEAR * 100
    )


@given(st.integers(3, 6), st.floats(1, 100))
def test_cliques_and_cycles(count: int, rate: float) -> None:
    nodes = range(count)
    clique = [[rate if u != v else 0.0 for v in nodes] for u in nodes]
    assert bounds.weakest_partition(clique)[0] == pytest.approx(count * rate / 2)
    assert packing(clique).rate == pytest.approx(count * rate / 2)
    cycle = [[rate if (u - v) % count in (1, count - 1) else 0.0 for v in nodes] for u in nodes]
    assert bounds.partition_bound(1, cycle) == pytest.approx(bounds.ring_time(1, cycle, True))
    assert bounds.ring_time(1, cycle) == pytest.approx(2 * bounds.ring_time(1, cycle, True))


@given(st.integers(2, 6), st.floats(1, 100))
def test_limits_of_nodes_and_of_a_channel(count: int, rate: float) -> None:
    mesh = [[1e6 if u != v else 0.0 for v in range(count)] for u in range(count)]
    limits = [rate] * count
    assert packing(mesh, limits, limits).rate == pytest.approx(
        1 / bounds.mesh_bound(1, count, rate)
    )
    channel = bounds.shared_channel_bound(1, count, rate)
    assert packing(mesh, shared=rate).rate == pytest.approx(1 / channel)
    assert bounds.shared_channel_bound(1, count, rate, through_access_point=True) == 2 * channel


@given(st.floats(1, 100), st.floats(1, 100))
def test_two_nodes(there: float, back: float) -> None:
    pair = [[0.0, there], [back, 0.0]]
    slower = min(there, back)
    assert bounds.cut_bound(1, pair) == pytest.approx(1 / slower)
    assert bounds.tree_time(1, pair) == pytest.approx(1 / slower)
    assert bounds.ring_time(1, pair, both_ways=True) == pytest.approx(1 / slower)
    assert packing(pair).rate == pytest.approx(slower)


def test_networks_without_links_or_of_one_node() -> None:
    lone, apart = [[0.0]], [[0.0, 0.0], [0.0, 0.0]]
    for bound in (bounds.cut_bound, bounds.partition_bound, bounds.tree_time, bounds.ring_time):
        assert bound(1, lone) == 0
        assert bound(1, apart) == math.inf
    assert bounds.weakest_partition(apart)[0] == 0
    assert packing(apart).rate == 0
    assert packing([[0, 5], [5, 0]], up=[0, 0]).rate == 0
    with pytest.raises(ValueError, match="fewer than two"):
        packing(lone)


def test_what_is_too_large_to_enumerate_is_refused() -> None:
    many = [[1.0] * 14 for _ in range(14)]
    with pytest.raises(ValueError, match="2 to 13 nodes only, not 14"):
        bounds.weakest_partition(many)
    with pytest.raises(ValueError, match="at most 9 nodes only, not 14"):
        bounds.ring_time(1, many)
    with pytest.raises(ValueError, match="not 1"):
        bounds.weakest_partition([[0.0]])


def test_a_dozen_nodes_in_two_rooms() -> None:
    chance = random.Random(3)
    nodes = range(12)
    rates = [[chance.uniform(50, 100) if u // 6 == v // 6 else 1.0 for v in nodes] for u in nodes]
    tau, parts = bounds.weakest_partition(rates)
    assert parts == (tuple(range(6)), tuple(range(6, 12)))
    assert tau == pytest.approx(36)
