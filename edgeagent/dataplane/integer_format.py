"""Adds and sends chunks whose numbers are integers (`integer_blocks.py`), for `--exact`."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgeagent.integer_blocks import (
    ALL_BITS,
    BITS,
    BLOCK,
    BLOCK_WORDS,
    FIELD,
    HEADROOM,
    LARGEST_SHIFT,
    LOST,
    OFFSET,
    WIDE,
)
from protocols.errors import RemoteProtocolError

Vector = np.ndarray[Any, np.dtype[Any]]
Rows = dict[int, Vector]  # block of a chunk -> its int64 numbers
_ROW_BYTES = 8 * BLOCK
_LEAST, _MOST = -(1 << 31), (1 << 31) - 1  # of int32


class Integers:
    """Numbers travel upwards as integers and down as they are. Implements `WireFormat`.

    `wide`: the int64 numbers of this node's own contribution, of which only those of wide blocks
    are read; one dimension, `BLOCK` for each block of the vector. `chunk_blocks`: blocks of a
    chunk.
    """

    in_place = True

    def __init__(self, wide: Vector, chunk_blocks: int) -> None:
        self._wide = wide.reshape(-1, BLOCK)
        self._chunk_blocks = chunk_blocks
        # The int64 numbers that belong to the partial sums in R, by chunk.
        self._rows: dict[int, Rows] = {}

    def takes(self, length: int, vector: Vector, *, up: bool) -> bool:
        """Return whether a chunk like `vector` can have `length` bytes."""
        rows, odd = divmod(length - vector.nbytes, _ROW_BYTES)
        return not odd and 0 <= rows <= (_blocks(vector) if up else 0)

    def add(self, chunk: int, base: Vector, part: memoryview, out: Vector, *, first: bool) -> None:
        """Write `base` plus a child's `part` to `out`. `first`: `base` is this node's own.

        Raises `RemoteProtocolError` if `part` cannot be such a chunk, or if it was made with other
        exponents, which means that its sender has another training state.
        """
        blocks = _blocks(base)
        theirs = np.frombuffer(part[: base.nbytes], np.int32)
        before = self._rows.pop(chunk, {})  # of an attempt that was given up if this is the first
        rows = self._own_rows(chunk, base) if first else before
        more = _read_rows(theirs, part[base.nbytes :])
        mine, into = base.view(np.int32), out.view(np.int32)
        marks = _merge(mine[blocks * BLOCK :], theirs[blocks * BLOCK :])
        a, b = (words[: blocks * BLOCK].reshape(blocks, BLOCK) for words in (mine, theirs))
        total = into[: blocks * BLOCK].reshape(blocks, BLOCK)
        wide = {
            block: _row(rows, a, block) + _row(more, b, block) for block in sorted({*rows, *more})
        }
        if not _fits(a, b):
            for block in range(blocks):
                if block not in wide and not _fits(a[block], b[block]):
                    wide[block] = a[block].astype(np.int64) + b[block]
        np.add(a, b, out=total)
        for block in wide:
            total[block] = 0
            marks[block] |= WIDE
        into[blocks * BLOCK :] = marks
        if wide:
            self._rows[chunk] = wide

    def ascending(self, chunk: int, vector: Vector, *, own: bool) -> memoryview:
        """Return the bytes of a partial sum; `own`: it is this node's contribution alone. They are
        those in the memory of `vector` unless it has wide blocks."""
        rows = self._own_rows(chunk, vector) if own else self._rows.pop(chunk, {})
        if not rows:
            return vector.data.cast("B")
        return memoryview(
            vector.tobytes() + b"".join(row.tobytes() for _, row in sorted(rows.items()))
        )

    def descending(self, vector: Vector) -> memoryview:
        """Return the memory of a reduced chunk."""
        return vector.data.cast("B")

    def read(self, data: memoryview, vector: Vector) -> None:
        """Copy a reduced chunk to `vector`."""
        vector[:] = np.frombuffer(data, vector.dtype)

    def settle(self, chunk: int, vector: Vector, *, own: bool) -> None:
        """Make float32 numbers of the integers of a complete sum, in place.

        Each is the nearest float32 of the exact sum, so that it does not depend on the order of
        additions either. The numbers of lost blocks become NaN.
        """
        rows = self._own_rows(chunk, vector) if own else self._rows.pop(chunk, {})
        blocks = _blocks(vector)
        words = vector.view(np.int32)
        marks = words[blocks * BLOCK :]
        units = (marks & FIELD) - (OFFSET + BITS - HEADROOM)
        numbers = vector[: blocks * BLOCK].reshape(blocks, BLOCK)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            scale = np.ldexp(np.float32(1), units)
            floats = words[: blocks * BLOCK].reshape(blocks, BLOCK).astype(np.float32)
            np.multiply(floats, scale[:, None], out=numbers)
            for block, row in rows.items():
                numbers[block] = np.ldexp(row.astype(np.float64), units[block])
        numbers[(marks & LOST) != 0] = np.nan

    def square_sum(self, vector: Vector) -> float:
        """Return the sum of the squares of the numbers, in double precision.

        Rows of `BLOCK` squares are added one after the other, not by one call that sums all: how
        that orders its additions depends on the processor.
        """
        blocks = _blocks(vector)
        wide = vector[: blocks * BLOCK].astype(np.float64).reshape(blocks, BLOCK)
        with np.errstate(over="ignore", invalid="ignore"):
            np.multiply(wide, wide, out=wide)
            columns = np.add.reduce(wide, axis=0)
            total = 0.0
            for value in columns.tolist():
                total += value
        return total

    def _own_rows(self, chunk: int, vector: Vector) -> Rows:
        """Return the wide blocks of this node's own contribution, `vector`, to a chunk."""
        marks = vector.view(np.int32)[_blocks(vector) * BLOCK :]
        start = (chunk - 1) * self._chunk_blocks
        return {int(b): self._wide[start + b] for b in np.flatnonzero(marks & WIDE)}


def _blocks(vector: Vector) -> int:
    return len(vector) // BLOCK_WORDS


def _fits(a: Vector, b: Vector) -> bool:
    """Return whether no sum of an element of `a` and one of `b` is beyond int32."""
    return bool(int(a.max()) + int(b.max()) <= _MOST and int(a.min()) + int(b.min()) >= _LEAST)


def _row(rows: Rows, narrow: Vector, block: int) -> Vector:
    return rows[block] if block in rows else narrow[block].astype(np.int64)


def _read_rows(words: Vector, data: memoryview) -> Rows:
    marks = words[_blocks(words) * BLOCK :]
    wide = np.flatnonzero(marks & WIDE)
    if len(data) != len(wide) * _ROW_BYTES or (marks & ~ALL_BITS).any():
        raise RemoteProtocolError("a sum whose blocks are not marked as they are")
    rows = np.frombuffer(data, np.int64).reshape(-1, BLOCK)
    return {int(block): row for block, row in zip(wide, rows, strict=True)}


def _merge(mine: Vector, theirs: Vector) -> Vector:
    """Return the marks of the sum of two chunks."""
    a, b = mine & FIELD, theirs & FIELD
    if ((a != b) & (a != 0) & (b != 0)).any():
        raise RemoteProtocolError("its sum was made with other exponents than ours")
    largest = FIELD << LARGEST_SHIFT
    flags = (mine | theirs) & (WIDE | LOST)
    merged: Vector = np.maximum(a, b) | np.maximum(mine & largest, theirs & largest) | flags
    return merged
