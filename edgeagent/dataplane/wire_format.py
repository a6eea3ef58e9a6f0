"""How the numbers of a round travel: as they lie in memory, or rounded to bfloat16.

bfloat16 has the exponent of float32 and 8 instead of 24 bits of precision, so a number takes 2
bytes instead of 4 and is off by at most 1/256 of itself. Partial sums are rounded at each hop of
their way up, and added in float32. The reduced chunk is rounded once more, where it is complete:
all nodes have exactly those numbers then, and sending them on loses nothing.

Only chunks that consist of gradients are rounded. Running statistics of buffers travel with them in
the same vector, and small changes of theirs would be lost.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

Vector = np.ndarray[Any, np.dtype[Any]]


class WireFormat(Protocol):
    """How the numbers of a chunk travel."""

    @property
    def in_place(self) -> bool:
        """Whether a chunk is received straight into its vector, and sent from there."""

    def bytes_of(self, vector: Vector) -> int:
        """Return how many bytes `vector` is on the wire."""

    def pack(self, vector: Vector) -> memoryview:
        """Return the bytes of `vector`: those in its memory if `in_place`, else a copy."""

    def unpack(self, data: memoryview, like: Vector) -> Vector:
        """Return the numbers in `data`, of the dtype of `like`."""

    def settle(self, vector: Vector) -> memoryview:
        """Give `vector` the values that its receivers will have; return its bytes."""


class AsTheyAre:
    """Numbers travel as they lie in memory. Implements `WireFormat`."""

    in_place = True

    def bytes_of(self, vector: Vector) -> int:
        """Return the size of `vector`."""
        return vector.nbytes

    def pack(self, vector: Vector) -> memoryview:
        """Return the memory of `vector`."""
        return vector.data.cast("B")

    def unpack(self, data: memoryview, like: Vector) -> Vector:
        """Return the numbers in `data`."""
        return np.frombuffer(data, like.dtype)

    def settle(self, vector: Vector) -> memoryview:
        """Return the memory of `vector`, which stays as it is."""
        return self.pack(vector)


class BFloat16:
    """float32 numbers travel as the nearest bfloat16, the even one of two that are as near.
    Implements `WireFormat`."""

    in_place = False

    def bytes_of(self, vector: Vector) -> int:
        """Return 2 bytes for each number."""
        return 2 * len(vector)

    def pack(self, vector: Vector) -> memoryview:
        """Return the rounded numbers of `vector`."""
        bits = vector.view(np.uint32)
        rounded = (bits >> 16) & 1  # ties to even: the half is added, less one for even numbers
        rounded += 0x7FFF
        rounded += bits
        rounded >>= 16
        short = rounded.astype(np.uint16)
        if (nan := np.isnan(vector)).any():  # rounding could have made an infinity of it
            short[nan] = (bits[nan] >> 16).astype(np.uint16) | 0x0040
        return short.data.cast("B")

    def unpack(self, data: memoryview, like: Vector) -> Vector:
        """Return the numbers in `data`, as float32."""
        wide = np.frombuffer(data, np.uint16).astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)

    def settle(self, vector: Vector) -> memoryview:
        """Round `vector`, and return the rounded numbers."""
        packed = self.pack(vector)
        vector[:] = self.unpack(packed, vector)
        return packed


class Formats:
    """The format of each data chunk: the first `rounded` of them travel as bfloat16."""

    def __init__(self, rounded: int = 0) -> None:
        self._rounded = rounded
        self._full, self._short = AsTheyAre(), BFloat16()

    def of(self, chunk: int) -> WireFormat:
        """Return the format of data chunk `chunk`, counted from 1."""
        return self._short if chunk <= self._rounded else self._full

    def bytes_of(self, elements: int, chunk_elements: int, item_bytes: int) -> int:
        """Return how many bytes a vector of `elements` numbers is on the wire."""
        short = min(elements, self._rounded * chunk_elements)
        return 2 * short + item_bytes * (elements - short)
