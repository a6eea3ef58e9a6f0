"""The pieces of parameters that a divided optimizer steps: what of a parameter lies in a chunk.

Each piece that is stepped has a fixed cost, which for small chunks is far more than that of its
numbers. Pieces that lie one behind the other in one parameter are therefore stepped as one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from edgeagent.trainer.gradients import VectorLayout


@dataclass(frozen=True, slots=True)
class Piece:
    """`length` elements from `start` on of the parameter with this number. In the gradient vector
    they lie from `first` on, where `chunk` is."""

    parameter: int
    start: int
    length: int
    first: int
    chunk: int


def pieces_of(vector: VectorLayout, sizes: Sequence[int]) -> dict[int, list[Piece]]:
    """Return the pieces in each chunk of gradients, for parameters with so many elements, in the
    order in which they lie."""
    found: dict[int, list[Piece]] = {}
    length = vector.chunk_elements
    places = sorted(zip(vector.gradient_offsets, range(len(sizes)), strict=True))
    for offset, number in places:
        at, end = offset, offset + sizes[number]
        while at < end:
            chunk = at // length + 1
            stop = min(end, chunk * length)
            found.setdefault(chunk, []).append(Piece(number, at - offset, stop - at, at, chunk))
            at = stop
    return found


def joined(pieces: Iterable[Piece], kind: Callable[[int], Hashable]) -> list[Piece]:
    """Return these pieces, ascending, with neighbours in one parameter made one if their chunks are
    of the same `kind`."""
    found: list[Piece] = []
    for piece in pieces:
        last = found[-1] if found else None
        if (
            last is not None
            and last.parameter == piece.parameter
            and last.first + last.length == piece.first
            and kind(last.chunk) == kind(piece.chunk)
        ):
            found[-1] = replace(last, length=last.length + piece.length)
        else:
            found.append(piece)
    return found
