"""How much all links of a device carry together, measured while several of them are busy.

What a device can send, or receive, over all its links together, such as what its radio or its line
to the internet carries, shows only while more than one link has something to carry. Such times are
added up to stretches, of which `node_limit.py` tells whether something limits the device.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocols import limits

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Use:
    """What is known of one direction of the link with `node` at some moment: the bytes that it has
    carried so far, and since when it has had something to carry all the time (None: it has not)."""

    node: bytes
    moved_bytes: int
    busy_since: float | None


@dataclass(frozen=True, slots=True)
class Carried:
    """What the link with `node` carried in a stretch, and for how many seconds of it that link was
    busy all the time."""

    node: bytes
    moved_bytes: int
    busy_s: float


@dataclass(frozen=True, slots=True)
class Stretch:
    """So many seconds in which at least two links were busy at any moment, and what each link
    carried in them."""

    seconds: float
    links: tuple[Carried, ...]

    @property
    def rate(self) -> float:
        """What all links carried together, in bytes/s."""
        return sum(link.moved_bytes for link in self.links) / self.seconds


class Together:
    """Makes stretches of what one direction of all links of a device carries. Times are in seconds
    of one clock."""

    def __init__(self) -> None:
        self._at: float | None = None  # when the links were looked at last
        self._before: dict[bytes, int] = {}  # what each had carried then
        self._seconds = 0.0  # of the stretch that has begun
        self._moved: dict[bytes, int] = {}
        self._busy_s: dict[bytes, float] = {}
        self._found: deque[Stretch] = deque(maxlen=limits.STRETCHES)

    def look(self, now: float, uses: Iterable[Use], *, counts: bool = True) -> None:
        """Take how the links stand now. The time since the last look counts if at least two links
        were busy all of it, unless that look is so long ago that this is not certain, or something
        else than the network held the links up then (`counts` False)."""
        uses = tuple(uses)
        at, self._at = self._at, now
        before, self._before = self._before, {use.node: use.moved_bytes for use in uses}
        last = now if at is None else at
        if not counts or not last < now <= last + limits.STRETCH_MOST_LOOK_SECONDS:
            return
        busy = [u.node for u in uses if u.busy_since is not None and u.busy_since <= last]
        if len(busy) < 2:
            return
        self._seconds += now - last
        for use in uses:
            moved = use.moved_bytes - before.get(use.node, use.moved_bytes)
            self._moved[use.node] = self._moved.get(use.node, 0) + max(0, moved)
        for node in busy:
            self._busy_s[node] = self._busy_s.get(node, 0.0) + now - last
        least = limits.STRETCH_LINK_BYTES * len(self._busy_s)
        if self._seconds >= limits.STRETCH_SECONDS and sum(self._moved.values()) >= least:
            self._end()

    def _end(self) -> None:
        """End the stretch. A link that was to carry something and carried nothing, as if its other
        end slept, was not busy. It says nothing unless two others were."""
        links = tuple(
            Carried(node, moved, self._busy_s.get(node, 0.0))
            for node, moved in sorted(self._moved.items())
            if moved
        )
        if sum(link.busy_s > 0 for link in links) >= 2:
            self._found.append(Stretch(self._seconds, links))
        self._seconds, self._moved, self._busy_s = 0.0, {}, {}

    def take(self) -> tuple[Stretch, ...]:
        """Return the stretches that were not returned yet, the oldest first."""
        found = tuple(self._found)
        self._found.clear()
        return found
