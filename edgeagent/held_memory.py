"""Where the optimizer's slots, and the sums they are stepped with, lie in shared memory if they are
divided among the devices (`--shard-optimizer`).

One region has a place for all of it, but memory is taken only for what is written: a device writes
the chunks of the stripes that it holds. The region consists of vectors that are as long as that of
the gradients and have the same order and chunks:

    one for each slot (written by the trainer; by the agent while this device learns a stripe)
    the sums of the running iteration (agent)
    the sums of an iteration that a late trainer has missed (agent)

Stripe s has the data chunks s + 1, s + 1 + stripes, s + 1 + 2 stripes, ...
"""

from __future__ import annotations

from dataclasses import dataclass

from protocols import limits

EXTRA_VECTORS = 2  # sums, missed sums
ITEM_BYTES = 4  # of float32, the only dtype of gradients that can be divided


@dataclass(frozen=True, slots=True)
class HeldLayout:
    """Where each chunk lies in the region, in elements. `slots`: how many slots of full size the
    optimizer keeps for a parameter. `elements` and `chunk_elements` as in `Hello`."""

    slots: int
    elements: int
    chunk_elements: int

    @property
    def chunks(self) -> int:
        """The number of data chunks."""
        return -(-self.elements // self.chunk_elements)

    @property
    def stripes(self) -> int:
        """The number of stripes: as many as may be, if all have equally many chunks, or one fewer
        than others."""
        return -(-self.chunks // -(-self.chunks // limits.MAX_STRIPES)) if self.chunks else 0

    @property
    def kept_bytes(self) -> int:
        """What the slots of all stripes take, and the sums that belong to them."""
        return (self.slots + 1) * self.elements * ITEM_BYTES

    @property
    def bytes(self) -> int:
        """The length of the region."""
        return (self.slots + EXTRA_VECTORS) * self.elements * ITEM_BYTES

    def chunks_of(self, stripe: int) -> range:
        """Return the data chunks of a stripe."""
        return range(stripe + 1, self.chunks + 1, self.stripes)

    def stripe_of(self, chunk: int) -> int:
        """Return the stripe of a data chunk."""
        return (chunk - 1) % self.stripes

    def span(self, chunk: int) -> tuple[int, int]:
        """Return the first element of a data chunk in its vector, and its end."""
        start = (chunk - 1) * self.chunk_elements
        return start, min(start + self.chunk_elements, self.elements)

    def slot(self, number: int, chunk: int) -> slice:
        """Return the elements of the region that have a slot of a chunk."""
        return self._at(number, chunk)

    def sums(self, chunk: int) -> slice:
        """Return the elements of the region that have the sum of a chunk."""
        return self._at(self.slots, chunk)

    def missed(self, chunk: int) -> slice:
        """Return the elements of the region that have a sum which a late trainer has missed."""
        return self._at(self.slots + 1, chunk)

    def part_of_slot(self, number: int, first: int, length: int) -> slice:
        """Return the elements of the region that have a slot of `length` elements of the vector,
        from `first` on."""
        return self._part(number, first, length)

    def part_of_sums(self, first: int, length: int, *, missed: bool) -> slice:
        """Return those that have the sums of these elements; `missed`: of those missed by a late
        trainer."""
        return self._part(self.slots + missed, first, length)

    def _at(self, vector: int, chunk: int) -> slice:
        start, end = self.span(chunk)
        return self._part(vector, start, end - start)

    def _part(self, vector: int, first: int, length: int) -> slice:
        start = vector * self.elements + first
        return slice(start, start + length)
