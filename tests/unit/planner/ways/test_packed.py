"""Packed ways beside the linear program, and what holds for every plan."""

from __future__ import annotations

import itertools
import math
import random
import statistics

import numpy as np
import pytest

from edgeagent.planner.ways.growth import bettered, grown, levelled
from edgeagent.planner.ways.loads import peak
from edgeagent.planner.ways.network import Network
from edgeagent.planner.ways.packed import packed
from edgeagent.planner.ways.way import PARTS, Way, way_fault
from tests.unit.planner.ways.overlays import all_pairs, bound, overlay


def hops(way: Way) -> int:
    """Return the most hops between a member and the root, by following parents."""
    found = 0
    for parents in (way.up, way.down):
        for member in range(len(parents)):
            steps = 0
            while parents[member] != -1:
                member, steps = parents[member], steps + 1
            found = max(found, steps)
    return found


def least(network: Network) -> float:
    """Return the least peak of all depths."""
    plans = packed(network, (1, 2, 3, network.count))
    return min(peak(network, ways) for ways in plans if ways is not None)


def test_plans_reach_the_linear_program() -> None:
    pytest.importorskip("scipy")
    ratios = []
    for seed in range(24):
        network = overlay(seed)
        ratios.append(least(network) / bound(network))
    assert min(ratios) > 1 - 1e-6, "a plan beats its bound"
    assert statistics.median(ratios) <= 1.03
    assert max(ratios) <= 1.10


@pytest.mark.parametrize("seed", range(16))
def test_every_plan_is_valid_and_as_shallow_as_asked(seed: int) -> None:
    network = overlay(seed)
    farthest = [max(network.hops[:, r].max(), network.hops[r].max()) for r in range(network.count)]
    depths = (1, 2, 3, network.count)
    for depth, ways in zip(depths, packed(network, depths), strict=True):
        assert (ways is None) == (min(farthest) > depth)
        if ways is not None:
            assert sum(way.weight for way in ways) == PARTS
            for way in ways:
                assert way_fault(way, network.rates) is None
                assert hops(way) <= depth


def test_equal_arguments_give_equal_plans() -> None:
    network = overlay(13)
    turned = Network(
        dict(reversed(network.rates.items())),
        dict(reversed(network.delays.items())),
        network.up_limits,
        network.down_limits,
    )
    plans = packed(network, (2, 10))
    assert packed(turned, (2, 10)) == plans
    assert packed(network, (2,))[0] == plans[0], "plans beside it change nothing"


def test_one_and_two_members() -> None:
    assert packed(Network({}, {}, (1.0,), (1.0,)), (1, 5)) == ((Way((-1,), (-1,)),),) * 2
    pair = Network({(0, 1): 3.0, (1, 0): 5.0}, {}, (9.0, 9.0), (9.0, 9.0))
    ways = packed(pair, (1,))[0]
    assert ways is not None
    assert peak(pair, ways) == pytest.approx(1 / 3, rel=0.02)


def test_divided_members_have_no_ways() -> None:
    with pytest.raises(ValueError, match="do not connect"):
        packed(Network({(0, 1): 1.0}, {}, (1.0, 1.0), (1.0, 1.0)), (1,))


def test_no_depth_that_is_enough() -> None:
    line = Network(
        {e: 1.0 for k in range(4) for e in ((k, k + 1), (k + 1, k))}, {}, (1.0,) * 5, (1.0,) * 5
    )
    assert packed(line, (1,)) == (None,)


def test_links_of_very_different_rates_are_still_links() -> None:
    rates = {(0, 1): 1.0, (1, 0): 1.0, (1, 2): 1e10, (2, 1): 1e10, (2, 0): 1e10}
    network = Network(rates, {}, (1e12,) * 3, (1.0, 1e12, 1e12))
    (ways,) = packed(network, (2,))
    assert ways is not None
    assert all(way_fault(way, rates) is None for way in ways)


def test_one_direction_is_enough_for_one_tree() -> None:
    round_about = Network({(0, 1): 1.0, (1, 2): 1.0, (2, 0): 1.0}, {}, (9.0,) * 3, (9.0,) * 3)
    (ways,) = packed(round_about, (2,))
    assert ways is not None
    assert peak(round_about, ways) == pytest.approx(4 / 3, rel=0.02)


# Growing


def price(lengths: np.ndarray[tuple[int, ...], np.dtype[np.float64]], parents: list[int]) -> float:
    return float(sum(lengths[p, v] for v, p in enumerate(parents) if v != p))


def test_moves_only_gain_and_find_the_cheapest_of_four() -> None:
    chance, exact, cases = random.Random(5), 0, 60
    for case in range(cases):
        lengths = np.array([[chance.random() for _ in range(4)] for _ in range(4)])
        np.fill_diagonal(lengths, math.inf)
        depth = np.array([2 + case % 2])
        (first,), trees = grown(lengths[None], np.array([0]), np.array([0]), depth)
        assert first == pytest.approx(price(lengths, trees[0].tolist()))
        better = bettered(lengths[None], trees, depth, 9)[0].tolist()
        assert price(lengths, better) <= first + 1e-9
        every = [
            price(lengths, [0, *parents])
            for parents in itertools.product(range(4), repeat=3)
            if way_fault(Way((-1, *parents), (-1, *parents)), all_pairs(4).rates) is None
            and hops(Way((-1, *parents), (-1, *parents))) <= depth[0]
        ]
        ours = price(lengths, better)
        assert ours >= min(every) - 1e-9
        exact += ours < min(every) + 1e-9
    assert exact >= 0.85 * cases


def test_a_tree_that_meets_the_limit_is_levelled_instead() -> None:
    far = math.inf
    #            0    1    2    3: the hub 1 is cheap by way of 2 only, and alone has 3
    lengths = np.array([[far, 9, 1, far], [9, far, 1, 1], [1, 1, far, far], [far, 1, far, far]])
    zero, two = np.array([0]), np.array([2])
    assert grown(lengths[None], zero, zero, two)[0] == math.inf
    found, parents = levelled(lengths[None], np.array([[0, 1, 1, 2]]), zero, two)
    assert (found.tolist(), parents.tolist()) == ([11.0], [[0, 0, 0, 1]])
    assert levelled(lengths[None], np.array([[0, 1, 1, 2]]), zero, zero + 1)[0] == math.inf
