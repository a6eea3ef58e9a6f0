"""In which memory R of each iteration lies, and when that may be used again.

R of even and odd iterations have a buffer each in the memory that is shared with the trainer. While
somebody still reads an earlier R there, the next one has memory of its own. All of this is called
on the event loop, so nothing but `kept` copies or clears a whole vector: memory of its own is taken
as it is written to, and an R that is kept can be copied in a thread (`keeping`).

Where the optimizer's state is divided, all iterations have one buffer for the chunks that have
weights. R of the iteration before, which a member may still lack, is read from the weights then:
they stay as they are until the next update, and nobody can make that before all members have all of
the one before.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from edgeagent.dataplane.weight_chunks import WeightChunks

Vector = np.ndarray[Any, np.dtype[Any]]


@dataclass(slots=True)
class _Place:
    """Where R of an iteration lies: in `own` memory, or if that is None in the shared memory. If it
    is `taken_over`, another R has the place of its weights there."""

    own: Vector | None = None
    taken_over: bool = False


@dataclass(frozen=True, slots=True)
class Keeping:
    """An R that is being copied to `target`, as bytes, from its `sections`."""

    iteration: int
    target: Vector
    sections: tuple[Vector, ...]
    place: _Place


class ReducedMemory:
    """R of the last two iterations. `shared`: the buffers for even and odd ones. `chunk_elements`:
    the length of a data chunk. `weights`: where weights lie if the optimizer's state is divided."""

    def __init__(
        self,
        shared: tuple[Vector, Vector],
        chunk_elements: int,
        weights: WeightChunks | None = None,
    ) -> None:
        self._shared = shared
        self._size = chunk_elements
        self._weights = weights
        self._divided = weights.chunks if weights is not None else 0  # chunks with weights
        self._places: dict[int, _Place] = {}
        self._lent: dict[int, None] = {}  # iterations whose R the trainer reads
        self._pinned: Counter[int] = Counter()  # how often R of an iteration is being copied

    def forget(self) -> None:
        """Forget all iterations; what somebody still reads stays as it is."""
        self._places = {}

    def make_room(self, iteration: int) -> None:
        """Choose where R of `iteration` lies, and forget all but that of the one before."""
        places = {i: p for i, p in self._places.items() if i in (iteration, iteration - 1)}
        self._places = places
        if iteration in places:
            return
        if self._is_read_beside(iteration):
            places[iteration] = _Place(self._memory_of_its_own())
            return
        before = places.get(iteration - 1)
        if self._divided and before is not None and before.own is None:
            if self._weights is None or not self._weights.are_of(iteration - 1):
                # The trainer could not take these weights over: they stay where they are.
                places[iteration] = _Place(self._memory_of_its_own())
                return
            before.taken_over = True
        places[iteration] = _Place()

    def _memory_of_its_own(self) -> Vector:
        """Return zeros that take no memory, and no time, before they are written to."""
        return np.zeros(len(self._shared[0]), self._shared[0].dtype)

    def _is_read_beside(self, iteration: int) -> bool:
        """Whether somebody reads another R where that of `iteration` would lie."""
        others = [i for i in (*self._lent, *self._pinned) if i != iteration]
        return any(self._divided or i % 2 == iteration % 2 for i in others)

    def sections(self, iteration: int) -> tuple[Vector, ...]:
        """Return R of `iteration` in pieces, one behind the other. It must be the last one, or be
        lent or pinned."""
        place, rest = self._places[iteration], self._shared[iteration % 2]
        if place.own is not None:
            return (place.own,)
        if place.taken_over:
            raise AssertionError("R of an iteration is asked for when another one has its place")
        end = self._divided * self._size
        return tuple(part for part in (self._shared[0][:end], rest[end:]) if len(part))

    def part(self, iteration: int, chunk: int) -> Vector:
        """Return a data chunk of R of `iteration`: a view, or a copy if only the state has it."""
        place = self._places[iteration]
        start, end = (chunk - 1) * self._size, chunk * self._size
        if place.own is not None:
            return place.own[start:end]
        if chunk > self._divided:
            return self._shared[iteration % 2][start:end]
        if place.taken_over and self._weights is not None:
            return self._weights.read(chunk)
        return self._shared[0][start:end]

    def lend(self, iteration: int) -> int | None:
        """Return the number of the shared buffer that holds R of `iteration`, None if none does.

        Nothing is written to that buffer until `returned` is called, because the trainer reads it.
        """
        place = self._places.get(iteration)
        if place is None or place.own is not None or place.taken_over:
            return None
        self._lent[iteration] = None
        return iteration % 2

    def returned(self, iteration: int) -> None:
        """Note that the trainer has applied the update of `iteration` and reads no more of it."""
        self._lent.pop(iteration, None)

    def pin(self, iteration: int) -> tuple[Vector, ...]:
        """Return R of `iteration` as `sections` does; it stays as it is until `unpin`."""
        self._pinned[iteration] += 1
        return self.sections(iteration)

    def unpin(self, iteration: int) -> None:
        """Note that R of `iteration` has been copied."""
        self._pinned[iteration] -= 1
        if not self._pinned[iteration]:
            del self._pinned[iteration]

    def kept(self, iteration: int) -> Vector:
        """Return R of `iteration`, a copy if it is in shared memory: it is written to no more, and
        lies there from now on."""
        place = self._places[iteration]
        if place.own is None:
            place.own = np.concatenate(self.sections(iteration))
        return place.own

    def keeping(self, iteration: int) -> Keeping | None:
        """Begin to do as `kept` does: return what is to be copied where, None if R has memory of
        its own. R stays as it is, and is read where it is, until `keep` is called."""
        place = self._places[iteration]
        if place.own is not None:
            return None
        sections = self.pin(iteration)
        target = np.empty(sum(map(len, sections)), sections[0].dtype)
        return Keeping(iteration, target, sections, place)

    def keep(self, copied: Keeping) -> None:
        """Note that `copied` is whole: that R lies there from now on, if it is known still."""
        self.unpin(copied.iteration)
        if self._places.get(copied.iteration) is copied.place:
            copied.place.own = copied.target
