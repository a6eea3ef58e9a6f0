"""One clear line for trouble from outside, however often it comes.

Law: the first complaint of a kind is logged at once; those after it are counted and reported in at
most one line per `COMPLAINT_SECONDS` and kind. What happens to good devices, too, where much goes
on at once, is only counted, and reported if there are many. Kinds are ours, never text of a peer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edgeagent.transport import bounds

if TYPE_CHECKING:
    from collections.abc import Callable

_SOURCES_KEPT = 64


@dataclass(slots=True)
class _Window:
    reason: str
    timer: asyncio.TimerHandle
    count: int = 0
    least: int = 1  # fewer are not reported
    sources: dict[str, None] = field(default_factory=dict)


class Lines:
    """Writes one line of each kind at most every `COMPLAINT_SECONDS`, with how many it left out."""

    def __init__(self, log: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._kinds: dict[str, tuple[float, int]] = {}  # kind -> when the next is due, left out

    def say(self, kind: str, text: str) -> None:
        """Say `text`, unless another of its kind was said just now."""
        now = self._clock()
        due, left_out = self._kinds.get(kind, (now, 0))
        if now < due:
            self._kinds[kind] = (due, left_out + 1)
            return
        self._kinds[kind] = (now + bounds.COMPLAINT_SECONDS, 0)
        self._log(f"{text} ({left_out} more of this kind before)" if left_out else text)


class Complaints:
    """Counts refused connections by reason and writes lines through `log`."""

    def __init__(
        self, log: Callable[[str], None], interval: float = bounds.COMPLAINT_SECONDS
    ) -> None:
        self._log = log
        self._interval = interval
        self._windows: dict[str, _Window] = {}

    def refused(self, source: str, kind: str, reason: str, least: int = 1) -> None:
        """A connection from `source` (a host) was refused because of `reason`. Fewer than `least`
        of them in a while are not worth a line."""
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
        """Report what was counted and stop the timers."""
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
