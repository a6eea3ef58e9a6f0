"""Kinds of fields: how one value looks on the wire, and what is refused.

`decode` accepts exactly what `encode` can produce, within the bound of the kind, and raises
`RemoteProtocolError` on everything else. Records are msgpack arrays of their fields in the order of
declaration; fields are only ever added at the end of a record.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Generic, Protocol, TypeVar

from protocols import limits
from protocols.errors import RemoteProtocolError

T = TypeVar("T")
R = TypeVar("R")


class Kind(Protocol[T]):
    """One kind of field."""

    def encode(self, value: T) -> object:
        """Return what msgpack is to pack for `value`."""

    def decode(self, raw: object) -> T:
        """Return the value that `raw`, which msgpack has unpacked, stands for. Raises
        `RemoteProtocolError` if it stands for none of this kind."""


@dataclass(frozen=True, slots=True)
class UInt:
    """An integer in 0..`largest`."""

    largest: int = limits.MAX_INTEGER

    def encode(self, value: int) -> int:
        return value

    def decode(self, raw: object) -> int:
        if type(raw) is not int or not 0 <= raw <= self.largest:
            raise RemoteProtocolError("expected an unsigned integer within its bound")
        return raw


@dataclass(frozen=True, slots=True)
class Float:
    """A float64; infinities and NaN are accepted only if `finite` is False."""

    finite: bool = True

    def encode(self, value: float) -> float:
        return float(value)

    def decode(self, raw: object) -> float:
        if type(raw) is not float or (self.finite and not math.isfinite(raw)):
            raise RemoteProtocolError("expected a float")
        return raw


@dataclass(frozen=True, slots=True)
class Bool:
    """True or False."""

    def encode(self, value: bool) -> bool:
        return value

    def decode(self, raw: object) -> bool:
        if type(raw) is not bool:
            raise RemoteProtocolError("expected a boolean")
        return raw


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes, from `smallest` to `largest` of them."""

    largest: int
    smallest: int = 0

    def encode(self, value: bytes) -> bytes:
        return value

    def decode(self, raw: object) -> bytes:
        if type(raw) is not bytes or not self.smallest <= len(raw) <= self.largest:
            raise RemoteProtocolError("expected bytes within their bound")
        return raw


@dataclass(frozen=True, slots=True)
class Text:
    """Text of at most `largest` bytes in UTF-8. It must be printable, because it may be shown in a
    terminal, which control characters could manipulate."""

    largest: int = limits.MAX_TEXT_BYTES

    def encode(self, value: str) -> str:
        return value

    def decode(self, raw: object) -> str:
        if type(raw) is not str or not raw.isprintable() or len(raw.encode()) > self.largest:
            raise RemoteProtocolError("expected printable text within its bound")
        return raw


@dataclass(frozen=True, slots=True)
class Many(Generic[T]):
    """A tuple of at most `largest` values of one kind."""

    item: Kind[T]
    largest: int = limits.MAX_ITEMS

    def encode(self, value: tuple[T, ...]) -> list[object]:
        return [self.item.encode(x) for x in value]

    def decode(self, raw: object) -> tuple[T, ...]:
        if type(raw) is not list or len(raw) > self.largest:
            raise RemoteProtocolError("expected an array within its bound")
        return tuple(self.item.decode(x) for x in raw)


@dataclass(frozen=True, slots=True)
class Nested(Generic[R]):
    """A record inside a record."""

    record: type[R]

    def encode(self, value: R) -> list[object]:
        return encode_fields(value)

    def decode(self, raw: object) -> R:
        return decode_fields(self.record, raw)


def wire(kind: Kind[Any], default: Any = MISSING) -> Any:
    """Declare a dataclass field that is sent as `kind`. `default` serves only code that builds a
    record; a record from a peer must have all fields."""
    return field(default=default, metadata={"kind": kind})


def encode_fields(record: object) -> list[object]:
    """Return the msgpack array of `record`'s fields."""
    declared = fields(record)  # type: ignore[arg-type]
    return [f.metadata["kind"].encode(getattr(record, f.name)) for f in declared]


def decode_fields(record: type[R], raw: object) -> R:
    """Return the `record` that an unpacked array stands for. Raises `RemoteProtocolError` if it
    stands for none, or if the constructor of the record refuses the values with a ValueError."""
    declared = fields(record)  # type: ignore[arg-type]
    if type(raw) is not list or len(raw) != len(declared):
        raise RemoteProtocolError(f"expected the fields of {record.__name__}")
    values = [f.metadata["kind"].decode(x) for f, x in zip(declared, raw, strict=True)]
    try:
        return record(*values)
    except ValueError as error:
        raise RemoteProtocolError(str(error)) from None


NODE = Blob(limits.NODE_ID_BYTES, limits.NODE_ID_BYTES)
NODE_OR_ALL = Blob(limits.NODE_ID_BYTES)
LINEAGE = Blob(limits.LINEAGE_BYTES, limits.LINEAGE_BYTES)
DIGEST = Blob(32, 32)
NUMBER = UInt()
COUNT32 = UInt((1 << 32) - 1)
TERM = UInt(limits.MAX_TERM)
VERSION = UInt(limits.MAX_VERSION)  # of a policy
VIEW_NUMBER = UInt(limits.MAX_VIEW)
ITERATION = UInt(limits.MAX_ITERATION)
ATTEMPT = UInt(limits.MAX_ATTEMPT)
FENCE_NUMBER = UInt(limits.MAX_FENCE)
SAMPLES = UInt(limits.MAX_SAMPLES)
