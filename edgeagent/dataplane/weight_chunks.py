"""The new weights of the last update, by chunk, as they lie in the training state.

Where the optimizer's state is divided, what a round leaves in a chunk of gradients are weights
(`HeldChunks`). Once the trainer has taken them over, they are in the state, and need not be kept a
second time for a member that still lacks some of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from edgeagent.held_memory import ITEM_BYTES
from edgeagent.marks import MARK_APPLYING, MARK_ITERATION

if TYPE_CHECKING:
    from edgeagent.handover import Hello
    from edgeagent.shared_memory import SharedMemory

Vector = np.ndarray[Any, np.dtype[Any]]


class WeightChunks:
    """Reads chunks of weights from the state. `hello` and `memory` are those of the trainer."""

    def __init__(self, hello: Hello, memory: SharedMemory) -> None:
        self._state = memory.state.array("float32")
        self._marks = memory.marks.array("int64")
        self._size = hello.chunk_elements
        self._whole = hello.elements
        # Element of the vector, element of the state and number of elements of each parameter.
        self._places = sorted((at, home // ITEM_BYTES, n) for at, home, n in hello.weights)
        end = max((at + count for at, _, count in self._places), default=0)
        self.chunks = -(-end // self._size)  # so many of the first data chunks have weights

    def are_of(self, iteration: int) -> bool:
        """Whether the state has the update of `iteration`, and no later one."""
        return bool(self._marks[MARK_ITERATION] == iteration + 1 and not self._marks[MARK_APPLYING])

    def read(self, chunk: int) -> Vector:
        """Return a data chunk as a new vector; what belongs to no weight in it is 0."""
        start = (chunk - 1) * self._size
        end = min(start + self._size, self._whole)
        found = np.zeros(end - start, np.float32)
        for at, home, count in self._places:
            first, last = max(start, at), min(end, at + count)
            if first < last:
                source = home + first - at
                found[first - start : last - start] = self._state[source : source + last - first]
        return found
