"""Which links are reported broken, and which members and links are therefore lost.

A broken link costs a node its membership only if no other path of links leads to it; otherwise the
link alone is lost. Reports are flooded, so all members come to the same conclusion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import limits
from protocols.cluster.view import edge
from protocols.scheduler.fence import Lost

if TYPE_CHECKING:
    from collections.abc import Iterable

    from protocols.cluster.view import Edge, View


class Losses:
    """Reports of broken links in the present view."""

    def __init__(self) -> None:
        self._renewed: dict[Edge, None] = {}  # links that broke and are open again
        self._broken: dict[tuple[bytes, bytes], bool] = {}  # (reporter, peer) -> by a departure
        self._since: dict[tuple[bytes, bytes], float] = {}  # (reporter, peer) -> first reported at

    def __bool__(self) -> bool:
        """Whether a link is broken, or has been since the running round began."""
        return bool(self._broken or self._renewed)

    def note(self, now: float, reporter: bytes, peer: bytes, *, reset: bool) -> bool:
        """Note that the link of `reporter` to `peer` has ended; `reset`: its end proves that `peer`
        has departed. Return whether neither end has reported this before."""
        is_news = not self._is_broken(reporter, peer)
        if (reporter, peer) not in self._broken:
            self._since[reporter, peer] = now
        self._broken[reporter, peer] = reset or self._broken.get((reporter, peer), False)
        return is_news

    def renewed(self, a: bytes, b: bytes) -> None:
        """Note that a link between `a` and `b` is open again. It still counts as lost for the
        running round, because what the link before carried is lost."""
        if self._is_broken(a, b):
            self._renewed[edge(a, b)] = None
        self._forget(a, b)

    def reopened(self, node: bytes) -> list[bytes]:
        """Return the other ends of those links of `node` that broke and are open again."""
        edges = [e for e in self._renewed if node in (e.low, e.high)]
        return [e.high if node == e.low else e.low for e in edges]

    def _forget(self, a: bytes, b: bytes) -> None:
        for ends in ((a, b), (b, a)):
            self._broken.pop(ends, None)
            self._since.pop(ends, None)

    def forget_all_but(self, view: View) -> None:
        """Forget reports about links that `view` does not have."""
        edges = dict.fromkeys((e.low, e.high) for e in view.edges)
        for a, b in list(self._broken):
            if (min(a, b), max(a, b)) not in edges:
                self._forget(a, b)
        self._renewed = {e: None for e in self._renewed if (e.low, e.high) in edges}

    def lost(self, now: float, view: View, me: bytes, mine: Iterable[bytes]) -> Lost:
        """Return everything that is lost, as far as `me`, which has open links to `mine`, can know.

        A node is lost if no path of unbroken links leads to it. It is proven dead if every link
        between it and the nodes still in reach ended by its departure. A broken link between nodes
        that are in reach counts only after `LINK_CONFIRM_SECONDS`, because until then more reports
        may show that a node is lost. One that was opened again since counts at once.
        """
        if not self:
            return Lost()
        reach = self._in_reach(view, me, mine)
        silent: list[bytes] = []
        dead: list[bytes] = []
        for node in view.nodes:
            if node not in reach:
                ends = [self._ended(n, node) for n in view.neighbours(node) if n in reach]
                (dead if ends and all(ends) else silent).append(node)
        links = tuple(
            e
            for e in view.edges
            if e.low in reach and e.high in reach
            if e in self._renewed or self._is_old(now, e.low, e.high)
        )
        return Lost(tuple(silent), tuple(dead), links)

    def _in_reach(self, view: View, me: bytes, mine: Iterable[bytes]) -> dict[bytes, None]:
        """Return the nodes to which a path of open links leads. This node knows which of its own
        links are open; of the others it takes those that nobody reports broken."""
        reach = dict.fromkeys((me, *(n for n in sorted(mine) if n in view.nodes)))
        # The view's links of `me` are not used: `mine` has those that are really open.
        queue = [n for n in reach if n != me]
        for at in queue:
            for other in view.neighbours(at):
                if other not in reach and not self._is_broken(at, other):
                    reach[other] = None
                    queue.append(other)
        return reach

    def _is_broken(self, a: bytes, b: bytes) -> bool:
        return (a, b) in self._broken or (b, a) in self._broken

    def _ended(self, reporter: bytes, peer: bytes) -> bool:
        return self._broken.get((reporter, peer), False)

    def _is_old(self, now: float, a: bytes, b: bytes) -> bool:
        times = [self._since[ends] for ends in ((a, b), (b, a)) if ends in self._since]
        # Compared with the sum of which `deadline` is made: a difference may round to less.
        return bool(times) and now >= min(times) + limits.LINK_CONFIRM_SECONDS

    def deadline(self, now: float) -> float | None:
        """When a broken link will begin to count (see `lost`); None if none is about to."""
        due = [since + limits.LINK_CONFIRM_SECONDS for since in self._since.values()]
        return min((t for t in due if t > now), default=None)
