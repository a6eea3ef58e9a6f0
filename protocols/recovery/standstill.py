"""Links that stand still again and again: they carry small frames, and nothing large.

Such a link no longer counts as a link, although it is open, for as long as a policy that may be in
force has it; sums take another way. It stays so even if the other end opens it anew, because that
end may not have noticed that anything stood still.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import limits

if TYPE_CHECKING:
    from protocols.member.context import Context


class Standstill:
    """To which neighbours of one member links stand still."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._times: dict[bytes, int] = {}  # how often the link to a node has stood still
        self._given_up: dict[bytes, None] = {}

    def __contains__(self, node: object) -> bool:
        """Whether the link to `node` counts no more."""
        return node in self._given_up

    def stalled(self, node: bytes) -> None:
        """The link to `node` was ended, since it stood still."""
        self._times[node] = self._times.get(node, 0) + 1
        if self._times[node] >= limits.MOST_STALLS:
            self._given_up[node] = None

    def switched(self) -> None:
        """Another policy came into force: whom it has no link to may have a new one later."""
        near = dict.fromkeys(self._context.neighbours)
        self._given_up = {n: None for n in self._given_up if n in near}

    @property
    def near(self) -> tuple[bytes, ...]:
        """Members to which a link is open that counts."""
        return tuple(n for n in self._context.near if n not in self._given_up)

    @property
    def unlinked(self) -> list[bytes]:
        """Neighbours to which no link is open that counts."""
        missing = self._context.unlinked
        given_up = [n for n in self._context.neighbours if n in self._given_up]
        return missing + [n for n in given_up if n not in missing]
