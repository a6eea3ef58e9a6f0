"""Records in bytes: the one place where what a peer has sent is unpacked.

`unpack` bounds what msgpack may build from hostile bytes, and `decode_fields` then accepts only the
declared fields. A *tagged record* is the msgpack array `[TAG, *fields]`; it stands alone where the
bytes around it already tell who sends it, as on the connections on which two nodes get to know each
other. Control frames carry more (`codec.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, overload

import msgpack

from protocols import limits
from protocols.errors import RemoteProtocolError
from protocols.wire.fields import decode_fields, encode_fields

if TYPE_CHECKING:
    from protocols.wire.message import Message

A = TypeVar("A", bound="Message")
B = TypeVar("B", bound="Message")
C = TypeVar("C", bound="Message")


def pack(value: object) -> bytes:
    """Return the msgpack bytes of `value`: None, numbers, texts, bytes and lists of these."""
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def unpack(data: bytes, most_items: int = limits.MAX_ITEMS) -> object:
    """Return the value in `data`, whose length the caller has bounded; arrays in it have at most
    `most_items` items. Raises `RemoteProtocolError` if it is no msgpack, or has maps or extensions.

    Nesting is bounded by msgpack's own fixed stack, and then by the declared records, which refuse
    every level that they do not declare.
    """
    try:
        value: object = msgpack.unpackb(
            data,
            max_array_len=min(most_items, len(data)),  # an item takes at least a byte
            max_map_len=0,
            max_ext_len=0,
        )
    except Exception as error:  # a parser of hostile bytes may raise anything
        raise RemoteProtocolError(f"malformed message ({type(error).__name__})") from None
    return value


def encode_tagged(record: Message) -> bytes:
    """Return `record` with its tag."""
    return pack([record.TAG, *encode_fields(record)])


@overload
def decode_tagged(data: bytes, kind: type[A], /) -> A: ...


@overload
def decode_tagged(data: bytes, kind: type[A], other: type[B], /) -> A | B: ...


@overload
def decode_tagged(data: bytes, kind: type[A], other: type[B], third: type[C], /) -> A | B | C: ...


def decode_tagged(data: bytes, *kinds: type[Message]) -> Message:
    """Return the record in `data`, which is of one of these kinds. Raises `RemoteProtocolError` if
    it is of none of them."""
    raw = unpack(data)
    if type(raw) is not list or not raw or type(raw[0]) is not int:
        raise RemoteProtocolError("expected [tag, *fields]")
    for kind in kinds:
        if raw[0] == kind.TAG:
            return decode_fields(kind, raw[1:])
    raise RemoteProtocolError("message out of place")
