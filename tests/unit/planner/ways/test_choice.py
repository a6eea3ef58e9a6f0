"""One shallow tree or many ways: as the predicted time says, and without swinging."""

from __future__ import annotations

import math

import pytest

from edgeagent.planner.ways.choice import fits, plan_ways
from edgeagent.planner.ways.loads import latency_s, predicted_s
from edgeagent.planner.ways.network import Network
from edgeagent.planner.ways.packed import packed
from edgeagent.planner.ways.single import one
from edgeagent.planner.ways.way import Way
from tests.unit.planner.ways.overlays import all_pairs, overlay
from tests.variants import variants


def test_small_vectors_take_one_tree_and_large_ones_many_ways() -> None:
    network = all_pairs(9)
    small, large = plan_ways(network, 0.0, 4e3), plan_ways(network, 128e6, 256e3)
    assert len(small.ways) == 1
    assert "one tree rooted at" in small.reason
    assert len(large.ways) > 50
    assert "packed ways with at most 2 hops to a root" in large.reason
    assert "one tree would take" in large.reason


@pytest.mark.parametrize("seed", variants(range(3), long=range(8)))
@pytest.mark.parametrize("payload", [0.0, 3e5, 1e7])
def test_no_candidate_is_better(seed: int, payload: float) -> None:
    network = overlay(seed)
    plan = plan_ways(network, payload, 4e3)
    assert plan == plan_ways(network, payload, 4e3)
    assert fits(network, plan.ways)
    assert plan.floor_s <= plan.predicted_s == predicted_s(network, plan.ways, payload, 4e3)
    others = [one(network, payload, 4e3).ways, *packed(network, (1, 2, 3, network.count - 1))]
    for ways in others:
        if ways is not None:
            assert plan.predicted_s <= predicted_s(network, ways, payload, 4e3) * (1 + 1e-9)


def test_ways_in_force_stay_unless_others_save_enough() -> None:
    network = all_pairs(5)
    best = plan_ways(network, 1e7)
    assert plan_ways(network, 1e7, in_force=best.ways).ways == best.ways
    worse = [k * 0.05 for k in range(12)]  # of the traffic along one tree: worse and worse
    tree = one(network, 1e7).ways
    assert tree is not None
    kept = []
    for part in worse:
        mixed = (*best.ways, Way(tree[0].up, tree[0].down, 1 + int(128 * part / (1 - part))))
        plan = plan_ways(network, 1e7, in_force=mixed)
        saves = 1 - best.predicted_s / predicted_s(network, mixed, 1e7)
        assert (plan.ways == mixed) == (saves <= 0.15)
        assert ("ways in force kept, others would not save 15%" in plan.reason) == (saves <= 0.15)
        kept.append(plan.ways == mixed)
    assert kept[0]
    assert not kept[-1]


def test_ways_in_force_that_do_not_fit_go() -> None:
    network = all_pairs(5)
    best = plan_ways(network, 1e7)
    for unfit in ((), all_pairs_ways(4), (Way((0,) * 5, (0,) * 5),)):
        assert not fits(network, unfit)
        assert plan_ways(network, 1e7, in_force=unfit) == best


def all_pairs_ways(count: int) -> tuple[Way, ...]:
    ways = packed(all_pairs(count), (2,))[0]
    assert ways is not None
    return ways


def test_members_joined_one_way_only_and_members_alone() -> None:
    circle = Network({(0, 1): 1.0, (1, 2): 1.0, (2, 0): 1.0}, {}, (9.0,) * 3, (9.0,) * 3)
    plan = plan_ways(circle, 6.0)
    assert plan.predicted_s == pytest.approx(8.0, rel=0.02)
    assert "however many hops" in plan.reason
    alone = plan_ways(Network({}, {}, (1.0,), (1.0,)), 5.0)
    assert (alone.ways, alone.predicted_s) == ((Way((-1,), (-1,)),), 0.0)
    with pytest.raises(ValueError, match="do not connect"):
        plan_ways(Network({(0, 1): 1.0}, {}, (math.inf,) * 2, (math.inf,) * 2), 1.0)


def test_the_longest_hop_count_follows_from_delays() -> None:
    network = all_pairs(7)
    slow = Network(
        network.rates, dict.fromkeys(network.rates, 1.0), network.up_limits, network.down_limits
    )
    near, far = plan_ways(network, 3e6), plan_ways(slow, 3e6)
    assert latency_s(slow, far.ways) <= latency_s(slow, near.ways)
    assert latency_s(slow, far.ways) == 2.0
