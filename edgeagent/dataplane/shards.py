"""Shards of the training state: cut, hashed, sent, and received in place.

Shard k of size s is the bytes [k*s, (k+1)*s) of the flat state; the last shard may be shorter. The
caller makes sure that the state does not change while it is read.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from protocols.errors import RemoteProtocolError
from protocols.member.shard_sizes import shard_count
from protocols.wire.bulk import BulkHeader, BulkKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeagent.dataplane.snapshot import Snapshot

HASHED_AT_ONCE = 8 << 20  # bytes: some milliseconds, after which hashing may be given up


def shard_view(state: memoryview | Snapshot, shard_bytes: int, shard: int) -> memoryview:
    """Return the bytes of one shard."""
    return state[shard * shard_bytes : (shard + 1) * shard_bytes]


def leaves(state: memoryview | Snapshot, shard_bytes: int, first: int = 0) -> tuple[bytes, ...]:
    """Return the SHA-256 (32 bytes) of every shard from number `first` on, in order."""
    numbers = range(first, shard_count(len(state), shard_bytes))
    return tuple(hashlib.sha256(shard_view(state, shard_bytes, k)).digest() for k in numbers)


def shard_header(
    lineage: bytes, join: int, iteration: int, shard: int, payload: memoryview
) -> BulkHeader:
    """Return the bulk header of one shard of the state at the start of `iteration`."""
    return BulkHeader(
        BulkKind.SHARD, lineage, 0, 0, iteration, 0, shard, len(payload), reference=join
    )


def shard_target(state: memoryview, shard_bytes: int, header: BulkHeader) -> memoryview:
    """Return the memory for a shard; raise `RemoteProtocolError` if it would not fit there."""
    target = shard_view(state, shard_bytes, header.index)
    if not target or len(target) != header.length:
        raise RemoteProtocolError("a shard of the wrong length")
    return target


def state_digest(state: memoryview, meta: bytes) -> str:
    """Return the hexadecimal SHA-256 of the training state: its scalars, then its tensors."""
    digest = hashlib.sha256(hashlib.sha256(meta).digest())
    digest.update(state)
    return digest.hexdigest()


def state_digest_while(is_wanted: Callable[[], bool], state: memoryview, meta: bytes) -> str | None:
    """Return `state_digest` unless it `is_wanted` no more, which is asked before each
    `HASHED_AT_ONCE` bytes; then None."""
    digest = hashlib.sha256(hashlib.sha256(meta).digest())
    for first in range(0, len(state), HASHED_AT_ONCE):
        if not is_wanted():
            return None
        digest.update(state[first : first + HASHED_AT_ONCE])
    return digest.hexdigest()
