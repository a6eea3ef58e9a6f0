"""The header in front of every payload on a bulk connection.

Law: fixed size, fixed layout, validated before a byte of payload is accepted. Payload bytes are
never interpreted here; where they go is decided by the round (`UP`, `DOWN`) or the pull (`SHARD`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from protocols import limits
from protocols.errors import RemoteProtocolError


class BulkKind(IntEnum):
    """What a bulk payload is. Append-only."""

    UP = 1  # a chunk's partial sum, from tree child to parent
    DOWN = 2  # a chunk's reduced value, from tree parent to child or subscriber
    SHARD = 3  # a piece of the training state, from a member to a joiner
    PROBE = 4  # bytes whose only content is their arrival time


_LAYOUT = struct.Struct("<BBHI16sIIQIIIdQ12s")
_MAGIC = 0xEA
_RESERVED = bytes(12)

_MAX_PAYLOAD = {
    BulkKind.UP: limits.MAX_CHUNK_BYTES,
    BulkKind.DOWN: limits.MAX_CHUNK_BYTES,
    BulkKind.SHARD: limits.MAX_SHARD_BYTES,
    BulkKind.PROBE: limits.MAX_CHUNK_BYTES,
}


@dataclass(frozen=True, slots=True)
class BulkHeader:
    """Says what the `length` payload bytes that follow are. `term` is that of the policy.

    For `UP` and `DOWN`, `index` is the chunk (0 = control word) and `square_sum` the float64 sum of
    squares of a reduced chunk (0.0 on the way up). For `SHARD`, `index` is the shard, `iteration`
    the iteration whose start the state belongs to, and `reference` the join's number.
    """

    kind: BulkKind
    lineage: bytes
    view: int
    policy: int
    iteration: int
    attempt: int
    index: int
    length: int
    square_sum: float = 0.0
    reference: int = 0
    term: int = 0

    def encode(self) -> bytes:
        """Return the `limits.BULK_HEADER_BYTES` bytes of this header."""
        return _LAYOUT.pack(
            _MAGIC,
            self.kind,
            0,
            self.length,
            self.lineage,
            self.view,
            self.policy,
            self.iteration,
            self.attempt,
            self.index,
            self.term,
            self.square_sum,
            self.reference,
            _RESERVED,
        )


def decode_header(data: bytes | bytearray | memoryview) -> BulkHeader:
    """Parse one header; raise `RemoteProtocolError` if it is not exactly one valid header."""
    if len(data) != limits.BULK_HEADER_BYTES:
        raise RemoteProtocolError("bulk header of the wrong size")
    (
        magic,
        kind,
        zero,
        length,
        lineage,
        view,
        policy,
        iteration,
        attempt,
        index,
        term,
        squares,
        ref,
        reserved,
    ) = _LAYOUT.unpack(data)
    if magic != _MAGIC or zero != 0 or reserved != _RESERVED:
        raise RemoteProtocolError("bulk header without its marks")
    try:
        known = BulkKind(kind)
    except ValueError:
        raise RemoteProtocolError(f"unknown bulk kind {kind}") from None
    if length > _MAX_PAYLOAD[known]:
        raise RemoteProtocolError(f"bulk payload of {length} bytes is over the limit")
    return BulkHeader(
        known, lineage, view, policy, iteration, attempt, index, length, squares, ref, term
    )
