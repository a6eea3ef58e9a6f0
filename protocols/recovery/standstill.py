"""Links that stand still again and again, because the path carries small frames and loses large
ones.

Such a link is given up: it no longer counts as a link, although it may be open, as long as a policy
that may be in force names it. A fence then finds a tree without it. It stays given up even if the
other end opens it anew, because that end may not have noticed that anything stood still.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import limits

if TYPE_CHECKING:
    from protocols.member.context import Context


class Standstill:
    """The neighbours of one member to which links stand still."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._times: dict[bytes, list[float]] = {}  # when the link to a node has stood still lately
        self._given_up: dict[bytes, None] = {}

    def __contains__(self, node: object) -> bool:
        """Whether the link to `node` has been given up."""
        return node in self._given_up

    def stalled(self, node: bytes) -> None:
        """The link to `node` was ended because it stood still; give it up if it does so often."""
        now = self._context.now
        self._times.setdefault(node, []).append(now)
        lately = {
            n: [t for t in times if now - t < limits.STALLS_WITHIN_SECONDS]
            for n, times in self._times.items()
        }
        self._times = {n: times for n, times in lately.items() if times}
        if len(self._times[node]) >= limits.MOST_STALLS:
            self._given_up[node] = None

    def switched(self) -> None:
        """Another policy came into force: forget links that it does not name, so that a later
        policy may name them again."""
        near = dict.fromkeys(self._context.neighbours)
        self._given_up = {n: None for n in self._given_up if n in near}

    @property
    def near(self) -> tuple[bytes, ...]:
        """Members to which a link is open that has not been given up."""
        return tuple(n for n in self._context.near if n not in self._given_up)

    @property
    def unlinked(self) -> list[bytes]:
        """Neighbours to which no link is open, or only one that has been given up."""
        missing = self._context.unlinked
        given_up = [n for n in self._context.neighbours if n in self._given_up]
        return missing + [n for n in given_up if n not in missing]
