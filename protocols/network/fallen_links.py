"""Which links of a joiner have become slow, found while several of them are busy at the same time.

What arrives over one link while others are busy, too, may be little because the others take what
this device can receive. So it never makes the rate of a link lower (`meter.py`), and a link that
has become slow is noticed once it still carries something when the others are done. All sources of
a joiner send until the end, so that never happens before it is a member, and the first round with
it would be planned over such a link.

But what a device can receive is divided among its links about evenly. So it is not the device that
holds one link back while another one carries much more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import limits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from protocols.network.stretch import Stretch


class FallenLinks:
    """Compares what one joiner has received in stretches with the rates of its links."""

    def __init__(self) -> None:
        self._slow: dict[bytes, float] = {}  # link -> its rate in the last stretch, if it was slow
        self._fallen: dict[bytes, tuple[float, float]] = {}  # link -> when that was seen, its rate

    def add(self, now: float, stretch: Stretch, known: Mapping[bytes, float]) -> None:
        """Take a stretch, and note the links that are less than half as fast as they are `known` to
        be, in bytes/s. One slow stretch may have other reasons, such as a sender that was busy with
        something else, so it takes two, of which the faster one counts."""
        rates = {
            link.node: link.moved_bytes / link.busy_s
            for link in stretch.links
            if link.busy_s >= limits.BUSY_PART * stretch.seconds
        }
        most = max(link.moved_bytes for link in stretch.links) / stretch.seconds
        before, self._slow = self._slow, {}
        for node, rate in rates.items():
            if limits.FAIR_TIMES * rate < most and rate < limits.FALLEN_PART * known.get(node, 0.0):
                self._slow[node] = rate
                if node in before:
                    self._fallen[node] = now, max(rate, before[node])

    def rate(self, now: float, node: bytes, known: float) -> float:
        """Return the rate of the link from `node`, which is `known` to carry so many bytes/s: less
        if it has become slow a short while ago. After that it has been measured anew."""
        at, rate = self._fallen.get(node, (now, known))
        return min(rate, known) if now - at <= limits.FALLEN_SECONDS else known
