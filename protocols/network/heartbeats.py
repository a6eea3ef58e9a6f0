"""Which neighbours have been silent for too long.

A neighbour counts as silent if it has said nothing for a time-out that grows with the delay and the
jitter measured to it, and if this device was awake all that time: a device that slept has heard
nobody, which says nothing about the others.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from protocols import limits

GAIN = 1 / 8  # of the mean delay, per answer
DEVIATION_GAIN = 1 / 4
DEVIATIONS = 4
LAST = 20  # round trips of which the shortest counts as the link's own


@dataclass(slots=True)
class Neighbour:
    """When one was heard last; mean and mean deviation of its round-trip times, in seconds."""

    heard: float
    delay: float | None = None
    jitter: float = 0.0
    last: deque[float] = field(default_factory=lambda: deque(maxlen=LAST))  # round trips


class Heartbeats:
    """The neighbours' signs of life. Times in seconds of this node's own clock."""

    def __init__(self) -> None:
        self._neighbours: dict[bytes, Neighbour] = {}
        self._beaten: float | None = None

    def linked(self, now: float, node: bytes) -> None:
        """A link to `node` is open."""
        self._neighbours[node] = Neighbour(now)

    def heard(self, now: float, node: bytes) -> None:
        """`node` said something."""
        if (known := self._neighbours.get(node)) is not None:
            known.heard = now

    def gone(self, node: bytes) -> None:
        """The link to `node` has ended."""
        self._neighbours.pop(node, None)

    def answered(self, node: bytes, seconds: float) -> None:
        """A heartbeat of ours was answered after so long (RFC 6298's estimate)."""
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
        """Return the one-way delay to `node` in seconds, half of the shortest of the last round
        trips (those behind other traffic take longer); None while there was none."""
        known = self._neighbours.get(node)
        return min(known.last) / 2 if known is not None and known.last else None

    def timeout(self, node: bytes) -> float:
        """Return how many seconds `node` may be silent."""
        known = self._neighbours.get(node)
        if known is None or known.delay is None:
            return limits.SILENCE_SECONDS
        spread = known.delay + DEVIATIONS * known.jitter
        wanted = 2 * limits.HEARTBEAT_SECONDS + spread
        return min(max(wanted, limits.LEAST_SILENCE_SECONDS), limits.MOST_SILENCE_SECONDS)

    def quiet(self, now: float) -> tuple[bytes, ...]:
        """Return who has missed two heartbeats, ascending: it may yet be heard."""
        late = 2 * limits.HEARTBEAT_SECONDS
        late_ones = [
            n for n, x in self._neighbours.items() if now - x.heard > late + (x.delay or 0)
        ]
        return tuple(sorted(late_ones))

    def beat(self, now: float) -> tuple[bytes, ...]:
        """A heartbeat is due: return who has been silent for too long, ascending."""
        before, self._beaten = self._beaten, now
        if before is not None and now - before > 2 * limits.HEARTBEAT_SECONDS:
            for known in self._neighbours.values():  # we were asleep: nobody could be heard
                known.heard = now
        silent = [n for n, x in self._neighbours.items() if now - x.heard > self.timeout(n)]
        return tuple(sorted(silent))
