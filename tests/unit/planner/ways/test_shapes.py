"""Single trees, and the shapes of other programs: valid where they exist, refused in words."""

from __future__ import annotations

import math
import random
from itertools import pairwise, permutations, product

import pytest

from edgeagent.planner.ways.auxiliary import fapt_with_auxiliary
from edgeagent.planner.ways.fapt import fapt, shares
from edgeagent.planner.ways.loads import latency_s, loads, peak, predicted_s
from edgeagent.planner.ways.named import SHAPES, named
from edgeagent.planner.ways.network import Network
from edgeagent.planner.ways.ring import ring
from edgeagent.planner.ways.shapes import kary, mst, star
from edgeagent.planner.ways.single import one, widest
from edgeagent.planner.ways.way import Way, way_fault
from tests.unit.planner.ways.overlays import all_pairs, overlay

ALONE = Network({}, {}, (1.0,), (1.0,))


def linked(
    pairs: list[tuple[int, int]],
    count: int,
    rates: dict[int, float] | None = None,
    delay: float = 0.0,
) -> Network:
    """Return members with links both ways; rates of 10 bytes/s, or by the link's place."""
    each = {}
    for k, (u, v) in enumerate(pairs):
        each[u, v] = each[v, u] = (rates or {}).get(k, 10.0)
    return Network(each, dict.fromkeys(each, delay), (math.inf,) * count, (math.inf,) * count)


def chain(count: int) -> Network:
    return linked(list(pairwise(range(count))), count)


CIRCLE = Network({(0, 1): 1.0, (1, 2): 1.0, (2, 0): 1.0}, {}, (9.0,) * 3, (9.0,) * 3)


def trees(count: int) -> list[Way]:
    """Return every tree over a few members, from every root, the same up and down."""
    found = []
    for parents in product(range(-1, count), repeat=count):
        if way_fault(Way(parents, parents), all_pairs(count).rates) is None:
            found.append(Way(parents, parents))
    return found


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("seed", [*range(8), 15, 21])
def test_what_exists_is_valid_and_said(name: str, seed: int) -> None:
    network = overlay(seed)
    shaped = named(name, network, 1e6, 1e4)
    assert shaped == named(name, network, 1e6, 1e4)
    assert shaped.reason
    for way in shaped.ways or ():
        assert way_fault(way, network.rates) is None
        assert len(way.up) == network.count
    if name in ("packed", "one", "mst", "fapt", "fapt-aux"):
        assert shaped.ways


@pytest.mark.parametrize("name", SHAPES)
def test_members_that_are_alone_or_divided(name: str) -> None:
    assert named(name, ALONE, 1e6).ways == (Way((-1,), (-1,)),)
    with pytest.raises(ValueError, match="do not connect"):
        named(name, Network({(0, 1): 1.0}, {}, (1.0, 1.0), (1.0, 1.0)), 1e6)


@pytest.mark.parametrize("name", ["one", "mst", "fapt", "fapt-aux"])
def test_trees_used_both_ways_need_links_both_ways(name: str) -> None:
    shaped = named(name, CIRCLE, 1e6)
    assert shaped.ways is None
    assert "both ways do not connect all 3 members" in shaped.reason


def test_a_name_that_is_none() -> None:
    with pytest.raises(ValueError, match="no trees are called 'bush'; there are packed, one"):
        named("bush", CIRCLE, 1e6)


# One tree


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("payload", [0.0, 2e5, 2e7])
def test_the_single_tree_is_nearly_the_best_of_all(seed: int, payload: float) -> None:
    chance = random.Random(seed)
    network = all_pairs(4, seed, limited=bool(seed % 2))
    delays = {ends: chance.uniform(1e-3, 0.1) for ends in network.rates}
    network = Network(network.rates, delays, network.up_limits, network.down_limits)
    ways = one(network, payload, 1e4).ways
    assert ways is not None
    best = min(predicted_s(network, [way], payload, 1e4) for way in trees(4))
    ours = predicted_s(network, ways, payload, 1e4)
    assert best * (1 - 1e-9) <= ours <= best * 1.15


