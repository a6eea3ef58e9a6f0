"""Which links of a joiner have become slow, found while several of them are busy at the same time.

What arrives over one link while others are busy, too, may be little because the others take what
this device can receive. So it never makes the rate of a link lower (`meter.py`), and a link that
has become slow is noticed once it still carries something when the others are done. All sources of
a joiner send until the end, so that never happens before it is a member, and the first round with
it would be planned over such a link.

But what a device can receive is divided among its links about evenly. So it is not this device that
holds one link back while another one carries much more. It may be the sender, which also sends to
others; then the link is taken for slower than it is until more arrives over it.
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

    def add(self, stretch: Stretch, known: Mapping[bytes, float]) -> dict[bytes, float]:
        """Take a stretch; return link -> bytes/s for each that is less than half as fast as it is
        `known` to be. One slow stretch may have other reasons, such as a sender that was busy with
        something else, so it takes two in a row, of which the faster one counts."""
        most = max(link.moved_bytes for link in stretch.links) / stretch.seconds
        before, self._slow = self._slow, {}
        for link in stretch.links:
            if link.busy_s < limits.BUSY_PART * stretch.seconds:
                continue
            rate, usual = link.moved_bytes / link.busy_s, known.get(link.node, 0.0)
            if limits.FAIR_TIMES * rate < most and rate < limits.FALLEN_PART * usual:
                self._slow[link.node] = rate
        return {n: max(rate, before[n]) for n, rate in self._slow.items() if n in before}
