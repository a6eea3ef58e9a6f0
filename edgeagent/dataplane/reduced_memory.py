"""In which memory R of each iteration lies, and when that may be used again.

R of even and odd iterations have a buffer each in the memory that is shared with the trainer. While
the trainer still reads an earlier R there, the next one has memory of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Vector = np.ndarray[Any, np.dtype[Any]]


class ReducedMemory:
    """R of the last two iterations. `shared`: the buffers for even and odd ones."""

    def __init__(self, shared: tuple[Vector, Vector]) -> None:
        self._shared = shared
        self.vectors: dict[int, Vector] = {}  # iteration -> its R
        self._lent: dict[int, int] = {}  # shared buffer -> iteration whose R the trainer reads

    def forget(self) -> None:
        """Forget all iterations; what is lent to the trainer stays so."""
        self.vectors = {}

    def make_room(self, iteration: int) -> None:
        """Choose where R of `iteration` lies, and forget all but that of the one before."""
        before = {i: v for i, v in self.vectors.items() if i in (iteration, iteration - 1)}
        if iteration not in before:
            buffer = iteration % 2
            lent = self._lent.get(buffer, iteration) != iteration
            shared = self._shared[buffer]
            before[iteration] = np.zeros_like(shared) if lent else shared
        self.vectors = before

    def at(self, iteration: int | None) -> Vector:
        """Return R of `iteration`; some vector of that length if it is None."""
        return self._shared[0] if iteration is None else self.vectors[iteration]

    def lend(self, iteration: int) -> int | None:
        """Return the number of the shared buffer that holds R of `iteration`, None if none does.

        Nothing is written to that buffer until `returned` is called, because the trainer reads it.
        """
        buffer = iteration % 2
        if self.vectors.get(iteration) is not self._shared[buffer]:
            return None
        self._lent[buffer] = iteration
        return buffer

    def returned(self, iteration: int) -> None:
        """Note that the trainer has applied the update of `iteration` and reads no more of it."""
        if self._lent.get(iteration % 2) == iteration:
            del self._lent[iteration % 2]

    def kept(self, iteration: int) -> Vector:
        """Return R of `iteration`, a copy if it is in shared memory: it is written to no more."""
        vector = self.vectors[iteration]
        return vector.copy() if any(vector is s for s in self._shared) else vector