def test_a_small_vector_takes_the_shallow_tree_and_a_large_one_the_fast_one() -> None:
    network = linked([(0, 1), (1, 2), (2, 3), (0, 2), (0, 3)], 4, {3: 1.0, 4: 1.0}, delay=1.0)
    small, large = one(network, 0.0).ways, one(network, 1e6).ways
    assert small is not None
    assert large is not None
    assert (latency_s(network, small), peak(network, large)) == (2.0, 0.1)
    assert latency_s(network, large) == 4.0


def test_a_member_that_sends_little_has_few_neighbours() -> None:
    base = all_pairs(6)
    even = dict.fromkeys(base.rates, 10.0)
    limits = (5.0, *(math.inf,) * 5)
    ways = one(Network(even, {}, limits, (math.inf,) * 6), 1e6).ways
    assert ways is not None
    assert sum(loads(6, ways)[0]) == 1.0
    all_limited = Network(even, {}, (20.0,) * 6, (20.0,) * 6)
    ways = one(all_limited, 1e6).ways
    assert ways is not None
    assert peak(all_limited, ways) == pytest.approx(0.1), "a chain, nobody has three neighbours"


def test_widest_is_the_bottleneck_of_the_best_tree() -> None:
    for seed in range(6):
        network = all_pairs(4, seed)
        assert widest(network) == pytest.approx(min(peak(network, [way]) for way in trees(4)))
    assert widest(CIRCLE) == math.inf


def test_many_members_are_planned_from_the_roots_that_look_best() -> None:
    network = all_pairs(48, near=8)
    ways = one(network, 1e6).ways
    assert ways is not None
    assert way_fault(ways[0], network.rates) is None


# Star, k-ary tree, spanning tree


def test_the_star_has_the_fastest_hub() -> None:
    network = linked([(0, 1), (0, 2), (1, 2)], 3, {0: 1.0, 1: 5.0, 2: 5.0})
    assert star(network).ways == (Way((2, 2, -1), (2, 2, -1)),)
    refused = star(chain(4))
    assert refused.ways is None
    assert "there is no star" in refused.reason


def test_the_kary_tree_is_balanced_or_refused() -> None:
    for count, arity, depth in ((7, 2, 2), (8, 2, 3), (4, 3, 1), (5, 1, 4)):
        ways = kary(all_pairs(count), arity).ways
        assert ways is not None
        parents = ways[0].up
        assert max(parents.count(v) for v in range(count)) <= arity
        assert latency_s(all_pairs(count), ways) == pytest.approx(2 * depth * 0.03)
    refused = kary(chain(7))
    assert refused.ways is None
    assert "no tree of depth 2 with at most 2 children each" in refused.reason
    with pytest.raises(ValueError, match="at least one child, not 0"):
        kary(chain(3), 0)


@pytest.mark.parametrize("seed", range(6))
def test_the_spanning_tree_has_the_greatest_sum_of_rates(seed: int) -> None:
    network = all_pairs(4, seed)

    def total(way: Way) -> float:
        return sum(float(network.slower[v, p]) for v, p in enumerate(way.up) if p >= 0)

    ways = mst(network).ways
    assert ways is not None
    assert total(ways[0]) == pytest.approx(max(map(total, trees(4))))


# Ring


@pytest.mark.parametrize("seed", range(6))
def test_the_ring_is_the_fastest(seed: int) -> None:
    network = all_pairs(5, seed)
    rate = network.rates
    slowest = max(
        min(rate[a, b] for a, b in pairwise((0, *rest, 0))) for rest in permutations(range(1, 5))
    )
    ways = ring(network).ways
    assert ways is not None
    assert [way.root for way in ways] == list(range(5))
    assert peak(network, ways) == pytest.approx(2 * 4 / 5 / slowest)
    load = loads(5, ways)
    assert (load > 0).sum() == 5, "one link each"


