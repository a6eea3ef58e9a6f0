"""Values for links that are not measured yet, and measurements in words.

A value that is not known is taken as typical. Rates and delays are bounded so that sums over them
stay finite: a link slower than `LEAST_RATE` counts as one of that rate, so that every link of a
view can be planned with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING, TypeVar

from protocols.network.measures import Measures, Rate

if TYPE_CHECKING:
    from protocols.cluster.view import View

T = TypeVar("T")

LEAST_RATE = 1.0  # bytes/s
MOST_DELAY_S = 3600.0
NAMED_AT_MOST = 4  # a reason names this many things of one kind and counts the others


class Filled:
    """The links of `measures`, with values for each direction that is not measured: those of the
    other direction, since most links are much the same both ways, else typical ones.

    Typical is the median of what is known, separately for delays and rates. If nothing is known, it
    is no delay and `LEAST_RATE`.
    """

    def __init__(self, measures: Measures) -> None:
        known = measures.links.values()
        self._links = measures.links
        self.typical = Rate(0.0, LEAST_RATE)
        if known:
            self.typical = Rate(median(r.delay_s for r in known), median(r.rate for r in known))

    def is_known(self, a: bytes, b: bytes) -> bool:
        """Whether a direction between `a` and `b` is measured; the other one counts as equal."""
        return (a, b) in self._links or (b, a) in self._links

    def delay_s(self, a: bytes, b: bytes) -> float:
        """Return the delay from `a` to `b`."""
        return min(self._best(a, b).delay_s, MOST_DELAY_S)

    def rate(self, a: bytes, b: bytes) -> float:
        """Return the rate from `a` to `b` in bytes/s."""
        return max(self._best(a, b).rate, LEAST_RATE)

    def _best(self, a: bytes, b: bytes) -> Rate:
        return self._links.get((a, b)) or self._links.get((b, a)) or self.typical

    def slower(self, a: bytes, b: bytes) -> float:
        """Return the rate of the slower direction between `a` and `b` in bytes/s."""
        return min(self.rate(a, b), self.rate(b, a))


def qualities(nodes: Iterable[bytes], measures: Measures) -> dict[bytes, float]:
    """Return for each of `nodes` the median rate of its links, both directions, in bytes/s.

    A node without a measured link has the median of the others' qualities, 0 if no node has any.
    """
    rates: dict[bytes, list[float]] = {}
    for ends, link in measures.links.items():
        for end in ends:
            rates.setdefault(end, []).append(link.rate)
    found = {n: median(rates[n]) if n in rates else None for n in nodes}
    known = [q for q in found.values() if q is not None]
    typical = median(known) if known else 0.0
    return {n: typical if q is None else q for n, q in found.items()}


# Words


def name_of(view: View, node: bytes) -> str:
    """Return the name of member `node`, or the first digits of its id if it is no member."""
    member = view.member(node)
    return node.hex()[:8] if member is None else member.name


def in_mbit(rate: float) -> str:
    """Return `rate` (bytes/s) in Mbit/s, such as "94.1 Mbit/s"."""
    mbit = rate * 8 / 1e6
    return f"{mbit:.0f} Mbit/s" if mbit >= 1000 else f"{mbit:.3g} Mbit/s"


def in_seconds(seconds: float) -> str:
    """Return a time such as "1.23 s"."""
    return f"{seconds:.3g} s"


def listed(things: Sequence[T], text: Callable[[T], str]) -> str:
    """Return "a, b and 3 more": the texts of at most `NAMED_AT_MOST` of `things`."""
    words = ", ".join(map(text, things[:NAMED_AT_MOST]))
    rest = len(things) - NAMED_AT_MOST
    return f"{words} and {rest} more" if rest > 0 else words
