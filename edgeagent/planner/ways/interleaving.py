"""Which way each chunk takes: all members compute the same from the weights alone."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd


def way_of_chunk(weights: Sequence[int], chunks: int) -> tuple[int, ...]:
    """Return for each of `chunks` chunks the index of its way, in proportion to `weights`.

    Smooth weighted round robin: with each chunk every way gains credit of its weight, and the way
    with the most credit, the first among equals, carries the chunk and pays the sum of all weights.
    So a way's chunks are spread over the vector and the ways' links are busy from its beginning to
    its end; no way is ever a whole chunk ahead of its share, and after as many chunks as the
    weights' sum each has exactly its share. Chunk 0, the control word, has a way of its own and is
    not among them: element 0 is chunk 1.

    Raises ValueError without ways, for a weight below 1 and for a negative number of chunks.
    """
    if not weights:
        raise ValueError("there is no way for any chunk")
    if min(weights) < 1:
        raise ValueError(f"a way's weight is at least 1, not {min(weights)}")
    if chunks < 0:
        raise ValueError(f"there cannot be {chunks} chunks")
    common = gcd(*weights)
    steps = [weight // common for weight in weights]
    period = sum(steps)
    credit = [0] * len(steps)
    order = []
    for _ in range(min(period, chunks)):
        credit = [have + step for have, step in zip(credit, steps, strict=True)]
        chosen = credit.index(max(credit))
        credit[chosen] -= period
        order.append(chosen)
    times, rest = divmod(chunks, period)
    return tuple(order * times + order[:rest])
