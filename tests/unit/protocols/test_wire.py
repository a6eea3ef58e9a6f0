"""Kinds of fields: each accepts exactly what it can produce, within its bound."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols import limits
from protocols.errors import ProtocolError, RemoteProtocolError
from protocols.wire.fields import (
    COUNT32,
    NODE,
    Blob,
    Bool,
    Float,
    Kind,
    Many,
    Nested,
    Row,
    Text,
    UInt,
    decode_fields,
    encode_fields,
    wire,
)
from protocols.wire.message import Message
from protocols.wire.packing import decode_tagged, encode_tagged, unpack

from .records import values


@dataclass(frozen=True, slots=True)
class Point:
    """A record with a check of its own."""

    x: int = wire(UInt(9))
    label: str = wire(Text(4))

    def __post_init__(self) -> None:
        if self.x == 5:
            raise ValueError("never five")


KINDS: tuple[Kind[Any], ...] = (
    UInt(),
    UInt(7),
    Float(),
    Float(finite=False),
    Bool(),
    Blob(5),
    Blob(4, 4),
    Text(),
    Text(8),
    Many(UInt(7), 3),
    Many(Many(Bool(), 2), 2),
    UInt(9, smallest=3),
    Text(8, smallest=2),
    Text(8, printable=False),
    Many(UInt(7), 3, smallest=1),
    Row(UInt(7), Text(3)),
)
REFUSED: tuple[tuple[Kind[Any], list[object]], ...] = (
    (UInt(7), [-1, 8, True, 1.0, "1", b"1", None, [1]]),
    (COUNT32, [1 << 32]),
    (UInt(), [1 << 63]),
    (Float(), [1, True, "0", None, float("nan"), float("inf"), -float("inf")]),
    (Float(finite=False), [1, None]),
    (Bool(), [0, 1, None, "True"]),
    (Blob(3), [b"1234", "12", None, [1], bytearray(2)]),
    (NODE, [b"x" * 31, b"x" * 33, b""]),
    (Text(3), ["1234", "ää", b"1", None, "a\nb", "\x1b[", "\ud800", "\u202e"]),
    (UInt(9, smallest=3), [2, 10, 0]),
    (Text(3, smallest=1), ["", "\x1b"]),
    (Text(3, printable=False), ["1234", b"1", "ää", None]),
    (Many(UInt(7), 2, smallest=1), [[], [1, 2, 3]]),
    (Row(UInt(7), Text(3)), [[], [1], [1, "a", 2], ["a", 1], (1, "a"), None]),
    (Many(UInt(7), 2), [[1, 2, 3], (1, 2), None, {}, [8], [1, [1]], 1]),
    (Nested(Point), [[1], [1, "a", 2], [5, "a"], [10, "a"], None, "ab", {"x": 1}]),
)


@given(st.data())
def test_what_was_encoded_reads_back(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    value = data.draw(values(kind))
    back = kind.decode(kind.encode(value))
    assert repr(back) == repr(value)  # NaN is not equal to itself
    assert type(back) is type(value)


@pytest.mark.parametrize(("kind", "raws"), REFUSED)
def test_everything_else_is_refused(kind: Kind[Any], raws: list[object]) -> None:
    for raw in raws:
        with pytest.raises(RemoteProtocolError):
            kind.decode(raw)


def test_bounds_are_inclusive() -> None:
    assert UInt(7).decode(7) == 7
    assert UInt(7).decode(0) == 0
    assert UInt().decode(limits.MAX_INTEGER) == limits.MAX_INTEGER
    assert Blob(3, 1).decode(b"123") == b"123"
    assert Blob(3, 1).decode(b"1") == b"1"
    assert Text(4).decode("ää") == "ää"
    assert Many(UInt(7), 2).decode([1, 2]) == (1, 2)


def test_integers_given_for_floats_travel_as_floats() -> None:
    assert type(Float().encode(3)) is float


def test_records_are_arrays_of_their_fields() -> None:
    assert encode_fields(Point(3, "a")) == [3, "a"]
    assert decode_fields(Point, [3, "a"]) == Point(3, "a")
    assert Nested(Point).decode(Nested(Point).encode(Point(3, "a"))) == Point(3, "a")


def test_a_refusal_of_the_constructor_is_the_peers_fault() -> None:
    with pytest.raises(RemoteProtocolError, match="never five"):
        decode_fields(Point, [5, "a"])


def test_a_refusal_names_the_record_and_the_field() -> None:
    with pytest.raises(RemoteProtocolError, match=r"Point\.x: expected an unsigned integer"):
        decode_fields(Point, [10, "a"])
    assert issubclass(RemoteProtocolError, ProtocolError)


@dataclass(frozen=True, slots=True)
class First(Message):
    """A tagged record."""

    TAG: ClassVar[int] = 1
    x: int = wire(UInt(9))


@dataclass(frozen=True, slots=True)
class Second(Message):
    """Another one."""

    TAG: ClassVar[int] = 2


def test_tagged_records_read_back_as_one_of_the_kinds_expected() -> None:
    data = encode_tagged(First(3))
    assert data == b"\x92\x01\x03"
    assert decode_tagged(data, First) == decode_tagged(data, Second, First) == First(3)
    with pytest.raises(RemoteProtocolError, match="out of place"):
        decode_tagged(data, Second)


@pytest.mark.parametrize("data", [b"", b"\x90", b"\x01", b"\x91\xc3", b"\x91\xa11", b"\x92\x01"])
def test_what_is_no_tagged_record_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_tagged(data, First, Second)


@given(st.binary(max_size=60))
def test_any_bytes_are_unpacked_or_refused(data: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        assert not isinstance(unpack(data), dict)
