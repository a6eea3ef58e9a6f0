"""The load model against figures worked out by hand, and the bounds against each other."""

from __future__ import annotations

import math

import pytest

from edgeagent.planner.ways.loads import (
    floor_s,
    latency_s,
    least_peak,
    loads,
    peak,
    predicted_s,
)
from edgeagent.planner.ways.network import Network
from edgeagent.planner.ways.packed import packed
from edgeagent.planner.ways.shapes import star
from edgeagent.planner.ways.way import Way
from tests.unit.planner.ways.overlays import overlay

FREE = (math.inf,) * 3
LINE = Network(
    {(0, 1): 10.0, (1, 0): 20.0, (1, 2): 40.0, (2, 1): 5.0},
    {(0, 1): 1.0, (1, 0): 2.0, (1, 2): 4.0, (2, 1): 8.0},
    FREE,
    FREE,
)
CHAIN = Way((1, 2, -1), (1, 2, -1))  # 0 to 1 to 2 and back
MIDDLE = Way((1, -1, 1), (1, -1, 1), 3)


def test_each_way_loads_its_links_by_its_share() -> None:
    found = loads(3, [CHAIN, MIDDLE])
    assert found.tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    assert loads(3, [CHAIN]).tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    directed = loads(3, [Way((-1, 0, 0), (-1, 2, 0))])
    assert directed.tolist() == [[0, 0, 1], [1, 0, 0], [1, 1, 0]]


def test_the_slowest_link_sender_or_receiver_sets_the_pace() -> None:
    assert peak(LINE, [MIDDLE]) == pytest.approx(1 / 5)
    sender = Network(LINE.rates, {}, (math.inf, 4.0, math.inf), FREE)
    assert peak(sender, [MIDDLE]) == pytest.approx(2 / 4)
    receiver = Network(LINE.rates, {}, FREE, (math.inf, 3.0, math.inf))
    assert peak(receiver, [MIDDLE]) == pytest.approx(2 / 3)
    even = dict.fromkeys([(u, v) for u in range(3) for v in range(3) if u != v], 10.0)
    split = Way((-1, 0, 0), (-1, 0, 1))  # 0 sends once and receives twice, 1 sends twice
    limits = (3.0, math.inf, math.inf)
    assert peak(Network(even, {}, limits, FREE), [split]) == pytest.approx(1 / 3)
    assert peak(Network(even, {}, FREE, limits), [split]) == pytest.approx(2 / 3)
    assert peak(LINE, [Way((2, 2, -1), (2, 2, -1))]) == math.inf  # no link from 0 to 2


def test_latency_is_the_slowest_way_up_and_down() -> None:
    assert latency_s(LINE, [MIDDLE]) == 8 + 4
    assert latency_s(LINE, [CHAIN]) == (1 + 4) + (8 + 2)
    assert latency_s(LINE, [MIDDLE, CHAIN]) == 15
    assert latency_s(LINE, [MIDDLE], 40.0) == (8 + 40 / 5) + (4 + 40 / 40)
    assert latency_s(LINE, [MIDDLE], 80.0) == pytest.approx((8 + 80 / 5) + (2 + 80 / 20))
    assert predicted_s(LINE, [CHAIN], 100.0) == 100 / 5 + 15


def test_nothing_to_send_takes_no_time() -> None:
    alone = Network({}, {}, (1.0,), (1.0,))
    assert peak(alone, [Way((-1,), (-1,))]) == 0 == latency_s(alone, [Way((-1,), (-1,))])
    assert latency_s(LINE, []) == 0
    assert least_peak(alone) == 0 == floor_s(alone, 5.0)


def test_least_peak_knows_members_and_all_together() -> None:
    assert least_peak(LINE) == pytest.approx(1 / 5)  # member 2 sends 5 bytes/s
    even = Network(
        dict.fromkeys([(u, v) for u in range(3) for v in range(3) if u != v], 1.0), {}, FREE, FREE
    )
    assert least_peak(even) == pytest.approx(4 / 6)  # four messages over six links
    assert least_peak(Network({(0, 1): 1.0}, {}, FREE[:2], FREE[:2])) == math.inf


def test_floor_counts_rates_and_delays() -> None:
    assert floor_s(LINE, 0.0) == 8 + 4  # around member 1
    assert floor_s(LINE, 1000.0) == 1000 / 5 + 1
    assert floor_s(LINE, 1000.0, 0.5) == 1000 * 0.5 + 1
    with pytest.raises(ValueError, match="do not connect"):
        floor_s(Network({(0, 1): 1.0}, {}, FREE[:2], FREE[:2]), 1.0)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("payload", [0.0, 1e5, 1e7])
def test_no_ways_are_below_the_floor(seed: int, payload: float) -> None:
    network = overlay(seed)
    plans = [packed(network, (network.count,))[0], star(network).ways]
    for ways in plans:
        if ways is not None:
            assert peak(network, ways) >= least_peak(network) * (1 - 1e-9)
            assert predicted_s(network, ways, payload) >= floor_s(network, payload) * (1 - 1e-9)
