"""One round: how a chunk's partial sums meet on the tree and how its reduced value spreads.

    own contribution + child 1 + child 2 + ... -> parent ... root -> children, subscribers

Law: each chunk is summed in the tree's fixed order (own first, then children ascending), so equal
policies give equal bits. A node's own contribution is read, never written. The machine knows chunk
numbers, not bytes; whoever drives it moves those. Chunk 0 is the control word.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocols.errors import LocalProtocolError, RemoteProtocolError


@dataclass(frozen=True, slots=True)
class RoundSpec:
    """Which round this is and where this node stands in it.

    `chunks` counts chunk 0. A subscriber (`contributes` False) only receives reduced chunks.
    """

    lineage: bytes
    view: int
    policy: int
    iteration: int
    attempt: int
    parent: bytes | None
    children: tuple[bytes, ...]
    subscribers: tuple[bytes, ...]
    chunks: int
    contributes: bool

    @property
    def key(self) -> tuple[bytes, int, int, int, int]:
        """The tags that every chunk of this round carries."""
        return (self.lineage, self.view, self.policy, self.iteration, self.attempt)


@dataclass(frozen=True, slots=True)
class Add:
    """R[chunk] = (own contribution if `first` else R[chunk]) + what `child` sent."""

    chunk: int
    child: bytes
    first: bool


@dataclass(frozen=True, slots=True)
class SendUp:
    """Send the partial sum to the parent: from P if `own`, else from R."""

    chunk: int
    own: bool


@dataclass(frozen=True, slots=True)
class Finish:
    """At the root: R[chunk] is reduced (copy it from P if `own`); take its sum of squares."""

    chunk: int
    own: bool


@dataclass(frozen=True, slots=True)
class SendDown:
    """Send the reduced R[chunk] to `to`."""

    chunk: int
    to: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Complete:
    """Every chunk of R is reduced and here."""


RoundEffect = Add | SendUp | Finish | SendDown | Complete


class Round:
    """The state of one round at one node."""

    def __init__(self, spec: RoundSpec) -> None:
        self.spec = spec
        self.contributed = not spec.contributes
        self._arrived = [0] * spec.chunks  # bit k: child k's sum is here
        self._added = [0] * spec.chunks  # children added so far
        self._reduced = bytearray(spec.chunks)
        self._missing = spec.chunks

    @property
    def complete(self) -> bool:
        """Whether every chunk is reduced here."""
        return self._missing == 0

    def contribute(self) -> list[RoundEffect]:
        """This node's own contribution is ready, in all chunks."""
        if self.contributed:
            raise LocalProtocolError("contributed twice to one round")
        self.contributed = True
        effects: list[RoundEffect] = []
        for chunk in range(self.spec.chunks):
            effects += self._advance(chunk)
        return effects

    def up(self, child: bytes, chunk: int) -> list[RoundEffect]:
        """`child`'s partial sum of `chunk` has arrived."""
        self.check_up(child, chunk)
        self._arrived[chunk] |= 1 << self.spec.children.index(child)
        return self._advance(chunk) if self.contributed else []

    def check_up(self, child: bytes, chunk: int) -> None:
        """Raise `RemoteProtocolError` unless `child` may send `chunk` now."""
        if child not in self.spec.children or chunk >= self.spec.chunks:
            raise RemoteProtocolError("a partial sum from no child, or of no chunk")
        if self._arrived[chunk] >> self.spec.children.index(child) & 1:
            raise RemoteProtocolError("a partial sum came twice")

    def down(self, sender: bytes, chunk: int) -> list[RoundEffect]:
        """The reduced `chunk` has arrived from the parent."""
        self.check_down(sender, chunk)
        return self._settle(chunk)

    def check_down(self, sender: bytes, chunk: int) -> None:
        """Raise `RemoteProtocolError` unless `sender` may send the reduced `chunk` now."""
        if sender != self.spec.parent or chunk >= self.spec.chunks:
            raise RemoteProtocolError("a reduced chunk from a node that is not the parent")
        if self._reduced[chunk]:
            raise RemoteProtocolError("a reduced chunk came twice")
        if self.spec.contributes and not self._sent_up(chunk):
            raise RemoteProtocolError("a reduced chunk came before its parts were sent")

    def _sent_up(self, chunk: int) -> bool:
        return self.contributed and self._added[chunk] == len(self.spec.children)

    def _advance(self, chunk: int) -> list[RoundEffect]:
        children = self.spec.children
        effects: list[RoundEffect] = []
        while (k := self._added[chunk]) < len(children) and self._arrived[chunk] >> k & 1:
            effects.append(Add(chunk, children[k], k == 0))
            self._added[chunk] += 1
        if self._added[chunk] < len(children):
            return effects
        if self.spec.parent is not None:
            return [*effects, SendUp(chunk, not children)]
        return [*effects, Finish(chunk, not children), *self._settle(chunk)]

    def _settle(self, chunk: int) -> list[RoundEffect]:
        self._reduced[chunk] = 1
        self._missing -= 1
        effects: list[RoundEffect] = []
        if to := self.spec.children + self.spec.subscribers:
            effects.append(SendDown(chunk, to))
        if self.complete:
            effects.append(Complete())
        return effects
