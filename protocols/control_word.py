"""Chunk 0 of every round: what is reduced beside the gradient, and how two words become one.

Law: `merge` is commutative and associative except for the rounding of `loss_sum`, which the fixed
order of the tree makes repeatable; the empty word is neutral. The policy named in the reduced word
of iteration i holds from i+1 on, on all members, without another message (ROUNDS, control word).
"""

from __future__ import annotations

from dataclasses import dataclass

import msgpack

from protocols import limits
from protocols.errors import RemoteProtocolError
from protocols.wire import (
    NUMBER,
    Blob,
    Bool,
    Float,
    decode_fields,
    encode_fields,
    wire,
)

_BITMAP_BYTES = 8192


@dataclass(frozen=True, slots=True)
class ControlWord:
    """`term` and `policy`: the newest policy that may come into force. `done`: bit m is set if
    micro-batch m is in the sum. `refusing`: bit k is set if member k of the view computes no more.
    `loss_sum`: sum of the micro-batches' mean losses. `gradient_bitmap`: bit p is set if parameter
    p had a gradient. `integer_buffers`: their bytes after any micro-batch; `agree` is False if two
    micro-batches left different ones."""

    term: int = wire(NUMBER)
    policy: int = wire(NUMBER)
    done: bytes = wire(Blob(limits.MAX_MICRO_BATCHES // 8))
    refusing: bytes = wire(Blob(limits.MAX_MEMBERS // 8))
    loss_sum: float = wire(Float(finite=False))
    gradient_bitmap: bytes = wire(Blob(_BITMAP_BYTES))
    integer_buffers: bytes = wire(Blob(limits.MAX_INTEGER_BUFFER_BYTES))
    agree: bool = wire(Bool())

    @property
    def weight(self) -> int:
        """How many micro-batches are in the sum."""
        return int.from_bytes(self.done, "little").bit_count()

    def encode(self) -> bytes:
        """Return the chunk's payload."""
        packed: bytes = msgpack.packb(encode_fields(self), use_bin_type=True)
        return packed


EMPTY = ControlWord(0, 0, b"", b"", 0.0, b"", b"", True)


def decode_word(data: bytes | bytearray | memoryview) -> ControlWord:
    """Parse a payload; raise `RemoteProtocolError` if it is not a control word."""
    if len(data) > limits.MAX_CONTROL_WORD_BYTES:
        raise RemoteProtocolError("control word over the limit")
    try:
        raw: object = msgpack.unpackb(bytes(data), max_array_len=16, max_map_len=0, max_ext_len=0)
    except (ValueError, msgpack.UnpackException) as error:
        raise RemoteProtocolError(f"malformed control word: {type(error).__name__}") from None
    return decode_fields(ControlWord, raw)


def merge(a: ControlWord, b: ControlWord) -> ControlWord:
    """Return the word of both parts together, `a` first.

    Raises `RemoteProtocolError` if both contain the same micro-batch: it would count twice.
    """
    if int.from_bytes(a.done, "little") & int.from_bytes(b.done, "little"):
        raise RemoteProtocolError("a micro-batch was contributed twice")
    newest = max((a.term, a.policy), (b.term, b.policy))
    known = [x for x in (a.integer_buffers, b.integer_buffers) if x]
    agree = a.agree and b.agree and (len(known) < 2 or known[0] == known[1])
    return ControlWord(
        *newest,
        _either(a.done, b.done),
        _either(a.refusing, b.refusing),
        a.loss_sum + b.loss_sum,
        _either(a.gradient_bitmap, b.gradient_bitmap),
        min(known, default=b""),
        agree,
    )


def bits(numbers: tuple[int, ...]) -> bytes:
    """Return the bitmap with these bits set, as short as it can be."""
    value = sum(1 << n for n in dict.fromkeys(numbers))
    return value.to_bytes((value.bit_length() + 7) // 8, "little")


def numbers(bitmap: bytes, below: int, *, unset: bool = False) -> tuple[int, ...]:
    """Return which of 0..below-1 are set (or not set) in `bitmap`, ascending."""
    value = int.from_bytes(bitmap, "little")
    return tuple(n for n in range(below) if bool(value >> n & 1) is not unset)


def _either(a: bytes, b: bytes) -> bytes:
    size = max(len(a), len(b))
    bits = int.from_bytes(a, "little") | int.from_bytes(b, "little")
    return bits.to_bytes(size, "little")
