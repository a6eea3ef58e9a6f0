"""Says in words where two training states differ.

The scalars of the other state come from a peer. They are unpacked within bounds and never executed,
and what is shown of them is short and printable. Their layout is that of `trainer/meta.py`, which
the agent cannot import, because it runs without torch.
"""

from __future__ import annotations

from typing import Any

import msgpack

from edgeagent.terminal.text import clean
from protocols import limits

_PARTS = (
    "the version of the scalars",
    "the iteration",
    "the count of skipped steps",
    "parameter group",
    "which optimizer slots exist",
    "optimizer slot",
    "the learning-rate schedule",
    "the gradient scaler",
)
_NUMBERED = (3, 5)  # positions in _PARTS of lists whose items are called by a number
_DICT = 2  # tag of a dictionary, which is a list of the tag, keys and values in turn
_SHOWN = 40  # characters of a value; the rest is cut off


def where(tensor: str, mine: bytes, theirs: bytes) -> str:
    """Return in words where two states differ.

    `tensor` is the name of the first tensor that differs, "" if none of those compared does. `mine`
    and `theirs` are the scalars; the first that differs is named with both values.
    """
    scalar = first_scalar(mine, theirs)
    both = [text for text in (scalar, f"the tensor {clean(tensor)}" if tensor else "") if text]
    return "; ".join(both) or "not known"


def first_scalar(mine: bytes, theirs: bytes, places: tuple[str, str] = (" here", " there")) -> str:
    """Return the first of two states' scalars that differs, with both values and behind each where
    it is; "" if all are equal."""
    if mine == theirs:
        return ""
    try:
        here, there = _unpack(mine), _unpack(theirs)
        for part, name in enumerate(_PARTS):
            a, b = (known[part] if part < len(known) else None for known in (here, there))
            if a != b:
                numbered = part in _NUMBERED
                label, x, y = _compare(a, b, name, [], numbered=numbered)
                return f"{label}: {_short(x)}{places[0]} and {_short(y)}{places[1]}"
    except (ValueError, msgpack.UnpackException, RecursionError):
        return "scalars that cannot be read"
    return "scalars"


def _unpack(data: bytes) -> list[Any]:
    raw = msgpack.unpackb(
        data[: limits.MAX_STATE_META_BYTES], use_list=True, raw=False, max_ext_len=0
    )
    if not isinstance(raw, list):
        raise ValueError("no list")
    return raw


def _compare(a: Any, b: Any, name: str, path: list[str], *, numbered: bool) -> tuple[str, Any, Any]:
    """Return what the first difference of two unequal values is called, and its two values; `path`
    leads to them."""
    step = _step(a, b)
    if step is None or len(path) > limits.MAX_HOPS:
        return name + "".join(path), a, b
    index, label = step
    text = f" {index}" if numbered else label
    return _compare(a[index], b[index], name, [*path, text], numbered=False)


def _step(a: Any, b: Any) -> tuple[int, str] | None:
    """Return (the position of the first difference within two lists, its name)."""
    if not (isinstance(a, list) and isinstance(b, list) and len(a) == len(b)):
        return None
    for index, (x, y) in enumerate(zip(a, b, strict=True)):
        if x != y:
            named = index > 1 and index % 2 == 0 and a[0] == _DICT and a[index - 1] == b[index - 1]
            return index, f".{clean(str(a[index - 1]))[:_SHOWN]}" if named else f"[{index}]"
    return None


def _short(value: Any) -> str:
    text = clean(value.hex() if isinstance(value, bytes) else repr(value))
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
