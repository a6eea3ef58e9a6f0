"""Which neighbours have been silent for too long.

A neighbour counts as silent if nothing has arrived from it for a time-out. The time-out grows with
the delay and the jitter that were measured to it. Only time in which this device was awake counts,
because a device that slept has heard nobody, which says nothing about the others.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from protocols import limits

# The weight of the newest answer in the mean round trip, and in its mean deviation, and how many
# deviations the time-out allows for: the constants of RFC 6298.
GAIN = 1 / 8
DEVIATION_GAIN = 1 / 4
DEVIATIONS = 4
# The shortest of so many round trips is taken for that of the link without other traffic.
LAST = 20


@dataclass(slots=True)
class Neighbour:
    """When a neighbour was heard last (`heard`), and the mean (`delay`) and mean deviation
    (`jitter`) of its round trips; all in seconds. `delay` is None before the first answer."""

    heard: float
    delay: float | None = None
    jitter: float = 0.0
    last: deque[float] = field(default_factory=lambda: deque(maxlen=LAST))  # last round trips


class Heartbeats:
    """The neighbours' signs of life. Times are in seconds of this node's own clock."""

    def __init__(self) -> None:
        self._neighbours: dict[bytes, Neighbour] = {}
        self._beaten: float | None = None  # when the last heartbeat was due

    def linked(self, now: float, node: bytes) -> None:
        """A link to `node` is open."""
        self._neighbours[node] = Neighbour(now)

    def heard(self, now: float, node: bytes) -> None:
        """Something has arrived from `node`."""
        if (known := self._neighbours.get(node)) is not None:
            known.heard = now

    def gone(self, node: bytes) -> None:
        """The link to `node` has ended."""
        self._neighbours.pop(node, None)

    def answered(self, node: bytes, seconds: float) -> None:
        """A heartbeat was answered after `seconds`; update the mean and the deviation as in
        RFC 6298, section 2."""
        known = self._neighbours.get(node)
        if known is None:
            return
        known.last.append(seconds)
        if known.delay is None:
            known.delay, known.jitter = seconds, seconds / 2
            return
        known.jitter += DEVIATION_GAIN * (abs(seconds - known.delay) - known.jitter)
        known.delay += GAIN * (seconds - known.delay)

    def delay(self, node: bytes) -> float | None:
        """Return the one-way delay to `node` in seconds, None while it is not known. It is half of
        the shortest of the last round trips, because those behind other traffic take longer."""
        known = self._neighbours.get(node)
        return min(known.last) / 2 if known is not None and known.last else None

    def timeout(self, node: bytes) -> float:
        """Return for how many seconds `node` may be silent: two heartbeats and a slow round trip,
        within limits."""
        known = self._neighbours.get(node)
        if known is None or known.delay is None:
            return limits.SILENCE_SECONDS
        spread = known.delay + DEVIATIONS * known.jitter
        wanted = 2 * limits.HEARTBEAT_SECONDS + spread
        return min(max(wanted, limits.LEAST_SILENCE_SECONDS), limits.MOST_SILENCE_SECONDS)

    def quiet(self, now: float) -> tuple[bytes, ...]:
        """Return the neighbours that have missed two heartbeats and may still be heard, ascending;
        users are told of these before they count as silent."""
        late = 2 * limits.HEARTBEAT_SECONDS
        late_ones = [
            n for n, x in self._neighbours.items() if now - x.heard > late + (x.delay or 0)
        ]
        return tuple(sorted(late_ones))

    def beat(self, now: float) -> tuple[bytes, ...]:
        """A heartbeat is due: return the neighbours that have been silent for too long,
        ascending."""
        before, self._beaten = self._beaten, now
        if before is not None and now - before > 2 * limits.HEARTBEAT_SECONDS:
            for known in self._neighbours.values():  # this device slept, so nobody could be heard
                known.heard = now
        silent = [n for n, x in self._neighbours.items() if now - x.heard > self.timeout(n)]
        return tuple(sorted(silent))
