"""What the links of a device carry while several of them have more to carry.

Only then does it show whether they share something, such as a radio, a modem or a processor, that
carries less than all of them could alone. The beginning of what a link carries is not counted: it
goes into buffers, or comes out of them, faster than the link is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protocols import limits


@dataclass(frozen=True, slots=True)
class Shared:
    """In `seconds`, while at least two links had more to carry, each of `carried` has carried so
    many bytes: (neighbour, bytes), ascending."""

    seconds: float
    carried: tuple[tuple[bytes, int], ...]


@dataclass(slots=True)
class Together:
    """Counts one direction of all links of one device. Times are in seconds of one clock."""

    _head: dict[bytes, int] = field(default_factory=dict)  # busy link -> bytes still not to count
    _carried: dict[bytes, int] = field(default_factory=dict)
    _seconds: float = 0.0
    _at: float = 0.0

    @property
    def several(self) -> bool:
        """Whether at least two links have something to carry at this moment."""
        return len(self._head) > 1

    def begins(self, node: bytes, now: float) -> None:
        """The link to `node` has something to carry from now on."""
        self._pass(now)
        self._head.setdefault(node, limits.SHARED_HEAD_BYTES)

    def ends(self, node: bytes, now: float) -> None:
        """The link to `node` has nothing more to carry, or has ended."""
        self._pass(now)
        self._head.pop(node, None)

    def carried(self, node: bytes, size: int, now: float) -> None:
        """The link to `node` has carried `size` more bytes."""
        self._pass(now)
        left = self._head.get(node)
        if left is None:
            return
        if left > 0:
            self._head[node] = max(0, left - size)
        elif self._counts:
            self._carried[node] = self._carried.get(node, 0) + size

    def take(self) -> Shared | None:
        """Return what was counted and begin anew; None, and go on, if it is too little to tell."""
        total = sum(self._carried.values())
        if self._seconds < limits.SHARED_SECONDS or total < limits.SHARED_BYTES:
            return None
        found = Shared(self._seconds, tuple(sorted(self._carried.items())))
        self._seconds, self._carried = 0.0, {}
        return found

    @property
    def _counts(self) -> bool:
        return sum(left == 0 for left in self._head.values()) > 1

    def _pass(self, now: float) -> None:
        if self._counts:
            self._seconds += now - self._at
        self._at = now
