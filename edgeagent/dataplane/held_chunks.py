"""Sums of the chunks that this node holds, in the shared memory beside R.

The trainer makes a result of the sum of each chunk that this node owns, and may have to do so
again after a failure. So sums are kept apart from R, in which results take their place.

The trainer also steps its slots with these sums when it applies an update. If it is late with that,
the others go on, and sums of the next iterations come. They are kept aside until it is done, or it
would step its slots with a mixture of both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from edgeagent.held_memory import ITEM_BYTES
from protocols.rounds.control_word import pack_squares

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edgeagent.held_memory import HeldLayout
    from edgeagent.shared_memory import SharedRegion

Vector = np.ndarray[Any, np.dtype[Any]]


class HeldChunks:
    """What this node keeps of the running iteration's chunks, in the shared `region`; `layout` says
    where each chunk lies in it."""

    def __init__(self, region: SharedRegion, layout: HeldLayout) -> None:
        self._region = region
        self._memory: Vector = region.array("float32")
        self.layout = layout
        self._squares = [0.0] * layout.chunks
        self._is_lent = False  # the trainer reads sums, to step its slots
        self._aside: dict[int, Vector] = {}  # chunk -> its sum, which has come meanwhile

    def lend(self) -> None:
        """Leave the sums as they are until `returned`, because the trainer reads them."""
        self._is_lent = True

    def returned(self) -> None:
        """The trainer reads the sums no more: put those in place that have come meanwhile."""
        self._is_lent = False
        for chunk, total in self._aside.items():
            self._memory[self.layout.sums(chunk)] = total
        self._aside.clear()

    def begin(self) -> None:
        """A new attempt begins, in which sums are made anew."""
        self._squares = [0.0] * self.layout.chunks

    def keep(self, chunk: int, total: Vector) -> None:
        """Keep the sum of a chunk."""
        if self._is_lent:
            self._aside[chunk] = total.copy()  # R, in which it lies, is used again
        else:
            self._memory[self.layout.sums(chunk)] = total

    def summed(self, chunk: int, squares: float) -> None:
        """Note the sum of squares of a chunk that this node owns."""
        self._squares[chunk - 1] = squares

    @property
    def squares(self) -> bytes:
        """What this node's control word says of the chunks that it owns."""
        return pack_squares(self._squares)

    def copy_sums(self, stripes: Iterable[int]) -> dict[int, Vector]:
        """Return copies of the sums of these stripes, by chunk."""
        chunks = [c for s in stripes for c in self.layout.chunks_of(s)]
        return {c: self._aside.get(c, self._memory[self.layout.sums(c)]).copy() for c in chunks}

    def put_missed(self, sums: dict[int, Vector]) -> None:
        """Put sums that a late trainer has missed where it looks for them."""
        for chunk, total in sums.items():
            self._memory[self.layout.missed(chunk)] = total

    def drop_missed(self) -> None:
        """Give back the memory of these sums."""
        first, last = self.layout.missed(1), self.layout.missed(self.layout.chunks)
        self._region.release(ITEM_BYTES * first.start, ITEM_BYTES * last.stop)
