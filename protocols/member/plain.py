"""Conversion of records to plain values that JSON can hold, and back, by one rule for all of them.

A record becomes `{"is": its class, field: value, ...}`, bytes become hex, a tuple becomes a list,
and an enumeration its value; floats that JSON does not have become "nan", "inf" and "-inf". This
form is for traces, which people read. Control frames have a codec of their own (`wire/codec.py`),
which is compact and checks what peers send.

`from_plain` accepts exactly what `to_plain` makes of the same type, and raises `ValueError` on
everything else. The type that is expected decides how a value is read, because the name of a class
alone is ambiguous (`events.Measured`, `messages.Measured`).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from protocols.cluster.ancestry import Ancestor, Past
from protocols.cluster.view import Member
from protocols.cluster.ways import Way
from protocols.member.context import NodeConfig
from protocols.network.link_end import LinkEnd
from protocols.network.stretch import Stretch
from protocols.rounds.control_word import ControlWord
from protocols.scheduler.planning import Found
from protocols.wire.envelope import Envelope
from protocols.wire.messages import MESSAGES, Message

if TYPE_CHECKING:
    from collections.abc import Callable

CLASS = "is"  # the key under which a record names its class
_ODD_FLOATS = ("nan", "inf", "-inf")
# Classes that annotations of records name, and that those modules import for type checkers only, so
# that `get_type_hints` would not find them there.
_NAMES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        Ancestor,
        ControlWord,
        Envelope,
        Found,
        LinkEnd,
        Member,
        Message,
        NodeConfig,
        Past,
        Stretch,
        Way,
    )
}


def to_plain(value: object, most_bytes: int | None = None, most_items: int | None = None) -> Any:
    """Return `value` in a form that `json.dumps(allow_nan=False)` accepts.

    Byte strings longer than `most_bytes` are replaced by their length and SHA-256, and so are
    tuples and lists longer than `most_items`; what was shortened cannot be read back. Raises
    `TypeError` for a value that is no record, enumeration, number, text, bytes, tuple, list, dict
    or None.
    """
    if value is None or isinstance(value, Enum | bool | int | str):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        if most_bytes is not None and len(value) > most_bytes:
            return {"bytes": len(value), "sha256": hashlib.sha256(value).hexdigest()}
        return value.hex()
    if isinstance(value, tuple | list):
        items = [to_plain(item, most_bytes, most_items) for item in value]
        if most_items is not None and len(items) > most_items:
            digest = hashlib.sha256(repr(items).encode()).hexdigest()
            return {"items": len(items), "sha256": digest}
        return items
    if isinstance(value, dict):
        return {str(k): to_plain(item, most_bytes, most_items) for k, item in value.items()}
    if not is_dataclass(value) or isinstance(value, type):
        raise TypeError(f"a {type(value).__name__} has no plain form")
    plain: dict[str, Any] = {CLASS: type(value).__name__}
    for field in fields(value):
        plain[field.name] = to_plain(getattr(value, field.name), most_bytes, most_items)
    return plain


def from_plain(kind: Any, plain: object) -> Any:
    """Return the value of type `kind` (a class, a union or a tuple type) that `plain` stands for.

    Raises `ValueError` if it stands for none.
    """
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return _of_union(get_args(kind), plain)
    if origin is tuple:
        return _items(get_args(kind), plain)
    if kind is Message:
        return _record(_named(MESSAGES, plain), plain)
    if is_dataclass(kind):
        return _record(_named((kind,), plain), plain)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(plain)
    if kind in _LEAVES:
        return _LEAVES[kind](plain)
    raise ValueError(f"nothing is read as {kind}")


def _of_union(kinds: tuple[Any, ...], plain: object) -> Any:
    if plain is None:
        if NoneType in kinds:
            return None
        raise ValueError("expected a value, found null")
    others = tuple(kind for kind in kinds if kind is not NoneType)
    return from_plain(others[0] if len(others) == 1 else _named(others, plain), plain)


def _items(kinds: tuple[Any, ...], plain: object) -> tuple[Any, ...]:
    if not isinstance(plain, list) or kinds[1:] != (...,):
        raise ValueError("expected a list")
    return tuple(from_plain(kinds[0], item) for item in plain)


def _named(kinds: tuple[Any, ...], plain: object) -> Any:
    """Return the one of the classes `kinds` that a plain record names."""
    name = plain.get(CLASS) if isinstance(plain, dict) else None
    found = [kind for kind in kinds if kind.__name__ == name]
    if not found:
        raise ValueError(f"expected one of {', '.join(k.__name__ for k in kinds)}, found {name!r}")
    return found[0]


def _record(kind: Any, plain: Any) -> Any:
    hints = _hints(kind)
    if plain.keys() != {CLASS, *hints}:
        raise ValueError(f"expected the fields of {kind.__name__}")
    return kind(**{name: from_plain(hint, plain[name]) for name, hint in hints.items()})


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields, by name."""
    found = get_type_hints(kind, localns=_NAMES)
    return {field.name: found[field.name] for field in fields(kind)}


def _whole(plain: object) -> int:
    if type(plain) is not int:
        raise ValueError("expected a whole number")
    return plain


def _truth(plain: object) -> bool:
    if type(plain) is not bool:
        raise ValueError("expected true or false")
    return plain


def _number(plain: object) -> float:
    if type(plain) is str and plain in _ODD_FLOATS:
        return float(plain)
    if type(plain) not in (int, float):
        raise ValueError("expected a number")
    return plain  # type: ignore[return-value]  # checked the line above


def _text(plain: object) -> str:
    if type(plain) is not str:
        raise ValueError("expected text")
    return plain


def _bytes(plain: object) -> bytes:
    return bytes.fromhex(_text(plain))


_LEAVES: dict[Any, Callable[[object], Any]] = {
    bool: _truth,
    bytes: _bytes,
    float: _number,
    int: _whole,
    str: _text,
}
