"""The header in front of every payload on a bulk connection.

A header has a fixed size and layout, and is validated before a byte of its payload is accepted. Its
numbers have the same limits as those of control messages, so that a number that was read in one can
always be written in the other. Payload bytes are never interpreted here; the round (`UP`, `DOWN`)
or the pull (`SHARD`) decides where they go.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

from protocols import limits
from protocols.errors import RemoteProtocolError


class BulkKind(IntEnum):
    """What a bulk payload is. The numbers are sent, so they never change; new ones may be added."""

    UP = 1  # a chunk's partial sum, from tree child to parent
    DOWN = 2  # a chunk's reduced value, from tree parent to child or subscriber
    SHARD = 3  # a piece of the training state, from a member to a joiner
    PROBE = 4  # bytes without meaning, sent so that the receiver can measure the link
    UPDATE = 5  # a part of a reduced gradient, from a member to a joiner that copies
    SUM = 6  # a chunk's whole sum, from its owner towards the copies
    SLOT = 7  # a chunk of one of the optimizer's slots, from a holder to a learner


# Little-endian: magic, kind, marks, length, lineage, view, policy, iteration, attempt, index, term,
# square_sum, reference, check, reserved.
_LAYOUT = struct.Struct("<BBHI16sIIQIIIdQI8s")
_SQUARES = struct.Struct("<d")
_MAGIC = 0xEA
_RESERVED = bytes(8)
_MARKS_AT = 2  # offset of the first byte of the marks
_SHARED = 1  # among the marks: other links of the sender are busy, too

_MAX_PAYLOAD = {
    BulkKind.UP: limits.MAX_CHUNK_BYTES,
    BulkKind.DOWN: limits.MAX_CHUNK_BYTES,
    BulkKind.SHARD: limits.MAX_SHARD_BYTES,
    BulkKind.PROBE: limits.MAX_CHUNK_BYTES,
    BulkKind.UPDATE: limits.MAX_SHARD_BYTES,
    BulkKind.SUM: limits.MAX_CHUNK_BYTES,
    BulkKind.SLOT: limits.MAX_CHUNK_BYTES,
}


@dataclass(frozen=True, slots=True)
class BulkHeader:
    """Says what the `length` payload bytes are that follow. `term` is that of the policy.

    For `UP` and `DOWN`, `index` is the chunk (0 is the control word) and `square_sum` the float64
    sum of squares of a reduced chunk (0.0 on the way up). For `DOWN`, `check` is the `checksum` of
    the chunk as the root sent it, so that an alteration on the way is found where it happened. For
    `SHARD`, `index` is the shard, `iteration` the iteration at whose start the state was held, and
    `reference` the number of the join. For `UPDATE`, `index` is the part, `iteration` that of the
    update, and `reference` the number of the join. A `SUM` is like a `DOWN` without a sum of
    squares. For `SLOT`, `index` is the chunk, `iteration` the one at whose start it was so, and
    `reference` the number of the slot.
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
    check: int = 0

    def encode(self, *, shared: bool = False) -> bytes:
        """Return the `limits.BULK_HEADER_BYTES` bytes of this header. `shared`: other links of this
        device are busy, too, so the payload says little of how fast this one is."""
        return _LAYOUT.pack(
            _MAGIC,
            self.kind,
            _SHARED if shared else 0,
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
            self.check,
            _RESERVED,
        )


def decode_header(data: bytes | bytearray | memoryview) -> BulkHeader:
    """Parse one header; raise `RemoteProtocolError` if it is not exactly one valid header."""
    if len(data) != limits.BULK_HEADER_BYTES:
        raise RemoteProtocolError("bulk header of the wrong size")
    (
        magic,
        kind,
        marks,
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
        check,
        reserved,
    ) = _LAYOUT.unpack(data)
    if magic != _MAGIC or marks & ~_SHARED or reserved != _RESERVED:
        raise RemoteProtocolError("bulk header without its marks")
    try:
        known = BulkKind(kind)
    except ValueError:
        raise RemoteProtocolError(f"unknown bulk kind {kind}") from None
    if length > _MAX_PAYLOAD[known]:
        raise RemoteProtocolError(f"bulk payload of {length} bytes is over the limit")
    _check_numbers(view, policy, iteration, attempt, term, ref)
    _check_result(known, squares, check)
    numbers = (view, policy, iteration, attempt, index, length)
    return BulkHeader(known, lineage, *numbers, squares, ref, term, check)


def is_shared(data: bytes | bytearray | memoryview) -> bool:
    """Return whether the sender of a valid header said that other links of its were busy, too."""
    return bool(data[_MARKS_AT] & _SHARED)


def checksum(payload: bytes | bytearray | memoryview, square_sum: float) -> int:
    """Return the CRC-32 of a reduced chunk and its sum of squares, which travels in the header."""
    return zlib.crc32(payload, zlib.crc32(_SQUARES.pack(square_sum)))


def _check_numbers(
    view: int, policy: int, iteration: int, attempt: int, term: int, reference: int
) -> None:
    bounds = (
        (view, limits.MAX_VIEW),
        (policy, limits.MAX_VERSION),
        (iteration, limits.MAX_ITERATION),
        (attempt, limits.MAX_ATTEMPT),
        (term, limits.MAX_TERM),
        (reference, limits.MAX_INTEGER),
    )
    if any(value > most for value, most in bounds):
        raise RemoteProtocolError("a bulk header with a number over its limit")


def _check_result(kind: BulkKind, squares: float, check: int) -> None:
    """Raise `RemoteProtocolError` unless the sum of squares and the checksum are possible. Only a
    reduced chunk has them. A sum of squares may be infinite or NaN, as gradients may, but it is
    never negative."""
    checked = kind in (BulkKind.DOWN, BulkKind.SUM)
    if squares < 0.0 or (kind is not BulkKind.DOWN and squares != 0.0):
        raise RemoteProtocolError("a bulk header with an impossible sum of squares")
    if not checked and check:
        raise RemoteProtocolError("a bulk header with a checksum of nothing")
