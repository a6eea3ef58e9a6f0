"""Which members have accused each other, and which member must therefore be the broken one.

A member accuses another one that sent it what no correct member sends. The accusation counts
against both, since the accuser may be the broken one: the pair is linked no more, and a member that
is in two such pairs is let go by the next fence. So a broken member is let go as soon as a second
one has noticed it, for example over another tree after the first has cut its link. A member that
accuses everybody lets itself go, and a single broken member cannot have anybody else let go; two
broken members together can. Accusations by or of nodes that are no members are ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import limits
from protocols.cluster.view import edge

if TYPE_CHECKING:
    from protocols.cluster.view import Edge, View


class Suspicions:
    """The accusations in the present view, and the nodes that they have cost their membership."""

    def __init__(self) -> None:
        self._pairs: dict[Edge, str] = {}  # accuser and accused -> what was accused
        self._barred: dict[bytes, float] = {}  # node -> until when it is not let in again

    @property
    def pairs(self) -> tuple[Edge, ...]:
        """Pairs that must have no link between them, in the order of the accusations."""
        return tuple(self._pairs)

    @property
    def let_go(self) -> tuple[bytes, ...]:
        """Members that the next decision of a fence leaves out, ascending."""
        ends = [n for pair in self._pairs for n in (pair.low, pair.high)]
        return tuple(sorted(n for n in dict.fromkeys(ends) if ends.count(n) >= limits.ACCUSERS))

    def accuse(self, view: View, accuser: bytes, accused: bytes, reason: str) -> bool:
        """Note that `accuser` accuses `accused`; return whether the pair is a new one."""
        if accuser == accused or view.member(accuser) is None or view.member(accused) is None:
            return False
        pair = edge(accuser, accused)
        if pair in self._pairs:
            return False
        self._pairs[pair] = reason
        return True

    def reason(self, node: bytes) -> str:
        """Return the first accusation in which `node` is accuser or accused, "" if there is
        none."""
        said = [r for pair, r in self._pairs.items() if node in (pair.low, pair.high)]
        return said[0] if said else ""

    def switched(self, now: float, view: View) -> None:
        """A policy with `view` came into force: nodes that it has let go are barred for a while,
        and accusations that concern nobody in it any more are forgotten."""
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
        """Whether `node` was let go less than `LET_GO_SECONDS` ago."""
        return now < self._barred.get(node, now)
