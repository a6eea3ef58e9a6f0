"""Whether something limits what a device sends, or receives, over all its links together.

It does if links that are busy at the same time carry much less together than they carry alone. The
limit is what they carried. The second best of the last stretches counts: what else can make a
stretch slow, such as a busy processor, is mostly over in another one.

What a sender carries may be low because of its receivers, which are limited themselves, and what
arrives because of the senders. What a device can carry is divided among its links about evenly, so
it is not the device that holds some links back while another one, which is as fast as alone,
carries much more than they do. Where all are held back this cannot be told: then the figure is too
low as a limit, but never lower than what the device has carried under the plan in force. So this
plan looks no worse than it is, and the figure is forgotten after a while without news.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from protocols import limits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from protocols.network.stretch import Stretch


class _Seen(NamedTuple):
    at: float
    rate: float  # bytes/s that all links carried together
    alone: float  # bytes/s that they would have carried if none had hindered another


class NodeLimit:
    """The limit of one direction of one device."""

    def __init__(self) -> None:
        self._seen: deque[_Seen] = deque(maxlen=limits.STRETCHES)
        self._limited = False

    def add(self, now: float, stretch: Stretch, alone: Mapping[bytes, float]) -> None:
        """Take a stretch. `alone`: how fast the links are, in bytes/s, as far as that was measured
        while nothing hindered them; any other link counts as just as fast as it was."""
        most, free, held = 0.0, 0.0, 0.0
        for link in stretch.links:
            known = alone.get(link.node)
            if known is None or not link.busy_s:
                most += link.moved_bytes
                continue
            could = max(float(link.moved_bytes), known * link.busy_s)
            most += could
            if link.moved_bytes < limits.UNLIMITED_PART * could:
                held = max(held, link.moved_bytes / link.busy_s)
            else:
                free = max(free, link.moved_bytes / link.busy_s)
        rate = stretch.rate
        if free > limits.FAIR_TIMES * held:
            most = rate * stretch.seconds
        self._seen.append(_Seen(now, rate, most / stretch.seconds))

    def rate(self, now: float) -> float | None:
        """Return the limit in bytes/s, None if there is none, or if too little is known."""
        recent = [s for s in self._seen if now - s.at <= limits.NODE_LIMIT_SECONDS]
        if len(recent) < 2:
            self._limited = False
            return None
        seen = sorted(recent, key=lambda s: s.rate)[-2]
        part = limits.UNLIMITED_PART if self._limited else limits.LIMITED_PART
        self._limited = seen.rate < part * seen.alone
        return seen.rate if self._limited else None
