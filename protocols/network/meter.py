"""How fast a link is, measured from the bytes that arrive over it.

Frames that arrive right behind each other form a run. The first bytes of a run, its head, are not
counted: a token bucket on the path may have saved them up, or they may have waited for their
reader, so they arrive faster than the link is. The rest of a run is a sample if it is long enough.
So a sender that has nothing to send does not make its link look slow, and short frames do not make
it look fast.

The rate is the second best of the last samples: a connection that starts slowly, a lost packet or
a busy reader makes a sample too low, and hardly anything makes one too high.

While an end uses several links, this one may get only a part of what they share. So the rate of the
samples in which neither end used another link is kept, too (`alone`).
"""

from __future__ import annotations

from collections import deque

from protocols import limits


class Meter:
    """Measures one direction of one link, at its receiver. Times are in seconds of one clock."""

    def __init__(self) -> None:
        self._ended = -1.0e9  # when the last frame was complete
        self._at = 0.0  # when the last bytes came
        self._head = 0  # bytes of this run's head so far; -1 once the head is over
        self._bytes = 0  # bytes of this run behind its head
        self._seconds = 0.0  # how long these took to arrive
        self._beside = False  # whether an end used other links while the sample was taken
        self._samples: deque[float] = deque(maxlen=limits.METER_SAMPLES)  # bytes/s
        self._alone: deque[float] = deque(maxlen=limits.METER_SAMPLES)  # those of them alone

    def begins(self, now: float, *, beside: bool = False) -> None:
        """A frame's header has arrived; the frame begins a new run if there was a gap before it.
        `beside`: one of both ends uses other links at the same time."""
        if now - self._ended >= limits.METER_GAP_SECONDS:
            if self._seconds >= limits.METER_LEAST_SECONDS:
                self._sample()
            self._bytes, self._seconds = 0, 0.0
            self._at, self._head = now, 0
            self._beside = False
        self._beside = self._beside or beside

    def arrived(self, now: float, size: int) -> None:
        """`size` more bytes of the frame's payload have arrived. The head of a run ends once it is
        long enough and bytes have to be waited for, or at `METER_MOST_HEAD_BYTES`."""
        waited, self._at = now - self._at, now
        if self._head < 0:
            self._bytes += size
            self._seconds += waited
            return
        if self._head > limits.METER_HEAD_BYTES and waited >= limits.METER_BURST_SECONDS:
            self._bytes, self._seconds, self._head = size, waited, -1
            return
        self._head += size
        if self._head >= limits.METER_MOST_HEAD_BYTES:
            self._head = -1

    def ends(self, now: float) -> None:
        """The frame is complete; take a sample if the run is long enough for one."""
        self._ended = now
        long = self._bytes >= limits.METER_BYTES or self._seconds >= limits.METER_SECONDS
        if long and self._seconds > 0:
            self._sample()
            self._bytes, self._seconds, self._beside = 0, 0.0, False

    def _sample(self) -> None:
        rate = self._bytes / self._seconds
        self._samples.append(rate)
        if not self._beside:
            self._alone.append(rate)

    @property
    def rate(self) -> float | None:
        """Payload bytes/s, None while there is no sample. Of one or two samples the best one
        counts, because the first samples of a connection are slow."""
        return _usual(self._samples)

    @property
    def alone(self) -> float | None:
        """The same while neither end used another link, None while there is no such sample."""
        return _usual(self._alone)


def _usual(samples: deque[float]) -> float | None:
    best = sorted(samples, reverse=True)
    return (best[0] if len(best) <= 2 else best[1]) if best else None
