"""Pairs of members of which one is broken, and which of the two that must be.

A member accuses another one that sent it what cannot be. The accusation counts against both, since
the accuser may be the broken one: it parts the pair, and a member that is parted from two others is
let go by the next fence. So a broken member goes as soon as a second one has seen it, for example
over another tree after the first has cut its link. A member that accuses everybody lets itself go,
and a single broken member can have nobody else let go; two broken members together can. What is
said of nodes that are no members is not kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import limits
from protocols.cluster.view import edge

if TYPE_CHECKING:
    from protocols.cluster.view import Edge, View


class Suspicions:
    """The accusations of the present view, and whom they have cost the membership."""

    def __init__(self) -> None:
        self._pairs: dict[Edge, str] = {}
        self._barred: dict[bytes, float] = {}  # node -> until when it is not let in again

    @property
    def pairs(self) -> tuple[Edge, ...]:
        """Members that must have no link between them, in the order in which they fell out."""
        return tuple(self._pairs)

    @property
    def let_go(self) -> tuple[bytes, ...]:
        """Members that are to stay out of the next decision, ascending."""
        ends = [n for pair in self._pairs for n in (pair.low, pair.high)]
        return tuple(sorted(n for n in dict.fromkeys(ends) if ends.count(n) >= limits.ACCUSERS))

    def accuse(self, view: View, accuser: bytes, accused: bytes, reason: str) -> bool:
        """`accuser` says that `accused` sent what cannot be; return whether that is news."""
        if accuser == accused or view.member(accuser) is None or view.member(accused) is None:
            return False
        pair = edge(accuser, accused)
        if pair in self._pairs:
            return False
        self._pairs[pair] = reason
        return True

    def reason(self, node: bytes) -> str:
        """Return what was first said against `node`."""
        said = [r for pair, r in self._pairs.items() if node in (pair.low, pair.high)]
        return said[0] if said else ""

    def switched(self, now: float, view: View) -> None:
        """A policy with `view` came into force: who was let go stays out for a while."""
        for node in self.let_go:
            if view.member(node) is None:
                self._barred[node] = now + limits.LET_GO_SECONDS
        for old in list(self._barred)[: -limits.MAX_EXPELLED]:
            del self._barred[old]
        self._pairs = {
            pair: reason
            for pair, reason in self._pairs.items()
            if view.member(pair.low) is not None and view.member(pair.high) is not None
        }

    def bars(self, now: float, node: bytes) -> bool:
        """Whether `node` was let go a short while ago."""
        return now < self._barred.get(node, now)