def test_where_there_is_no_ring() -> None:
    assert "there is no ring along the links of 5" in ring(chain(5)).reason
    assert "no ring was found in a bounded search" in ring(chain(14)).reason
    hourglass = linked([(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 2)], 5)
    assert ring(hourglass).ways is None


def test_rings_of_many_are_searched() -> None:
    network = all_pairs(30, near=6)
    ways = ring(network).ways
    assert ways is not None
    assert all(way_fault(way, network.rates) is None for way in ways)
    assert (loads(30, ways) > 0).sum() == 30
    # Members 0 to 12 in a clique, of which only 0 has a link to 13: the search has to give up.
    pairs = [(u, v) for u in range(13) for v in range(u)]
    assert ring(linked([*pairs, (13, 0)], 14)).ways is None


# NetStorm


def test_roots_have_shares_by_quality() -> None:
    #            0 -10- 1 -10- 2: delays 0.2, 0.1, 0.2
    ways = fapt(chain(3)).ways
    assert ways is not None
    assert [(way.root, way.weight) for way in ways] == [(0, 32), (1, 64), (2, 32)]
    assert ways[0].up == ways[0].down == (-1, 0, 1)
    best = fapt(chain(3), roots=1).ways
    assert best == (Way((1, -1, 1), (1, -1, 1), 128),)
    with pytest.raises(ValueError, match="at least one root, not 0"):
        fapt(chain(3), 0)


def test_paths_go_round_a_slow_link() -> None:
    network = linked([(0, 1), (1, 2), (0, 2)], 3, {2: 1.0})
    ways = fapt(network).ways
    assert ways is not None
    assert all(way.up[0] != 2 and way.up[2] != 0 for way in ways)


def test_shares_are_rounded_to_the_whole() -> None:
    assert shares([1, 1, 1], 128) == [43, 43, 42]
    assert shares([1000, 1], 128) == [128, 0]
    starved = linked([(0, 1), (1, 2), (2, 3)], 4, {2: 1e-4})
    assert sum(way.weight for way in fapt(starved).ways or ()) == 128


def test_a_root_without_a_share_has_no_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeagent.planner.ways.fapt.PARTS", 1)
    ways = fapt(chain(3)).ways
    assert ways is not None
    assert [(way.root, way.weight) for way in ways] == [(1, 1)]


# Auxiliary paths


def test_auxiliary_paths_go_over_links_that_no_path_used_before() -> None:
    #      0 -10- 1 -10- 2, and 0 -1- 2: only the second layer uses the slow link.
    network = linked([(0, 1), (1, 2), (0, 2)], 3, {2: 1.0})
    shaped = fapt_with_auxiliary(network)
    assert shaped.reason == (
        "fastest aggregation paths from 3 roots with auxiliary paths, 5 trees in 2 layers, "
        "the best root member 1"
    )
    # From the middle no unused link leads anywhere, so its second tree is its first one again. What
    # takes the slow link spares one of the fast ones, which are ten times as fast.
    weights = {way.up: way.weight for way in shaped.ways or ()}
    assert weights[1, -1, 1] == 64
    assert weights[-1, 0, 1] + weights[-1, 0, 0] == weights[1, 2, -1] + weights[2, 2, -1] == 32
    assert weights[-1, 0, 0] + weights[2, 2, -1] == 12


@pytest.mark.parametrize("seed", range(8))
def test_auxiliary_paths_use_every_link_and_load_the_busiest_less(seed: int) -> None:
    network = all_pairs(7, seed, limited=False)
    plain, more = fapt(network).ways, fapt_with_auxiliary(network).ways
    assert plain is not None
    assert more is not None
    assert sum(way.weight for way in more) == 128
    assert used_links(plain) < used_links(more)
    assert peak(network, more) < peak(network, plain)


def used_links(ways: tuple[Way, ...]) -> set[tuple[int, int]]:
    return {(v, parent) for way in ways for v, parent in enumerate(way.up) if parent >= 0}
