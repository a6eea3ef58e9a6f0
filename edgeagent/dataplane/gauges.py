"""What this agent measures of its links and of itself, read once per heartbeat.

This module reads clocks and counters and draws no conclusions from them, because
`protocols.network.monitor` does that and can be tested without a clock.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median
from typing import TYPE_CHECKING

from edgeagent.transport.traffic import NO_STRETCHES
from protocols import limits
from protocols.events import Incoming, Measured

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from edgeagent.transport.api import Link
    from edgeagent.transport.traffic import Stretches
    from protocols.network.heartbeats import Heartbeats


LEAST_PACES = 3  # iterations to measure before the speed is reported; single ones vary too much
# In rounds of many steps a single one is a mean of many, and the next may be long after. So the
# speed is that of the last round by this part, unless the job says otherwise: an exponentially
# weighted moving average, as AdapTrain has it. It counts for so many times as long as that round
# took.
LAST_ROUND_COUNTS = 0.8
ROUNDS_REMEMBERED = 4.0
# Noise never changes the speed of a round by so large a part. Where it does change so much, as when
# another program begins to compute, what was before says nothing, and the last round alone counts,
# unless the job wants more of the rounds before it.
JUMP = 0.3
# A device that is too slow for any part of a round gives no measure. If its speed were forgotten
# like others, it would get a usual part after that time, and all would wait for it. So it is taken
# to be so much faster after each such time, until it gets a small part and is measured anew.
IDLE_HOPE = 0.7


class Gauges:
    """The trainer's speed, the times of the last iteration, rates and delays of all links.

    `cost`: what a share of so many micro-batches costs, in units of the speed, which is told once
    the cost `is_priced`: known, and the same on all devices. `rounds`: an
    iteration is a round of local steps, of which the last one counts by `last_counts` (above 0, up
    to 1) and all before by the rest. The plan of a round is made while the one before is computed,
    so the running round is then the last one, as far as it is computed.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        heartbeats: Heartbeats,
        cost: Callable[[int], float] = float,
        *,
        is_priced: bool = True,
        rounds: bool = False,
        last_counts: float = LAST_ROUND_COUNTS,
        stretches: Callable[[], Stretches] = lambda: NO_STRETCHES,
    ) -> None:
        self._clock = clock
        self._stretches = stretches
        self._cost = cost
        self._is_priced = is_priced
        self._rounds = rounds
        self._last_counts = last_counts
        self._heartbeats = heartbeats
        self._paces: deque[float] = deque(maxlen=limits.METER_SAMPLES)  # seconds of one micro-batch
        self._paced_at = 0.0  # when the last of them was measured
        # Memory and kernels are set up in the first iteration, so that is not counted: of a first
        # round what comes before the first report of its progress, which `_set_up` is.
        self._warm = False
        self._set_up: tuple[float, float] | None = None  # part of the round, seconds
        self._running: float | None = None  # seconds of one micro-batch in the running round
        self._contributed_at: float | None = None
        self._compute_s: float | None = None
        self._work_s = 0.0  # what the last share took that was none of nothing
        self._is_idle = False  # the last share was nothing, so the speed is an old one
        self._sync_s: float | None = None

    def progressed(self, share: int, part: float, seconds: float) -> None:
        """Note that the trainer has computed `part` (0 to 1) of its `share` micro-batches of the
        running round in `seconds`."""
        if not (share and 0 < part <= 1 and 0 < seconds < math.inf):
            return
        if not self._warm and self._set_up is None:
            self._set_up = part, seconds
            return
        part_before, seconds_before = self._set_up or (0.0, 0.0)
        if part > part_before and seconds > seconds_before:
            whole = (seconds - seconds_before) / (part - part_before)
            self._running = whole / self._cost(share)
            self._paced_at = self._clock()

    def contributed(self, micro_batches: int, seconds: float) -> None:
        """Note that the trainer has computed `micro_batches` in `seconds`."""
        now = self._clock()
        self._contributed_at, self._compute_s = now, seconds
        self._running = None
        if not micro_batches or seconds <= 0:
            self._is_idle = not micro_batches
            return
        self._work_s = seconds
        part, before = self._set_up or (0.0, 0.0)
        if (self._warm or self._set_up) and part < 1 and seconds > before:
            pace = (seconds - before) / (1 - part) / self._cost(micro_batches)
            if self._rounds and self._paces:
                before = self._paces.pop()
                pace = pace if self._is_idle else self._average(pace, before)
            self._paces.append(pace)
            self._paced_at = now
        self._is_idle = False
        self._warm, self._set_up = True, None

    def priced(self) -> None:
        """Note that the cost of a share is known from now on; what was measured before is of no
        use, because other devices count it in other units."""
        self._paces.clear()
        self._running = None
        self._is_priced = True

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
                link.rate_is_alone,
            )
            for node, link in sorted(links.items())
        )
        counts_s = limits.PACE_SECONDS
        if self._rounds:
            counts_s = max(counts_s, ROUNDS_REMEMBERED * self._work_s)
        times = max(0, math.ceil((self._clock() - self._paced_at) / counts_s) - 1)
        if times and not (self._rounds and self._is_idle):
            # Speed unknown: the planner then gives a share to measure it by.
            self._paces.clear()
            self._running = None
        least = 1 if self._rounds else LEAST_PACES
        pace = median(self._paces) if len(self._paces) >= least else None
        if self._running is not None:
            known = None if self._is_idle else pace
            pace = self._running if known is None else self._average(self._running, known)
        elif pace is not None and self._rounds and self._is_idle:
            pace *= IDLE_HOPE**times
        speed = pace if self._is_priced else None
        found = self._stretches()
        return Measured(incoming, speed, self._compute_s, self._sync_s, found.sent, found.received)

    def _average(self, last: float, before: float) -> float:
        if self._last_counts >= LAST_ROUND_COUNTS and abs(last - before) > JUMP * before:
            return last
        return self._last_counts * last + (1 - self._last_counts) * before
