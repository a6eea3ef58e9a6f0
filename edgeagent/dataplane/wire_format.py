"""How the numbers of a round are added and travel: as they lie in memory, rounded to bfloat16, or
as integers (`integer_format.py`).

bfloat16 has the exponent of float32 and 8 instead of 24 bits of precision, so a number takes 2
bytes instead of 4 and is off by at most 1/256 of itself. Partial sums are rounded at each hop of
their way up, and added in float32. The reduced chunk is rounded once more, where it is complete:
all nodes have exactly those numbers then, and sending them on loses nothing.

Only chunks that consist of gradients are rounded. Running statistics of buffers travel with them in
the same vector, and small changes of theirs would be lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from edgeagent.dataplane.integer_format import Integers

Vector = np.ndarray[Any, np.dtype[Any]]


class WireFormat(Protocol):
    """How the numbers of a chunk are added and travel.

    A vector that is passed is the part of P or R that belongs to one chunk. `chunk` is that chunk's
    number, counted from 1, and `own` says that the vector is this node's contribution alone.
    """

    @property
    def in_place(self) -> bool:
        """Whether a reduced chunk is received straight into its vector, and sent from there."""

    def takes(self, length: int, vector: Vector, *, up: bool) -> bool:
        """Return whether a partial sum (`up`) or reduced chunk like `vector` can have `length`
        bytes."""

    def add(self, chunk: int, base: Vector, part: memoryview, out: Vector, *, first: bool) -> None:
        """Write the sum of `base` and a child's `part` to `out`, which may be `base`.

        `first`: `base` is this node's contribution, otherwise what was written to `out` before.
        Raises `RemoteProtocolError` if `part` cannot be a partial sum.
        """

    def ascending(self, chunk: int, vector: Vector, *, own: bool) -> memoryview:
        """Return the bytes of a partial sum: those in the memory of `vector`, or a copy."""

    def settle(self, chunk: int, vector: Vector, *, own: bool) -> None:
        """Give a complete sum the values that its receivers will have."""

    def descending(self, vector: Vector) -> memoryview:
        """Return the bytes of a reduced chunk: those in its memory if `in_place`, else a copy."""

    def read(self, data: memoryview, vector: Vector) -> None:
        """Write the numbers of a reduced chunk to `vector`."""

    def square_sum(self, vector: Vector) -> float:
        """Return the sum of squares of a reduced chunk in double precision."""


class AsTheyAre:
    """Numbers travel as they lie in memory. Implements `WireFormat`."""

    in_place = True

    def takes(self, length: int, vector: Vector, *, up: bool) -> bool:
        """Return whether `length` is the size of `vector`."""
        del up
        return length == vector.nbytes

    def add(self, chunk: int, base: Vector, part: memoryview, out: Vector, *, first: bool) -> None:
        """Write `base` plus the numbers in `part` to `out`."""
        del chunk, first
        np.add(base, np.frombuffer(part, base.dtype), out=out)

    def ascending(self, chunk: int, vector: Vector, *, own: bool) -> memoryview:
        """Return the memory of `vector`."""
        del chunk, own
        return vector.data.cast("B")

    def settle(self, chunk: int, vector: Vector, *, own: bool) -> None:
        """Do nothing: `vector` stays as it is."""

    def descending(self, vector: Vector) -> memoryview:
        """Return the memory of `vector`."""
        return vector.data.cast("B")

    def read(self, data: memoryview, vector: Vector) -> None:
        """Copy the numbers in `data`."""
        vector[:] = np.frombuffer(data, vector.dtype)

    def square_sum(self, vector: Vector) -> float:
        """Return the sum of squares of `vector`."""
        return square_sum(vector)


class BFloat16:
    """float32 numbers travel as the nearest bfloat16, the even one of two that are as near.
    Implements `WireFormat`."""

    in_place = False

    def takes(self, length: int, vector: Vector, *, up: bool) -> bool:
        """Return whether there are 2 bytes for each number."""
        del up
        return length == 2 * len(vector)

    def add(self, chunk: int, base: Vector, part: memoryview, out: Vector, *, first: bool) -> None:
        """Write `base` plus the numbers in `part` to `out`, added in float32."""
        del chunk, first
        np.add(base, _widened(part), out=out)

    def ascending(self, chunk: int, vector: Vector, *, own: bool) -> memoryview:
        """Return the rounded numbers of `vector`."""
        del chunk, own
        return _rounded(vector)

    def settle(self, chunk: int, vector: Vector, *, own: bool) -> None:
        """Round `vector`."""
        del chunk, own
        vector[:] = _widened(_rounded(vector))

    def descending(self, vector: Vector) -> memoryview:
        """Return the rounded numbers of `vector`."""
        return _rounded(vector)

    def read(self, data: memoryview, vector: Vector) -> None:
        """Write the numbers in `data`, as float32, to `vector`."""
        vector[:] = _widened(data)

    def square_sum(self, vector: Vector) -> float:
        """Return the sum of squares of `vector`."""
        return square_sum(vector)


class Formats:
    """The format of each data chunk: the first `rounded` of them travel as bfloat16, or all are
    sums of `integers`."""

    def __init__(self, rounded: int = 0, integers: Integers | None = None) -> None:
        self._rounded = rounded
        self._full: WireFormat = integers or AsTheyAre()
        self._short = BFloat16()

    def of(self, chunk: int) -> WireFormat:
        """Return the format of data chunk `chunk`, counted from 1."""
        return self._short if chunk <= self._rounded else self._full

    def bytes_of(self, elements: int, chunk_elements: int, item_bytes: int) -> int:
        """Return how many bytes a vector of `elements` numbers is on the wire."""
        short = min(elements, self._rounded * chunk_elements)
        return 2 * short + item_bytes * (elements - short)


def square_sum(vector: Vector) -> float:
    """Return the sum of squares in double precision, computed by the calling thread alone.

    `np.dot` would hand half of each chunk to a thread of the BLAS library. Where the trainer keeps
    all processor cores busy, that thread has to wait for a core, once for every chunk, which makes
    a round of a large vector take many times as long.
    """
    wide = vector.astype(np.float64, copy=False)
    return float(np.einsum("i,i->", wide, wide))


def _rounded(vector: Vector) -> memoryview:
    """Return the nearest bfloat16 of each number."""
    bits = vector.view(np.uint32)
    rounded = (bits >> 16) & 1  # ties to even: the half is added, less one for even numbers
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    short = rounded.astype(np.uint16)
    if (nan := np.isnan(vector)).any():  # rounding could have made an infinity of it
        short[nan] = (bits[nan] >> 16).astype(np.uint16) | 0x0040
    return short.data.cast("B")


def _widened(data: memoryview) -> Vector:
    """Return the bfloat16 numbers in `data` as float32."""
    wide = np.frombuffer(data, np.uint16).astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)
