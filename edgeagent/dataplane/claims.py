"""Digests by which members notice that their training states differ, and where.

Each iteration a member claims the digest of all scalars and of one window of the tensors, since a
digest of the whole state would take too long. The windows follow each other, so that each byte is
compared again and again. The agent of a trainer on a device other than the CPU can read only every
`DIGEST_EVERY`th state. The windows are numbered so that those states, too, cover all of the
tensors, after `DIGEST_EVERY` times as many iterations.

The caller makes sure that the state does not change while it is read.
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
    """Return the half-open byte range (first, end) that the claim of `iteration` covers.

    With plain counting, every `DIGEST_EVERY`th window would be one of the same few whenever that
    number and the count of windows have a common factor. Each turn therefore begins one window
    earlier than the turn before.
    """
    count = max(1, -(-state_bytes // limits.CLAIM_WINDOW_BYTES))
    turns = iteration // math.lcm(count, DIGEST_EVERY)
    first = (iteration - turns) % count * limits.CLAIM_WINDOW_BYTES
    return first, min(first + limits.CLAIM_WINDOW_BYTES, state_bytes)


def state_claim(state: memoryview, meta: bytes, iteration: int) -> bytes:
    """Return the claim of the state at the start of `iteration`, whose scalars are `meta`.

    `state` is the flat training state as bytes; the claim has `limits.CLAIM_BYTES`.
    """
    first, end = window(len(state), iteration)
    digest = hashlib.sha256(hashlib.sha256(meta).digest())
    digest.update(state[first:end])
    return digest.digest()[: limits.CLAIM_BYTES]


def pieces(
    tensors: Sequence[tuple[str, int, int]], state_bytes: int, iteration: int
) -> Iterator[tuple[str, int, int]]:
    """Yield (name, first byte, end) of the part of each tensor that lies in the window.

    `tensors` are (name, offset, bytes) in ascending order, as in `handover.Hello`. At most
    `limits.MAX_PIECES` parts are named, because their digests have to fit into one message.
    """
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
    """Return the digests of the parts that `pieces` names, `PIECE_BYTES` each, concatenated."""
    parts = pieces(tensors, len(state), iteration)
    return b"".join(hashlib.sha256(state[a:b]).digest()[:PIECE_BYTES] for _, a, b in parts)
