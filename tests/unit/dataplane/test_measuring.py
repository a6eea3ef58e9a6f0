"""Probes keep to their bounds, and gauges return what was measured."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from edgeagent.dataplane import probe as probing
from edgeagent.dataplane.gauges import Gauges
from edgeagent.transport.traffic import Stretches
from protocols import limits
from protocols.network.heartbeats import Heartbeats
from protocols.network.stretch import Stretch
from protocols.wire.bulk import BulkHeader, BulkKind

if TYPE_CHECKING:
    from edgeagent.transport.api import Link


class Wire:
    """A link that takes all bytes, or none after the first `room` bytes; what it takes leaves this
    device `rate` bytes/s fast."""

    def __init__(self, room: float = float("inf"), rate: float = float("inf")) -> None:
        self.room = room
        self.rate = rate
        self.taken = 0.0  # bytes that have not left this device yet, `at`
        self.at = time.monotonic()
        self.sent: list[BulkHeader] = []
        self.most_queued = 0
        self.most_waiting = 0
        self.bulk_queued = 0
        self.peer = SimpleNamespace(node=bytes(16))

    @property
    def bulk_waiting(self) -> int:
        now = time.monotonic()
        self.taken = max(0.0, self.taken - (now - self.at) * self.rate) if self.taken else 0.0
        self.at = now
        return self.bulk_queued + int(self.taken)

    def send_bulk(self, header: BulkHeader, payload: memoryview) -> None:
        assert len(payload) == header.length
        self.sent.append(header)
        if sum(h.length for h in self.sent) > self.room:
            self.bulk_queued += header.length
        else:
            self.taken += header.length
        self.most_queued = max(self.most_queued, self.bulk_queued)
        self.most_waiting = max(self.most_waiting, self.bulk_queued + int(self.taken))


def run(wire: Wire, delay_s: float = 0.0) -> None:
    asyncio.run(probing.probe(cast("Link", wire), delay_s))


def test_a_probe_is_as_long_as_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_PROBE_SECONDS", 2.0)  # a busy machine looks late and rarely
    wire = Wire()
    run(wire)
    assert sum(h.length for h in wire.sent) == limits.MAX_PROBE_BYTES
    assert [h.index for h in wire.sent] == list(range(len(wire.sent)))
    assert all(h.kind is BulkKind.PROBE for h in wire.sent)


def test_a_probe_gives_up_on_a_link_that_takes_nothing_and_queues_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probing, "LEAST_BYTES_SECONDS", 0.1)
    wire = Wire(room=0)
    run(wire)
    assert wire.most_queued == sum(h.length for h in wire.sent) == probing.FIRST_WAITING_BYTES


def test_a_slow_link_is_not_busy_with_a_probe_for_long() -> None:
    rate = 250e3  # bytes/s
    wire = Wire(rate=rate)
    began = time.monotonic()
    run(wire)
    took = time.monotonic() - began  # longer than `MAX_PROBE_SECONDS` on a busy machine
    most = rate * took + probing.FIRST_WAITING_BYTES + limits.PROBE_FRAME_BYTES
    assert limits.METER_HEAD_BYTES < sum(h.length for h in wire.sent) <= most


def test_a_probe_of_a_very_slow_link_sends_enough_to_be_measured() -> None:
    """At 0.8 Mbit/s the usual time is over before the bytes are that a receiver does not count."""
    wire = Wire(rate=100e3)
    run(wire, delay_s=0.01)
    sent = sum(h.length for h in wire.sent)
    assert probing.LEAST_BYTES <= sent <= probing.LEAST_BYTES + probing.FIRST_WAITING_BYTES


def test_a_fast_link_does_not_run_dry_during_a_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_PROBE_SECONDS", 2.0)  # a busy machine looks late and rarely
    wire = Wire(rate=1e9)
    run(wire)
    assert sum(h.length for h in wire.sent) == limits.MAX_PROBE_BYTES
    assert wire.most_waiting > probing.MOST_WAITING_BYTES - limits.PROBE_FRAME_BYTES


def test_a_receiver_measures_a_probe_of_a_fast_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the sender's look is late by: what it sends at once is enough for one sample."""
    monkeypatch.setattr(probing, "LOOK_SECONDS", 0.02)  # all is gone between two looks
    wire = Wire(rate=1e9)
    run(wire)
    assert sum(h.length for h in wire.sent) == limits.MAX_PROBE_BYTES
    assert wire.most_waiting >= limits.METER_MOST_HEAD_BYTES + limits.METER_BYTES


