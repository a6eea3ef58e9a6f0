"""Sums and results of the chunks that this node holds, in the shared memory beside R.

The trainer makes a result of the sum of each chunk that this node owns, and may have to do so
again after a failure. So sums are kept apart from R, and results are taken into R only when they
are sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from protocols.rounds.control_word import pack_squares

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edgeagent.held_memory import HeldLayout

Vector = np.ndarray[Any, np.dtype[Any]]


class HeldChunks:
    """What this node keeps of the running iteration's chunks. `memory`: the region `held` as
    float32; `layout` says where each chunk lies in it."""

    def __init__(self, memory: Vector, layout: HeldLayout) -> None:
        self._memory = memory
        self.layout = layout
        self._squares = [0.0] * layout.chunks

    def begin(self) -> None:
        """A new attempt begins, in which sums are made anew."""
        self._squares = [0.0] * self.layout.chunks

    def keep(self, chunk: int, total: Vector) -> None:
        """Keep the sum of a chunk."""
        self._memory[self.layout.sums(chunk)] = total

    def summed(self, chunk: int, squares: float) -> None:
        """Note the sum of squares of a chunk that this node owns."""
        self._squares[chunk - 1] = squares

    @property
    def squares(self) -> bytes:
        """What this node's control word says of the chunks that it owns."""
        return pack_squares(self._squares)

    def result(self, chunk: int) -> Vector:
        """Return the result that the trainer has made."""
        return self._memory[self.layout.results(chunk)]

    def copy_sums(self, stripes: Iterable[int]) -> dict[int, Vector]:
        """Return copies of the sums of these stripes, by chunk."""
        chunks = [c for s in stripes for c in self.layout.chunks_of(s)]
        return {c: self._memory[self.layout.sums(c)].copy() for c in chunks}

    def put_missed(self, sums: dict[int, Vector]) -> None:
        """Put sums that a late trainer has missed where it looks for them."""
        for chunk, total in sums.items():
            self._memory[self.layout.missed(chunk)] = total
