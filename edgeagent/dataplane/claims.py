"""Digests by which members notice that their training states differ, and where.

A claim covers all scalars and one window of the tensors. The windows follow each other, so that
each byte is compared again and again. They are numbered so that this also holds if only every
`DIGEST_EVERY`th state can be read, as with a trainer on another device than the CPU; it then takes
as many times the iterations. The caller sees to it that the state does not change while it is read.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

from protocols import limits
from protocols.member.cycle import DIGEST_EVERY
from protocols.rounds.divergence import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def window(state_bytes: int, iteration: int) -> tuple[int, int]:
    """Return the first byte, and the one behind the last, that the claim of `iteration` covers.

    Where every `DIGEST_EVERY`th window would be the same few again, each turn through those begins
    one window earlier than the last.
    """
    count = max(1, -(-state_bytes // limits.CLAIM_WINDOW_BYTES))
    turns = iteration // math.lcm(count, DIGEST_EVERY)
    first = (iteration - turns) % count * limits.CLAIM_WINDOW_BYTES
    return first, min(first + limits.CLAIM_WINDOW_BYTES, state_bytes)


def state_claim(state: memoryview, meta: bytes, iteration: int) -> bytes:
    """Return the claim of the state at the start of `iteration`, whose scalars are `meta`."""
    first, end = window(len(state), iteration)
    digest = hashlib.sha256(hashlib.sha256(meta).digest())
    digest.update(state[first:end])
    return digest.digest()[: limits.CLAIM_BYTES]


def pieces(
    tensors: Sequence[tuple[str, int, int]], state_bytes: int, iteration: int
) -> Iterator[tuple[str, int, int]]:
    """Yield (name, first byte, end) of the part of each tensor that is in the window, at most
    `limits.MAX_PIECES`. `tensors`: (name, offset, bytes), ascending, as in `handover.Hello`."""
    first, end = window(state_bytes, iteration)
    count = 0
    for name, offset, size in tensors:
        a, b = max(first, offset), min(end, offset + size)
        if a < b and count < limits.MAX_PIECES:
            count += 1
            yield name, a, b


def piece_digests(
    state: memoryview, tensors: Sequence[tuple[str, int, int]], iteration: int
) -> bytes:
    """Return the digests of these parts, `PIECE_BYTES` each, one after the other."""
    parts = pieces(tensors, len(state), iteration)
    return b"".join(hashlib.sha256(state[a:b]).digest()[:PIECE_BYTES] for _, a, b in parts)
