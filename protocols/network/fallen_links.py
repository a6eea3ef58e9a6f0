"""Which links of a joiner have become slow, found while several of them are busy at the same time.

What arrives over one link while others are busy, too, may be little because the others take what
this device can receive. So it never makes the rate of a link lower (`meter.py`), and a link that
has become slow is noticed once it still carries something when the others are done. All sources of
a joiner send until the end, so that never happens before it is a member, and the first round with
it would be planned over such a link.

But what a device can receive is divided among its links about evenly. So it is not this device that
holds one link back while another one carries much more. It may be the sender, which also sends to
others; then the link is taken for slower than it is until more arrives over it.

What a joiner sends over such a link has most likely become slow, too. That is measured only in the
first round with it, which is planned before, so the scheduler assumes it for a while.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocols import limits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from protocols.network.stretch import Stretch

Pair = tuple[bytes, bytes]  # a joiner and a member


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


@dataclass(frozen=True, slots=True)
class _Fallen:
    """A joiner has told at the time `at` that it receives only `part` of what was `usual` from a
    member. Before, what it sent there arrived at the rate `back`. All rates in bytes/s."""

    at: float
    usual: float
    back: float
    part: float


class OtherDirections:
    """What the scheduler takes the links from joiners to members for."""

    def __init__(self) -> None:
        self._fallen: dict[Pair, _Fallen] = {}

    def told(self, now: float, pair: Pair, back: float, before: float, rate: float) -> None:
        """The joiner receives bytes from the member at this `rate`, and did so at the one `before`.
        At the member those from the joiner arrived at the rate `back`."""
        oldest = now - limits.FALLEN_BACK_SECONDS
        self._fallen = {k: fallen for k, fallen in self._fallen.items() if fallen.at >= oldest}
        if (fallen := self._fallen.pop(pair, None)) is not None:
            before, back = fallen.usual, fallen.back
        if rate < limits.FALLEN_PART * before:
            self._fallen[pair] = _Fallen(now, before, back, rate / before)

    def rate(self, now: float, pair: Pair, known: float) -> float:
        """Return the rate that plans count on, of a link that is `known` to carry so much."""
        fallen = self._fallen.get(pair)
        if fallen is None or now - fallen.at > limits.FALLEN_BACK_SECONDS:
            return known
        return min(known, fallen.part * fallen.back)