def test_a_probe_outlasts_the_slow_start_of_a_link_with_a_long_delay() -> None:
    began = time.monotonic()
    run(Wire(room=0), delay_s=0.005)
    least = limits.MAX_PROBE_SECONDS + 2 * 0.005 * limits.PROBE_ROUND_TRIPS
    assert least <= time.monotonic() - began
    assert least < limits.MOST_PROBE_SECONDS


def test_probes_take_turns() -> None:
    wires = [Wire(room=0), Wire(room=0)]

    async def both() -> None:
        prober = probing.Prober(lambda _node: None)
        first = asyncio.create_task(prober.probe(cast("Link", wires[0])))
        second = asyncio.create_task(prober.probe(cast("Link", wires[1])))
        await asyncio.sleep(0.02)
        assert wires[0].sent
        assert not wires[1].sent
        await asyncio.gather(first, second)

    asyncio.run(both())
    assert wires[1].sent


def link(rate: float | None, *, alone: bool, sent: int, received: int) -> SimpleNamespace:
    """Return what gauges read of a link."""
    return SimpleNamespace(
        incoming_rate=rate, rate_is_alone=alone, bulk_bytes_sent=sent, bulk_bytes_received=received
    )


def test_gauges_say_what_they_are_told() -> None:
    now = [100.0]
    beats = Heartbeats()
    found = Stretches(sent=(Stretch(1.0, ()),))
    gauges = Gauges(lambda: now[0], beats, stretches=lambda: found)
    assert gauges.read({}).micro_batch_s is None
    gauges.reduced()  # of a round to which nothing was contributed
    assert gauges.read({}).sync_s is None
    for seconds in (9.0, 0.4, 0.2):  # the first is no measure of the others
        gauges.contributed(4, seconds)
    assert gauges.read({}).micro_batch_s is None  # too few
    gauges.contributed(4, 4.0)
    gauges.contributed(0, 0.0)  # no share
    now[0] += 0.5
    gauges.reduced()
    beats.linked(0.0, b"b")
    beats.answered(b"b", 0.03)
    links: dict[bytes, Any] = {
        b"b": link(1e6, alone=True, sent=7, received=3),
        b"a": link(None, alone=False, sent=0, received=0),
    }
    read = gauges.read(links)
    assert read.micro_batch_s == pytest.approx(0.1)
    assert (read.compute_s, read.sync_s) == (0.0, 0.5)
    assert [(x.node, x.delay_s, x.rate, x.sent_bytes, x.alone) for x in read.incoming] == [
        (b"a", None, None, 0, False),
        (b"b", 0.015, 1e6, 7, True),
    ]
    assert (read.sent, read.received) == (found.sent, ())
    now[0] += limits.PACE_SECONDS
    assert gauges.read({}).micro_batch_s is None  # so long ago


def squared(share: int) -> float:
    return float(share**2)


def test_the_speed_in_rounds_is_mostly_that_of_the_last_one_and_counts_for_longer() -> None:
    now = [0.0]
    gauges = Gauges(lambda: now[0], Heartbeats(), squared, rounds=True)
    gauges.contributed(4, 9.0)  # the first is no measure
    assert gauges.read({}).micro_batch_s is None
    gauges.contributed(4, 16.0)
    assert gauges.read({}).micro_batch_s == pytest.approx(1.0)
    gauges.contributed(8, 192.0)
    assert gauges.read({}).micro_batch_s == pytest.approx(3.0), "it has jumped"
    gauges.contributed(8, 160.0)
    assert gauges.read({}).micro_batch_s == pytest.approx(0.8 * 2.5 + 0.2 * 3.0)
    now[0] += 4 * 160.0
    assert gauges.read({}).micro_batch_s is not None
    now[0] += 1.0
    assert gauges.read({}).micro_batch_s is None


