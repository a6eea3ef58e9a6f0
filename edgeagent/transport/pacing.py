"""How many bytes of a bulk connection may wait below the link, where no order can reach them.

What was written waits in the buffers of TLS and of the system, first in first out: a chunk for
which all members wait has to wait behind whatever was written before it. So little should be
written ahead, but enough that the connection does not run dry until the next look. That is what it
sends in `AHEAD_SECONDS`, within `LEAST_BYTES` and `MOST_BYTES`.

How fast the connection sends is seen from its own progress: the bytes that the other end has
acknowledged while more were waiting. What the other end measures (`protocols.network.meter`) is
known only seconds after a change, and not at all while the link is new, when the first probe would
fill all buffers below. If the connection has run dry between two looks, it is faster than believed,
or this process was busy, and more may wait.

A connection for which `MOST_BYTES` may wait need not be looked at: there the system says when it
takes more (`api.Link`), as it does for every connection where it does not tell what it has sent.

There is no clock and no socket in this module. Times are in seconds of one clock.
"""

from __future__ import annotations

AHEAD_SECONDS = 0.02
LEAST_BYTES = 16 << 10  # one record of TLS
FIRST_BYTES = 32 << 10  # while nothing is known
MOST_BYTES = 128 << 10  # what a connection of 52 Mbit/s sends in AHEAD_SECONDS
WINDOW_SECONDS = 0.05  # so long the connection is watched for a rate
# A process that often comes late to look may have so many times as much waiting.
MOST_LATENESS = 4
FIRST_LOOK_SECONDS = 0.002
LEAST_LOOK_SECONDS = 0.001
MOST_LOOK_SECONDS = 0.05


class Pacing:
    """Decides for one connection. `allowance`: the bytes that may wait below the link."""

    def __init__(self) -> None:
        self.allowance = FIRST_BYTES
        self.rate: float | None = None  # bytes/s, None while it is not known
        self._window: tuple[float, int] | None = None  # (time, bytes acknowledged) at its begin
        self._before: tuple[float, int] | None = None  # the same at the last look

    @property
    def looks(self) -> bool:
        """Whether what waits below has to be looked at before more is written."""
        return self.allowance < MOST_BYTES

    def nothing_known(self) -> None:
        """The system does not tell what it has sent."""
        self.allowance = MOST_BYTES

    def idle(self) -> None:
        """Nothing is left to be written, so that the connection may now send less than it could."""
        self._window = self._before = None

    def looked(self, now: float, acknowledged: int, unsent: int, *, stopped: bool) -> None:
        """Take a look into account: so many bytes were acknowledged so far, and so many wait in the
        system. `stopped`: frames were held back since the last look."""
        if unsent:
            self._watch(now, acknowledged)
        else:
            if stopped:
                self._ran_dry(now, acknowledged)
            self._window = None
        self._before = (now, acknowledged)

    def look_after(self, ahead: int) -> float:
        """Return after how many seconds to look again if `ahead` bytes wait: when about half of
        what may wait is left."""
        if not self.rate:
            return FIRST_LOOK_SECONDS
        seconds = (ahead - self.allowance / 2) / self.rate
        return min(max(seconds, LEAST_LOOK_SECONDS), MOST_LOOK_SECONDS)

    def _watch(self, now: float, acknowledged: int) -> None:
        """The connection was busy since the window began; at its end the rate is known."""
        if self._window is None:
            self._window = (now, acknowledged)
            return
        seconds = now - self._window[0]
        if seconds >= WINDOW_SECONDS:
            self.rate = (acknowledged - self._window[1]) / seconds
            self.allowance = _allowed(self.rate)
            self._window = (now, acknowledged)

    def _ran_dry(self, now: float, acknowledged: int) -> None:
        """Nothing was waiting any more: the connection sends at least as fast as it just did. If
        that is faster than believed, as while a connection with a long delay finds its rate, as
        much more may wait as it takes; otherwise this process came late, which needs a bound."""
        more = 2 * self.allowance
        if self.rate is not None:
            sent = 0.0
            if self._before is not None and now > self._before[0]:
                sent = (acknowledged - self._before[1]) / (now - self._before[0])
            if sent <= self.rate:
                more = min(more, MOST_LATENESS * _allowed(self.rate))
            self.rate = max(self.rate, sent)
        self.allowance = min(max(more, self.allowance), MOST_BYTES)


def _allowed(rate: float) -> int:
    return int(min(max(rate * AHEAD_SECONDS, LEAST_BYTES), MOST_BYTES))
