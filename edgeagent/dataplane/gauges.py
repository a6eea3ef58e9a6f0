"""What this agent measures of its links and of itself, read once per heartbeat.

This module reads clocks and counters and draws no conclusions from them, because
`protocols.network.monitor` does that and can be tested without a clock.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import TYPE_CHECKING

from protocols import limits
from protocols.events import Incoming, Measured

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from edgeagent.transport.api import Link
    from protocols.network.heartbeats import Heartbeats


LEAST_PACES = 3  # iterations to measure before the speed is reported; single ones vary too much


class Gauges:
    """The trainer's speed, the times of the last iteration, rates and delays of all links.

    `exponent`: with which power of the micro-batches the time of a share grows.
    """

    def __init__(
        self, clock: Callable[[], float], heartbeats: Heartbeats, exponent: float = 1.0
    ) -> None:
        self._clock = clock
        self._exponent = exponent
        self._heartbeats = heartbeats
        self._paces: deque[float] = deque(maxlen=limits.METER_SAMPLES)  # seconds of one micro-batch
        self._paced_at = 0.0  # when the last of them was measured
        self._warm = False  # the first iteration is not counted: memory and kernels are set up
        self._contributed_at: float | None = None
        self._compute_s: float | None = None
        self._sync_s: float | None = None

    def contributed(self, micro_batches: int, seconds: float) -> None:
        """Note that the trainer has computed `micro_batches` in `seconds`."""
        now = self._clock()
        self._contributed_at, self._compute_s = now, seconds
        if not micro_batches or seconds <= 0:
            return
        if self._warm:
            self._paces.append(seconds / micro_batches**self._exponent)
            self._paced_at = now
        self._warm = True

    def reduced(self) -> None:
        """Note that the round is complete on this node."""
        if self._contributed_at is not None:
            self._sync_s = max(0.0, self._clock() - self._contributed_at)

    def read(self, links: Mapping[bytes, Link]) -> Measured:
        """Return everything measured: of each link, and of this device's own speed."""
        incoming = tuple(
            Incoming(
                node,
                self._heartbeats.delay(node),
                link.incoming_rate,
                link.bulk_bytes_sent,
                link.bulk_bytes_received,
            )
            for node, link in sorted(links.items())
        )
        if self._clock() - self._paced_at > limits.PACE_SECONDS:
            self._paces.clear()  # speed unknown: the planner then gives a share to measure it by
        pace = median(self._paces) if len(self._paces) >= LEAST_PACES else None
        return Measured(incoming, pace, self._compute_s, self._sync_s)
