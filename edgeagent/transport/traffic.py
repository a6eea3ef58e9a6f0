"""Which links of this device are busy at the same time, and how much they carry together.

The streams of the links say when they write and when something arrives. From that follow the marks
of what they send, and the stretches from which `protocols.network.node_limit` finds what limits the
device. What waits here and what has arrived at the other ends is asked of the system, because what
was written may wait in its buffers for long. Where the system does not tell, no limit of what this
device sends is found.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from edgeagent.transport.tcp_info import delivered_of
from protocols import limits
from protocols.network.stretch import Stretch, Together, Use

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.network.meter import Meter


@dataclass(frozen=True, slots=True)
class Stretches:
    """What this device sent, and received, over all its links together."""

    sent: tuple[Stretch, ...] = ()
    received: tuple[Stretch, ...] = ()


NO_STRETCHES = Stretches()
# A look that is so late shows that this device's processors are busy. So for a while they limit
# what its links carry, and not its radio.
LATE_S = 0.01
LATE_COUNTS_S = 0.2


class Flow:
    """Both directions of one link, as `Traffic` needs them."""

    def __init__(self, meter: Meter, transport: Callable[[], asyncio.Transport]) -> None:
        self.meter = meter
        self.received_bytes = 0  # payload bytes so far
        self.wrote_at = -1.0e9  # when something was written last
        self._transport = transport
        self._waits_since: float | None = None  # since when each look has found bytes to be sent

    def sends(self, now: float) -> bool:
        """Whether this device has something to send on this link, or had until very shortly ago."""
        return self._waits_since is not None or now - self.wrote_at < limits.SHARED_SECONDS

    def look(self, now: float, node: bytes) -> Use | None:
        """Return how this link to `node` sends, None if the system does not tell. The first bytes
        of what waits are acknowledged a round trip later, and count from then on."""
        transport = self._transport()
        delivered = delivered_of(transport)
        if delivered is None:
            self._waits_since = None
            return None
        if not (delivered.unsent_bytes or transport.get_write_buffer_size()):
            self._waits_since = None
            return Use(node, delivered.acknowledged_bytes, None)
        if self._waits_since is None:
            self._waits_since = now
        since = self._waits_since + delivered.round_trip_s
        return Use(node, delivered.acknowledged_bytes, since)

    def receiving(self, now: float, node: bytes) -> Use:
        """Return how this link receives from `node`."""
        return Use(node, self.received_bytes, self.meter.busy_since(now))


class Traffic:
    """The links of one device."""

    def __init__(self) -> None:
        self._flows: dict[bytes, Flow] = {}
        self._sent, self._received = Together(), Together()
        self._received_at = 0.0  # when the links were looked at last
        self._timer: asyncio.TimerHandle | None = None  # of the next look at what is sent
        self._look_at = 0.0  # when it is due
        self._late_at = -1.0e9  # when a look was late last

    def add(self, node: bytes, flow: Flow) -> None:
        """Begin to watch a link."""
        self._flows[node] = flow

    def remove(self, node: bytes, flow: Flow) -> None:
        """Watch a link no longer."""
        if self._flows.get(node) is flow:
            del self._flows[node]

    def others_send(self, flow: Flow, now: float) -> bool:
        """Whether this device sends over another link than `flow`, too."""
        return any(other is not flow and other.sends(now) for other in self._flows.values())

    def others_arrive(self, flow: Flow, now: float) -> bool:
        """Whether something arrives over another link than `flow`, too."""
        return any(f is not flow and f.meter.was_busy(now) for f in self._flows.values())

    def wrote(self, flow: Flow, now: float) -> None:
        """Something was written to `flow`. While links have something to send, all are looked at
        again and again."""
        flow.wrote_at = now
        if self._timer is None and len(self._flows) > 1:
            self._look_soon()

    def arrived(self, now: float) -> None:
        """Something has arrived over some link."""
        if now - self._received_at >= limits.STRETCH_LOOK_SECONDS and len(self._flows) > 1:
            self._received_at = now
            uses = [flow.receiving(now, node) for node, flow in self._flows.items()]
            self._received.look(now, uses, counts=now - self._late_at > LATE_COUNTS_S)

    def take(self) -> Stretches:
        """Return the stretches that were not returned yet."""
        return Stretches(self._sent.take(), self._received.take())

    def stop(self) -> None:
        """Look at nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._flows.clear()

    def _look_soon(self) -> None:
        loop = asyncio.get_running_loop()
        self._look_at = monotonic() + limits.STRETCH_LOOK_SECONDS
        self._timer = loop.call_later(limits.STRETCH_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._timer = None
        now = monotonic()
        found = [flow.look(now, node) for node, flow in self._flows.items()]
        uses = [use for use in found if use is not None]
        if now - self._look_at > LATE_S:
            self._late_at = now
        self._sent.look(now, uses, counts=now - self._late_at > LATE_COUNTS_S)
        if any(use.busy_since is not None for use in uses):
            self._look_soon()
