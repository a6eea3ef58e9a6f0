"""The control word, chunk 0 of every round: what is reduced beside the gradient, and how.

`merge` is commutative and associative, except for the rounding of `loss_sum`, which is repeatable
because the tree fixes the order; the empty word is its neutral element. The policy that the reduced
word of iteration i names is in force from i+1 on, on all members, without another message, because
the reduced word is the same everywhere (protocol.md, I2).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from protocols import limits
from protocols.errors import RemoteProtocolError
from protocols.rounds.claims import merge_claims, read_claims
from protocols.wire.fields import (
    TERM,
    VERSION,
    Blob,
    Bool,
    Float,
    decode_fields,
    encode_fields,
    wire,
)
from protocols.wire.packing import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Sequence

_BITMAP_BYTES = 8192  # so a model has at most 65,536 parameter tensors


@dataclass(frozen=True, slots=True)
class ControlWord:
    """What one part of the tree, or all of it, says beside its gradients. Bitmaps are
    little-endian.

    - `term`, `policy`: key of the newest policy that is offered, or else is in force.
    - `done`: bit m is set if micro-batch m is in the sum.
    - `refusing`: bit k is set if member k of the view has handed micro-batches back or leaves.
    - `loss_sum`: sum of the mean losses of the micro-batches.
    - `gradient_bitmap`: bit p is set if parameter p had a gradient.
    - `integer_buffers`: the model's integer buffers after a micro-batch; `agree` is False if two
      micro-batches left different ones.
    - `late`: bit k is set if the trainer of member k does not answer in time.
    - `settings`: what a script set of the optimizer's scalars in this iteration, empty if none did.
      If scripts set different values, `settings` is the least of them as bytes and `other_settings`
      the greatest; otherwise `other_settings` is empty.
    - `claims`: which member has which training state (`claims.py`).
    - `stop`: a script wants training to end with this iteration, on all members.
    - `squares`: where chunks have holders, the sum of squares of each data chunk's sum (float64,
      little-endian), told by its owner; 0.0 where the owner is not in this part of the tree.
    """

    term: int = wire(TERM)
    policy: int = wire(VERSION)
    done: bytes = wire(Blob(limits.MAX_MICRO_BATCHES // 8))
    refusing: bytes = wire(Blob(limits.MAX_MEMBERS // 8))
    loss_sum: float = wire(Float(finite=False))
    gradient_bitmap: bytes = wire(Blob(_BITMAP_BYTES))
    integer_buffers: bytes = wire(Blob(limits.MAX_INTEGER_BUFFER_BYTES))
    agree: bool = wire(Bool())
    late: bytes = wire(Blob(limits.MAX_MEMBERS // 8), default=b"")
    settings: bytes = wire(Blob(limits.MAX_SETTINGS_BYTES), default=b"")
    other_settings: bytes = wire(Blob(limits.MAX_SETTINGS_BYTES), default=b"")
    claims: bytes = wire(Blob(limits.MAX_CLAIMS_BYTES), default=b"")
    stop: bool = wire(Bool(), default=False)
    squares: bytes = wire(Blob(limits.MAX_SQUARES_BYTES), default=b"")

    def __post_init__(self) -> None:
        if self.other_settings and not b"" < self.settings < self.other_settings:
            raise ValueError("settings that differ are not in order")
        read_claims(self.claims)
        if len(self.squares) % 8:
            raise ValueError("torn sums of squares")

    @property
    def weight(self) -> int:
        """How many micro-batches are in the sum."""
        return int.from_bytes(self.done, "little").bit_count()

    def encode(self) -> bytes:
        """Return the chunk's payload."""
        return pack(encode_fields(self))


EMPTY = ControlWord(0, 0, b"", b"", 0.0, b"", b"", True)


def decode_word(data: bytes | bytearray | memoryview) -> ControlWord:
    """Return the word that the payload `data` encodes. Raises `RemoteProtocolError` if it encodes
    none."""
    if len(data) > limits.MAX_CONTROL_WORD_BYTES:
        raise RemoteProtocolError("control word over the limit")
    try:
        return decode_fields(ControlWord, unpack(bytes(data), most_items=16))
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"control word: {error}") from None


def merge(a: ControlWord, b: ControlWord) -> ControlWord:
    """Return the word of both parts together; `a` comes first in the sum of the losses.

    Raises `RemoteProtocolError` if both parts contain the same micro-batch, which would count
    twice, or a claim of the same member.
    """
    if int.from_bytes(a.done, "little") & int.from_bytes(b.done, "little"):
        raise RemoteProtocolError("a micro-batch was contributed twice")
    newest = max((a.term, a.policy), (b.term, b.policy))
    known = [x for x in (a.integer_buffers, b.integer_buffers) if x]
    agree = a.agree and b.agree and (len(known) < 2 or known[0] == known[1])
    wanted = [x for w in (a, b) for x in (w.settings, w.other_settings) if x]
    settings, other = min(wanted, default=b""), max(wanted, default=b"")
    try:
        claims = merge_claims(a.claims, b.claims)
    except ValueError as error:
        raise RemoteProtocolError(str(error)) from None
    return ControlWord(
        *newest,
        _either(a.done, b.done),
        _either(a.refusing, b.refusing),
        a.loss_sum + b.loss_sum,
        _either(a.gradient_bitmap, b.gradient_bitmap),
        min(known, default=b""),
        agree,
        _either(a.late, b.late),
        settings,
        other if other != settings else b"",
        claims,
        stop=a.stop or b.stop,
        squares=_added(a.squares, b.squares),
    )


def naming(word: ControlWord, policy: tuple[int, int]) -> ControlWord:
    """Return `word` so that it names the policy with this key, unless it names a newer one."""
    if policy <= (word.term, word.policy):
        return word
    return replace(word, term=policy[0], policy=policy[1])


def bits(numbers: tuple[int, ...]) -> bytes:
    """Return the bitmap with these bits set, as short as it can be."""
    value = sum(1 << n for n in dict.fromkeys(numbers))
    return value.to_bytes((value.bit_length() + 7) // 8, "little")


def numbers(bitmap: bytes, below: int, *, unset: bool = False) -> tuple[int, ...]:
    """Return the numbers in 0..below-1 whose bits are set (with `unset`: not set), ascending."""
    value = int.from_bytes(bitmap, "little")
    return tuple(n for n in range(below) if bool(value >> n & 1) is not unset)


def set_bits(bitmap: bytes) -> tuple[int, ...]:
    """Return the numbers of all bits that are set in `bitmap`, ascending."""
    return numbers(bitmap, 8 * len(bitmap))


def pack_squares(values: Sequence[float]) -> bytes:
    """Return the field `squares` of a word."""
    return struct.pack(f"<{len(values)}d", *values)


def read_squares(data: bytes) -> tuple[float, ...]:
    """Return the numbers of the field `squares`."""
    return struct.unpack(f"<{len(data) // 8}d", data)


def _added(a: bytes, b: bytes) -> bytes:
    """Add two `squares`; each number is 0.0 in one of them, so nothing is rounded."""
    if not a or not b:
        return a or b
    if len(a) != len(b):
        raise RemoteProtocolError("sums of squares of another number of chunks")
    return pack_squares([x + y for x, y in zip(read_squares(a), read_squares(b), strict=True)])


def _either(a: bytes, b: bytes) -> bytes:
    size = max(len(a), len(b))
    bits = int.from_bytes(a, "little") | int.from_bytes(b, "little")
    return bits.to_bytes(size, "little")
