"""How fast a link is, from the bytes that arrive over it.

Law: only the time in which a large frame is on its way counts, so a sender that has nothing to send
does not make its link look slow. Frames are put together until they are long enough for one sample;
the median of the last samples is the rate, so neither a hiccup nor a full buffer decides alone.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from protocols import limits

FASTER = 2.0  # no token bucket explains more


class Meter:
    """One direction of one link, at its receiver."""

    def __init__(self) -> None:
        self._bytes = 0
        self._seconds = 0.0
        self._samples: deque[float] = deque(maxlen=limits.METER_SAMPLES)

    def arrived(self, size: int, seconds: float, *, steady: bool = True) -> None:
        """A frame's payload of `size` bytes took `seconds` from its header to its last byte.

        `steady`: it came right behind another one. A frame alone may overtake the link's rate by
        what a token bucket has saved up, so a short one only counts if it is far faster than what
        is known, which means that the link is.
        """
        if size < limits.METER_FRAME_BYTES:
            return
        known, short = self.rate, not steady and seconds < limits.METER_LEAST_SECONDS
        if short and known is not None and size < FASTER * known * seconds:
            return
        self._bytes += size
        self._seconds += seconds
        if self._bytes < limits.METER_BYTES and self._seconds < limits.METER_SECONDS:
            return
        if self._seconds > 0:
            self._samples.append(self._bytes / self._seconds)
        self._bytes, self._seconds = 0, 0.0

    @property
    def rate(self) -> float | None:
        """Payload bytes/s, None while there is no sample. The first samples of a connection are
        slow, so of few the fastest counts."""
        if not self._samples:
            return None
        if len(self._samples) < limits.METER_SAMPLES // 2 + 1:
            return max(self._samples)
        return median(self._samples)
