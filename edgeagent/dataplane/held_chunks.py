"""Sums of the chunks that this node holds, in the shared memory beside R.

The trainer makes a result of the sum of each chunk that this node owns, and may have to do so
again after a failure. So sums are kept apart from R, in which results take their place.

The trainer also steps its slots with these sums, after the update that they belong to. Meanwhile
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
        # One for each update whose slots the trainer has still to step with its sums, of which the
        # first lie in their place: chunk -> the sum that has come since, of the next one.
        self._aside: list[dict[int, Vector]] = []

    def lend(self) -> None:
        """Leave the sums as they are until `returned`, because the trainer reads them. If earlier
        ones are lent still, these follow them."""
        self._aside.append({})

    def returned(self) -> None:
        """The trainer reads the sums that were lent first no more: put in their place what has come
        since. Nothing happens if none are lent."""
        came = self._aside.pop(0) if self._aside else {}
        for chunk, total in came.items():
            self._memory[self.layout.sums(chunk)] = total

    def begin(self) -> None:
        """A new attempt begins, in which sums are made anew."""
        self._squares = [0.0] * self.layout.chunks

    def keep(self, chunk: int, total: Vector) -> None:
        """Keep the sum of a chunk."""
        if self._aside:
            self._aside[-1][chunk] = total.copy()  # R, in which it lies, is used again
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
        newest = {c: total for came in self._aside for c, total in came.items()}
        return {c: newest.get(c, self._memory[self.layout.sums(c)]).copy() for c in chunks}

    def put_missed(self, sums: dict[int, Vector]) -> None:
        """Put sums that a late trainer has missed where it looks for them."""
        for chunk, total in sums.items():
            self._memory[self.layout.missed(chunk)] = total

    def drop_missed(self) -> None:
        """Give back the memory of these sums."""
        first, last = self.layout.missed(1), self.layout.missed(self.layout.chunks)
        self._region.release(ITEM_BYTES * first.start, ITEM_BYTES * last.stop)
