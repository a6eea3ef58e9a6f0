"""The links that a joiner was told to open: which of them are open, and how fast those are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import limits
from protocols.effects import Dial

if TYPE_CHECKING:
    from protocols.cluster.view import Member
    from protocols.member.context import Context


class OpeningLinks:
    """The links of one join."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._wanted: dict[bytes, bool | None] = {}  # neighbour -> link open; None: not known yet
        self._settled_at: float | None = None  # when each was open, or had failed, at first

    @property
    def open(self) -> tuple[bytes, ...]:
        """The neighbours to which a link could be opened."""
        return tuple(n for n, is_open in self._wanted.items() if is_open)

    @property
    def are_settled(self) -> bool:
        """Whether each link is open or has failed."""
        return None not in self._wanted.values()

    @property
    def deadline(self) -> float | None:
        """When `are_measured` may have become true although nothing has happened."""
        return None if self._settled_at is None else self._settled_at + self._wait_s

    @property
    def _wait_s(self) -> float:
        known = any(self._context.incoming(node) for node in self.open)
        return limits.PROBE_REST_SECONDS if known else limits.PROBE_WAIT_SECONDS

    def dial(self, neighbours: tuple[Member, ...]) -> None:
        """Open the links to `neighbours` that are not open yet."""
        for member in neighbours:
            linked = member.node in self._context.links
            self._wanted[member.node] = True if linked else None
            if not linked:
                self._context.do(Dial(member))

    def settled(self, node: bytes, *, is_open: bool) -> bool:
        """Note whether the link to `node` could be opened; return whether that was awaited."""
        if self._wanted.get(node, False) is not None:
            return False
        self._wanted[node] = is_open
        return True

    def are_measured(self, now: float) -> bool:
        """Return whether the rates of all open links are known, or have been waited for as long as
        `PROBE_REST_SECONDS`, or `PROBE_WAIT_SECONDS` while none is known. With them a pull is
        divided well from the start."""
        if self._settled_at is None:
            self._settled_at = now
        if all(self._context.incoming(node) for node in self.open):
            return True
        return now >= self._settled_at + self._wait_s
