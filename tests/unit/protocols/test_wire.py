"""Kinds of fields: each accepts exactly what it can produce, within its bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
    Text,
    UInt,
    decode_fields,
    encode_fields,
    wire,
)

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
    assert issubclass(RemoteProtocolError, ProtocolError)
