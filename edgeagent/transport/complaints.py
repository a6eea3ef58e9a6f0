"""One clear line about trouble from outside, however often it happens.

The first complaint of a kind is logged at once; the following ones are counted and reported in at
most one line per `COMPLAINT_SECONDS` and kind. Trouble that well-behaved devices have, too, while
much goes on at once is only counted, and reported if it is frequent. The kinds are our own words,
never text of a peer, so that a peer cannot make up new ones.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edgeagent.transport import bounds

if TYPE_CHECKING:
    from collections.abc import Callable

_SOURCES_KEPT = 64  # hosts of one kind of complaint; if there are more, they are "many addresses"


@dataclass(slots=True)
class _Window:
    """One kind of complaint since its last line: how many there were, and from which hosts."""

    reason: str
    timer: asyncio.TimerHandle
    count: int = 0
    least: int = 1  # a smaller count is not reported
    sources: dict[str, None] = field(default_factory=dict)


class LimitedLog:
    """Writes at most one line of each kind per `COMPLAINT_SECONDS`, and how many it left out.

    Unlike `Complaints` it needs no timer and keeps no hosts; a count is told with the next line.
    """

    def __init__(self, log: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._kinds: dict[str, tuple[float, int]] = {}  # kind -> (next line due at, left out)

    def say(self, kind: str, text: str) -> None:
        """Log `text`, unless another line of its kind was logged within the interval."""
        now = self._clock()
        due, left_out = self._kinds.get(kind, (now, 0))
        if now < due:
            self._kinds[kind] = (due, left_out + 1)
            return
        self._kinds[kind] = (now + bounds.COMPLAINT_SECONDS, 0)
        self._log(f"{text} ({left_out} more of this kind before)" if left_out else text)


class Complaints:
    """Counts refused connections by kind and logs them; what is left over is told by a timer."""

    def __init__(
        self, log: Callable[[str], None], interval: float = bounds.COMPLAINT_SECONDS
    ) -> None:
        self._log = log
        self._interval = interval
        self._windows: dict[str, _Window] = {}

    def refused(self, source: str, kind: str, reason: str, least: int = 1) -> None:
        """Note that a connection from `source` (a host) was refused because of `reason`.

        If `least` is more than 1, nothing is logged unless at least so many connections are refused
        for the same `kind` of reason in one interval.
        """
        window = self._windows.get(kind)
        if window is None and least == 1:
            self._log(f"refused a connection from {source}: {reason}")
            self._open(kind, reason)
            return
        window = window or self._open(kind, reason, least)
        window.count += 1
        window.reason = reason
        if len(window.sources) < _SOURCES_KEPT:
            window.sources[source] = None

    def close(self) -> None:
        """Report what is counted so far and stop the timers."""
        for window in self._windows.values():
            window.timer.cancel()
            self._report(window)
        self._windows.clear()

    def _open(self, kind: str, reason: str, least: int = 1) -> _Window:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._interval, self._expired, kind)
        self._windows[kind] = window = _Window(reason, timer, least=least)
        return window

    def _expired(self, kind: str) -> None:
        window = self._windows.pop(kind)
        if window.count:
            self._report(window)
            self._open(kind, window.reason, window.least)

    def _report(self, window: _Window) -> None:
        if window.count < window.least:
            return
        sources = list(window.sources)
        where = sources[0] if len(sources) == 1 else f"{len(sources)} addresses"
        if len(sources) >= _SOURCES_KEPT:
            where = "many addresses"
        plural = "connection" if window.count == 1 else "connections"
        plural = f"more {plural}" if window.least == 1 else plural
        self._log(f"refused {window.count} {plural} from {where}: {window.reason}")
