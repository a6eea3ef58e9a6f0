"""Kinds of fields: how one value looks on the wire, and what is refused.

`decode` accepts exactly what `encode` can produce, within the bound of the kind, and raises
`RemoteProtocolError` on everything else. Records are msgpack arrays of their fields in the order of
declaration; fields are only ever added at the end of a record.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Generic, Protocol, TypeVar

from protocols import limits
from protocols.errors import RemoteProtocolError

T = TypeVar("T")
R = TypeVar("R")
Columns = tuple[tuple[str, Callable[[Any], object], Callable[[object], Any]], ...]
# Kept, because to ask a dataclass for its fields takes longer than to encode them.
_known_columns: dict[type[Any], Columns] = {}


class Kind(Protocol[T]):
    """One kind of field."""

    def encode(self, value: T) -> object:
        """Return what msgpack is to pack for `value`."""

    def decode(self, raw: object) -> T:
        """Return the value that `raw`, which msgpack has unpacked, stands for. Raises
        `RemoteProtocolError` if it stands for none of this kind."""


@dataclass(frozen=True, slots=True)
class UInt:
    """An integer from `smallest`, which is not negative, to `largest`."""

    largest: int = limits.MAX_INTEGER
    smallest: int = 0

    def encode(self, value: int) -> int:
        return value

    def decode(self, raw: object) -> int:
        if type(raw) is not int or not self.smallest <= raw <= self.largest:
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
    """Text of `smallest` to `largest` bytes in UTF-8. With `printable` it has no control
    characters, which could manipulate a terminal that shows it."""

    largest: int = limits.MAX_TEXT_BYTES
    smallest: int = 0
    printable: bool = True

    def encode(self, value: str) -> str:
        return value

    def decode(self, raw: object) -> str:
        if type(raw) is not str or (self.printable and not raw.isprintable()):
            raise RemoteProtocolError("expected printable text" if self.printable else "no text")
        if not self.smallest <= len(raw.encode(errors="surrogatepass")) <= self.largest:
            raise RemoteProtocolError("text outside its bounds")
        return raw


@dataclass(frozen=True, slots=True)
class Many(Generic[T]):
    """A tuple of `smallest` to `largest` values of one kind."""

    item: Kind[T]
    largest: int = limits.MAX_ITEMS
    smallest: int = 0

    def encode(self, value: tuple[T, ...]) -> list[object]:
        return [self.item.encode(x) for x in value]

    def decode(self, raw: object) -> tuple[T, ...]:
        if type(raw) is not list or not self.smallest <= len(raw) <= self.largest:
            raise RemoteProtocolError("expected an array within its bound")
        return tuple(self.item.decode(x) for x in raw)


class Row:
    """A tuple with one value of each of `kinds`."""

    __slots__ = ("kinds",)

    def __init__(self, *kinds: Kind[Any]) -> None:
        self.kinds = kinds

    def encode(self, value: tuple[Any, ...]) -> list[object]:
        return [kind.encode(x) for kind, x in zip(self.kinds, value, strict=True)]

    def decode(self, raw: object) -> tuple[Any, ...]:
        if type(raw) is not list or len(raw) != len(self.kinds):
            raise RemoteProtocolError(f"expected {len(self.kinds)} values")
        return tuple(kind.decode(x) for kind, x in zip(self.kinds, raw, strict=True))


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


def _columns(record: type[Any]) -> Columns:
    """Return the name of each field of `record`, and how it is encoded and decoded."""
    known = _known_columns.get(record)
    if known is None:
        kinds = ((f.name, f.metadata["kind"]) for f in fields(record))
        known = tuple((name, kind.encode, kind.decode) for name, kind in kinds)
        _known_columns[record] = known
    return known


def encode_fields(record: object) -> list[object]:
    """Return the msgpack array of `record`'s fields."""
    return [encode(getattr(record, name)) for name, encode, _ in _columns(type(record))]


def decode_fields(record: type[R], raw: object) -> R:
    """Return the `record` that an unpacked array stands for. Raises `RemoteProtocolError` if it
    stands for none, or if the constructor of the record refuses the values with a ValueError."""
    columns = _columns(record)
    if type(raw) is not list or len(raw) != len(columns):
        raise RemoteProtocolError(f"expected the fields of {record.__name__}")
    values = []
    for (name, _, decode), x in zip(columns, raw, strict=True):
        try:
            values.append(decode(x))
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"{record.__name__}.{name}: {error}") from None
    try:
        return record(*values)
    except ValueError as error:
        raise RemoteProtocolError(str(error)) from None


NODE = Blob(limits.NODE_ID_BYTES, limits.NODE_ID_BYTES)
NODE_OR_ALL = Blob(limits.NODE_ID_BYTES)
CONSTANTS = Blob(32)  # of a digest that may be missing
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
