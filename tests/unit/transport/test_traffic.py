"""Which links of a device are busy at the same time, and how much they carry together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest

from edgeagent.transport import traffic as traffic_module
from edgeagent.transport.tcp_info import Delivered
from edgeagent.transport.traffic import NO_STRETCHES, Flow, Traffic
from protocols import limits
from protocols.network.meter import Meter

if TYPE_CHECKING:
    from collections.abc import Callable

A, B = bytes([1]) * 32, bytes([2]) * 32
RATE = 2e6  # bytes/s of each link


class Wire:
    """A connection that sends at `RATE` as long as there is something to send."""

    def __init__(self) -> None:
        self.left = 0.0  # bytes that wait
        self.acknowledged = 0.0
        self.written = 0  # of those that wait, so many wait outside the system

    def get_write_buffer_size(self) -> int:
        return self.written

    def goes_on(self, seconds: float) -> None:
        sent = min(self.left, RATE * seconds)
        self.left -= sent
        self.acknowledged += sent


class Device:
    """Two links in a time that passes only in `passes`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.wires = [Wire(), Wire()]
        self.flows = [self._flow(wire) for wire in self.wires]
        self.traffic = Traffic()
        self._timers: list[tuple[float, Callable[[], None]]] = []
        monkeypatch.setattr(traffic_module, "monotonic", lambda: self.now)
        monkeypatch.setattr(traffic_module, "delivered_of", self._delivered)
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self)
        for node, flow in zip((A, B), self.flows, strict=True):
            self.traffic.add(node, flow)

    def _flow(self, wire: Wire) -> Flow:
        return Flow(Meter(), lambda: cast("asyncio.Transport", wire))

    def _delivered(self, wire: Wire) -> Delivered:
        return Delivered(int(wire.acknowledged), int(wire.left), 0.001)

    def call_later(self, seconds: float, what: Callable[[], None]) -> asyncio.TimerHandle:
        self._timers.append((self.now + seconds, what))
        return cast("asyncio.TimerHandle", self)

    def cancel(self) -> None:
        self._timers.clear()

    def writes(self, *sizes: int) -> None:
        """Queue so many bytes on each link."""
        for wire, flow, size in zip(self.wires, self.flows, sizes, strict=True):
            if size:
                wire.left += size
                self.traffic.wrote(flow, self.now)

    def passes(self, seconds: float) -> None:
        end = self.now + seconds
        while self._timers and self._timers[0][0] <= end:
            at, what = self._timers.pop(0)
            at = max(at, self.now)
            for wire in self.wires:
                wire.goes_on(at - self.now)
            self.now = at
            what()
        for wire in self.wires:
            wire.goes_on(end - self.now)
        self.now = end

    def looks(self) -> bool:
        """Return whether the links will be looked at again."""
        return bool(self._timers)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """Return a device with two links."""
    return Device(monkeypatch)


def test_what_two_links_send_together_is_measured_while_both_have_something_to_send(
    device: Device,
) -> None:
    device.writes(2_000_000, 2_000_000)
    device.passes(2.0)
    sent = device.traffic.take().sent
    assert len(sent) >= 2
    assert all(stretch.rate == pytest.approx(2 * RATE, rel=0.1) for stretch in sent)
    assert not device.looks(), "nothing waits any more"
    assert device.traffic.take() == NO_STRETCHES


def test_time_in_which_the_processors_are_busy_does_not_count(device: Device) -> None:
    device.writes(20_000_000, 20_000_000)
    for _ in range(50):
        device.now += 4 * traffic_module.LATE_S  # the loop does something else
        device.passes(limits.STRETCH_LOOK_SECONDS)
    assert device.traffic.take().sent == ()


def test_one_link_that_sends_makes_no_stretch_and_is_looked_at_until_it_is_done(
    device: Device,
) -> None:
    device.writes(2_000_000, 0)
    device.passes(0.9)
    assert device.traffic.others_send(device.flows[1], device.now)
    device.passes(0.2)
    assert not device.looks()
    assert not device.traffic.others_send(device.flows[1], device.now)
    assert device.traffic.take().sent == ()


def test_a_link_is_shared_while_another_sends(device: Device) -> None:
    first, second = device.flows
    assert not device.traffic.others_send(first, device.now)
    device.writes(400_000, 400_000)
    assert device.traffic.others_send(first, device.now)
    assert device.traffic.others_send(second, device.now)
    device.passes(0.15)
    assert device.traffic.others_send(first, device.now), "it was written long ago, and waits"
    device.passes(0.2)
    assert not device.traffic.others_send(first, device.now)


def test_what_waits_outside_the_system_counts_too(device: Device) -> None:
    device.wires[1].written = 1
    device.writes(400_000, 1)
    device.passes(0.1)
    assert device.traffic.others_send(device.flows[0], device.now)


def test_what_two_links_receive_together_is_measured(device: Device) -> None:
    for flow in device.flows:
        flow.meter.begins(device.now)
    assert device.traffic.others_arrive(device.flows[0], device.now)
    for _ in range(100):
        device.passes(0.01)
        for flow in device.flows:
            flow.received_bytes += 10_000
            device.traffic.arrived(device.now)
    found = device.traffic.take().received
    assert found
    assert all(stretch.rate == pytest.approx(2e6, rel=0.1) for stretch in found)
    for flow in device.flows:
        flow.meter.ends(device.now)
    device.passes(2 * limits.SHARED_SECONDS)
    assert not device.traffic.others_arrive(device.flows[0], device.now)


def test_where_the_system_tells_nothing_no_limit_of_what_is_sent_is_found(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic_module, "delivered_of", lambda _wire: None)
    device.writes(2_000_000, 2_000_000)
    device.passes(1.0)
    assert device.traffic.take().sent == ()


def test_a_link_that_is_gone_is_watched_no_more(device: Device) -> None:
    device.writes(2_000_000, 2_000_000)
    device.traffic.remove(A, device.flows[1])  # another link than the one with that node
    assert device.traffic.others_send(device.flows[1], device.now)
    device.traffic.remove(A, device.flows[0])
    assert not device.traffic.others_send(device.flows[1], device.now)
    device.traffic.stop()
    assert not device.looks()
    device.writes(1, 1)
    assert not device.looks(), "there is no second link"
    device.traffic.arrived(device.now)
    assert device.traffic.take() == NO_STRETCHES
