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
# In rounds of many steps a single one is a mean of many, and the next may be long after. So the
# speed is that of the last round by this part, unless the job says otherwise: an exponentially
# weighted moving average, as AdapTrain has it. It counts for so many times as long as that round
# took.
LAST_ROUND_COUNTS = 0.8
ROUNDS_REMEMBERED = 4.0


class Gauges:
    """The trainer's speed, the times of the last iteration, rates and delays of all links.

    `exponent`: with which power of the micro-batches the time of a share grows. `rounds`: an
    iteration is a round of local steps, of which the last one counts by `last_counts` (above 0, up
    to 1) and all before by the rest.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        heartbeats: Heartbeats,
        exponent: float = 1.0,
        *,
        rounds: bool = False,
        last_counts: float = LAST_ROUND_COUNTS,
    ) -> None:
        self._clock = clock
        self._exponent = exponent
        self._rounds = rounds
        self._last_counts = last_counts
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
            pace = seconds / micro_batches**self._exponent
            if self._rounds and self._paces:
                last = self._paces.pop()
                pace = self._last_counts * pace + (1 - self._last_counts) * last
            self._paces.append(pace)
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
        counts_s = limits.PACE_SECONDS
        if self._rounds and self._compute_s is not None:
            counts_s = max(counts_s, ROUNDS_REMEMBERED * self._compute_s)
        if self._clock() - self._paced_at > counts_s:
            self._paces.clear()  # speed unknown: the planner then gives a share to measure it by
        least = 1 if self._rounds else LEAST_PACES
        pace = median(self._paces) if len(self._paces) >= least else None
        return Measured(incoming, pace, self._compute_s, self._sync_s)