def test_a_device_without_a_part_is_hoped_to_become_faster_little_by_little() -> None:
    now = [0.0]
    gauges = Gauges(lambda: now[0], Heartbeats(), rounds=True)
    gauges.contributed(4, 40.0)
    gauges.contributed(4, 40.0)
    gauges.contributed(0, 0.0)
    assert gauges.read({}).micro_batch_s == pytest.approx(10.0)
    now[0] = 159.0
    assert gauges.read({}).micro_batch_s == pytest.approx(10.0)
    now[0] = 161.0
    assert gauges.read({}).micro_batch_s == pytest.approx(7.0)
    now[0] = 321.0
    assert gauges.read({}).micro_batch_s == pytest.approx(4.9)
    gauges.contributed(1, 10.0)
    assert gauges.read({}).micro_batch_s == pytest.approx(10.0)


def test_a_speed_is_told_once_the_cost_is_known() -> None:
    gauges = Gauges(lambda: 0.0, Heartbeats(), is_priced=False, rounds=True)
    gauges.contributed(4, 40.0)
    gauges.contributed(4, 40.0)
    assert gauges.read({}).micro_batch_s is None
    gauges.priced()
    assert gauges.read({}).micro_batch_s is None, "that was measured in other units"
    gauges.contributed(4, 40.0)
    assert gauges.read({}).micro_batch_s == pytest.approx(10.0)


def test_the_plan_of_the_next_round_can_follow_the_running_one() -> None:
    now = [0.0]
    gauges = Gauges(lambda: now[0], Heartbeats(), squared, rounds=True)

    def pace() -> float | None:
        return gauges.read({}).micro_batch_s

    gauges.progressed(4, 0.25, 9.0)  # what is set up in the first steps is no measure
    assert pace() is None
    gauges.progressed(4, 0.5, 13.0)
    assert pace() == pytest.approx(1.0), "a quarter of the round took 4 s, so 16 s for 4 squared"
    gauges.contributed(4, 33.0)
    assert pace() == pytest.approx(2.0), "three quarters of it took 24 s"
    gauges.progressed(8, 0.5, 128.0)
    assert pace() == pytest.approx(4.0), "the device has become much slower"
    gauges.progressed(8, 0.75, 144.0)
    assert pace() == pytest.approx(3.0), "and is faster again"
    gauges.contributed(8, 160.0)
    assert pace() == pytest.approx(0.8 * 2.5 + 0.2 * 2.0), "reports within the round leave nothing"
    for share, part, seconds in ((0, 0.5, 1.0), (8, 0.0, 1.0), (8, 1.5, 1.0), (8, 0.5, 0.0)):
        gauges.progressed(share, part, seconds)
    gauges.progressed(8, 0.5, float("inf"))
    gauges.progressed(8, 0.5, float("nan"))
    assert pace() == pytest.approx(0.8 * 2.5 + 0.2 * 2.0), "nonsense is no measure"
    gauges.progressed(8, 0.5, 128.0)
    now[0] += 4 * 160.0 + 1.0
    assert pace() is None, "the trainer has said nothing for too long"


@pytest.mark.parametrize("reports", [[], [(1.0, 9.0)], [(0.5, 9.0)]])
def test_a_first_round_without_a_use_is_no_measure(reports: list[tuple[float, float]]) -> None:
    gauges = Gauges(lambda: 0.0, Heartbeats(), rounds=True)
    for part, seconds in reports:
        gauges.progressed(4, part, seconds)
    gauges.contributed(4, 9.0)  # all of it was setting up, as far as is known
    assert gauges.read({}).micro_batch_s is None
    gauges.contributed(4, 8.0)
    assert gauges.read({}).micro_batch_s == pytest.approx(2.0)


@pytest.mark.parametrize("counts", [1.0, 0.25])
def test_how_much_the_last_round_counts_can_be_chosen(counts: float) -> None:
    gauges = Gauges(lambda: 0.0, Heartbeats(), rounds=True, last_counts=counts)
    expected = 2.0
    gauges.contributed(1, 9.0)  # the first is no measure
    gauges.contributed(1, expected)
    for seconds in (4.0, 1.0, 7.0):
        gauges.contributed(2, 2 * seconds)
        expected = counts * seconds + (1 - counts) * expected
        assert gauges.read({}).micro_batch_s == pytest.approx(expected)
