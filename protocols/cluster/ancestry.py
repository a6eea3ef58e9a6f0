"""The history of a training state, and whether another state's history contains it.

This decides whether a trained state may be replaced by another cluster's without being saved first.

A lineage has one history, so a lineage and an iteration name the history of a state. There is one
exception: after a loss, the last iteration that the lost member did may be done again without it,
from the same samples, so that two states with one name differ in their last update. A cluster that
goes on in another lineage keeps the name of the lineage before and the iteration at which it was
left. Only the last `limits.MAX_ANCESTORS` lineages are kept; a state that only an older one would
show to be contained counts as not contained.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocols import limits
from protocols.wire.fields import LINEAGE, NUMBER, Blob, Many, Nested, wire


@dataclass(frozen=True, slots=True)
class Ancestor:
    """An earlier lineage. The updates up to `iteration`, which counts updates from the beginning,
    were made in it or in lineages before it."""

    lineage: bytes = wire(LINEAGE)
    iteration: int = wire(NUMBER)


@dataclass(frozen=True, slots=True)
class Past:
    """The history of a state after `iteration` updates: the last of them were made in `lineage`,
    those before in `ancestors`, the oldest first. `lineage` is b"" before there is one."""

    iteration: int = wire(NUMBER, 0)
    lineage: bytes = wire(Blob(limits.LINEAGE_BYTES), b"")
    ancestors: tuple[Ancestor, ...] = wire(Many(Nested(Ancestor), limits.MAX_ANCESTORS), ())

    def in_lineage(self, lineage: bytes) -> Past:
        """Return the history of the same state at the beginning of another lineage."""
        if not self.lineage or not self.iteration or lineage == self.lineage:
            return Past(self.iteration, lineage, self.ancestors)
        kept = (*self.ancestors, Ancestor(self.lineage, self.iteration))
        return Past(self.iteration, lineage, kept[-limits.MAX_ANCESTORS :])

    def stems_from(self, other: Past) -> bool:
        """Whether this is a state of the same history as `other`, earlier or later, except perhaps
        for the last update of `other`, which this history may make again from the same samples."""
        return self._has(other, 1)

    def contains(self, other: Past) -> bool:
        """Whether the updates of `other` are among those of this state, except perhaps for the last
        one before a loss, which both may have made from the same samples."""
        return self.iteration >= other.iteration and self._has(other, 0)

    def _has(self, other: Past, beyond: int) -> bool:
        """Whether `other` lies in this history, or at most so many updates beyond a point at which
        this history left a lineage."""
        if other.iteration == 0:
            return True
        tips = [Ancestor(other.lineage, other.iteration)]
        tips += [a for a in other.ancestors if a.iteration == other.iteration]
        mine = (*self.ancestors, Ancestor(self.lineage, self.iteration))
        return any(
            tip.lineage == known.lineage != b"" and tip.iteration <= known.iteration + beyond
            for tip in tips
            for known in mine
        )


NOTHING = Past()
