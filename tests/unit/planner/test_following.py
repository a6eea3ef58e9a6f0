"""Whether the parts of a model follow the devices' speeds: gauges and shares, round after round.

Devices measure what their part has taken as the first half of a round ends, which is when the next
round is planned. What parts really cost may differ from what the planner assumes.
"""

from __future__ import annotations

from statistics import median

import pytest

from edgeagent.dataplane.gauges import Gauges
from edgeagent.planner.shares import LEAST_GAIN_OF_ROUNDS, ShareRule, measured_shares
from edgeagent.planner.work_cost import WorkCost
from protocols.network.heartbeats import Heartbeats
from tests.unit.protocols.records import node

CELLS = 64
SLOW = (1.0, 1.93, 3.5, 2.85)  # V100, T4, A2, P4, as AdapTrain has them
BURST = 2.5
NODES = tuple(node(k) for k in range(1, 5))


class Room:
    """Four devices, of which parts really cost `truth`; the planner assumes `assumed`."""

    def __init__(self, truth: WorkCost, assumed: WorkCost) -> None:
        self.truth, self.assumed = truth, assumed
        self.now = 0.0
        self.gauges = [
            Gauges(lambda: self.now, Heartbeats(), self._assumed_units, rounds=True) for _ in NODES
        ]
        self.rule = ShareRule(assumed, least_gain=LEAST_GAIN_OF_ROUNDS)
        self.shares: tuple[int, ...] | None = None
        self._plan()
        self.seen: list[tuple[int, ...]] = []

    def _assumed_units(self, share: int) -> float:
        return self.assumed.units(share, CELLS)

    def _plan(self) -> None:
        paces = [gauges.read({}).micro_batch_s for gauges in self.gauges]
        speeds = {n: pace for n, pace in zip(NODES, paces, strict=True) if pace is not None}
        plan = measured_shares(NODES, CELLS, (), speeds, self.shares, rule=self.rule)
        self.planned = plan.shares

    def round(self, slow: tuple[float, ...] = SLOW) -> float:
        """Make a round; return which part of the time the devices computed."""
        self.shares = self.planned
        self.seen.append(self.shares)
        took = [
            self.truth.units(share, CELLS) * s for share, s in zip(self.shares, slow, strict=True)
        ]
        for gauges, share, seconds in zip(self.gauges, self.shares, took, strict=True):
            for part in (0.25, 0.5):  # of a first round the first report is no measure
                gauges.progressed(share, part, part * seconds)
        self._plan()
        self.now += max(took)
        for gauges, share, seconds in zip(self.gauges, self.shares, took, strict=True):
            gauges.contributed(share, seconds)
        return sum(took) / len(took) / max(took)


def test_a_device_that_is_too_slow_for_any_part_tries_a_small_one_now_and_then() -> None:
    cost = WorkCost(0.2)
    slow = (1.0, 1.0, 1.0, 4.0)
    room = Room(cost, cost)
    for _ in range(3):
        room.round(slow)
    took = []
    for _ in range(200):
        before = room.now
        room.round(slow)
        took.append(room.now - before)
    usual = median(took)
    tries = [shares[3] for shares in room.seen[3:] if shares[3]]
    assert tries
    assert set(tries) == {1}
    assert len(tries) < 30
    assert max(took) == pytest.approx(4.0 * cost.units(1, CELLS))
    assert sum(took) < 1.2 * 200 * usual
    for _ in range(100):
        room.round((1.0,) * 4)  # it has become as fast as the others
    assert min(room.seen[-1]) > 12


COSTS = [WorkCost(), WorkCost(0.09), WorkCost(0.0, 1.0), WorkCost(0.05, 0.4)]


@pytest.mark.parametrize("cost", COSTS)
def test_parts_are_right_from_the_second_round_and_one_round_after_a_change(
    cost: WorkCost,
) -> None:
    room = Room(cost, cost)
    first = room.round()
    assert first < 0.75, "equal parts"
    calm = [room.round() for _ in range(10)]
    assert min(calm) > 0.93
    busy = (BURST * SLOW[0], *SLOW[1:])
    burst = [room.round(busy) for _ in range(10)]
    assert burst[0] < 0.75
    assert min(burst[1:]) > 0.91
    again = [room.round() for _ in range(10)]
    assert min(again[1:]) > 0.91


@pytest.mark.parametrize("cost", COSTS)
def test_parts_do_not_change_while_speeds_do_not(cost: WorkCost) -> None:
    room = Room(cost, cost)
    for _ in range(30):
        room.round()
    assert len(set(room.seen[3:])) == 1


@pytest.mark.parametrize("truth", [WorkCost(0.05), WorkCost(0.09, 0.3), WorkCost(0.14)])
@pytest.mark.parametrize("times", [0.0, 0.5, 1.6])
def test_parts_come_right_although_the_cost_is_not_quite_as_assumed(
    truth: WorkCost, times: float
) -> None:
    """A convolution may take less time for a product than a matrix does, or more."""
    room = Room(truth, WorkCost(truth.fixed * times, truth.square))
    rounds = [room.round() for _ in range(30)]
    assert min(rounds[10:]) > 0.9
    assert len(set(room.seen[15:])) <= 2
