"""The scalars of the training state as bytes: learning rates, counters, the schedule's state.

They are the part of the training state that is not in a tensor, and training goes on from them as
much as from the weights. Equal states give equal bytes on every machine, because replicas compare
digests of them. The bytes come from peers, so reading them executes nothing, and whatever is not
exactly what this trainer would have written raises `EdgeAgentError`.

A value is None, a bool, an int of 64 bits, a float, a str, bytes, or a list, tuple or dictionary of
values. The encoding is msgpack; a container is an array that begins with a number for its kind, so
that lists and tuples can be told apart, and a dictionary is sorted by key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgpack

from edgeagent.errors import EdgeAgentError, UsageError
from protocols import limits

# The number of this encoding, the first entry of the bytes. Bytes with another one are refused.
META_VERSION = 1
# How deeply containers may be nested. Schedules made of schedules need about 7; without a limit,
# bytes from a peer could exhaust the stack.
_MAX_DEPTH = 16
# The first entry of an array says which container the array stands for.
_LIST, _TUPLE, _DICT = 0, 1, 2
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class StateMeta:
    """Everything of the training state that is not a tensor, at the start of `iteration`.

    `skipped` counts the steps that were left out because a gradient was not finite.
    `groups` has the entries of each of the optimizer's parameter groups, without "params".
    `presence` is a bitmap (little-endian): bit s is set if tensor slot s of the layout exists.
    `scalar_slots` has (parameter number, slot, value) of each optimizer slot that is no tensor.
    `schedule` is the state of the learning-rate scheduler, None if there is none.
    `loss_scale` has the scalars of the gradient scaler; without one it is None and takes no bytes.
    """

    iteration: int
    skipped: int
    groups: tuple[dict[str, Any], ...]
    presence: bytes
    scalar_slots: tuple[tuple[int, str, Any], ...]
    schedule: dict[str, Any] | None
    loss_scale: dict[str, Any] | None = None

    def encode(self) -> bytes:
        """Return the canonical bytes.

        Raises `UsageError` for a value that cannot be encoded, and if the bytes are too many.
        """
        value = [
            META_VERSION,
            self.iteration,
            self.skipped,
            [_pack(group, f"parameter group {n}") for n, group in enumerate(self.groups)],
            self.presence,
            [[p, name, _pack(v, f"slot {name}")] for p, name, v in self.scalar_slots],
            _pack(self.schedule, "lr_scheduler"),
        ]
        if self.loss_scale is not None:
            value.append(_pack(self.loss_scale, "grad_scaler"))
        data: bytes = msgpack.packb(value, use_bin_type=True)
        if len(data) > limits.MAX_STATE_META_BYTES:
            raise UsageError(
                f"the optimizer's and scheduler's scalars take {len(data)} bytes;"
                f" {limits.MAX_STATE_META_BYTES} is the most"
            )
        return data


def decode_meta(data: bytes) -> StateMeta:
    """Read what `StateMeta.encode` wrote; raise `EdgeAgentError` for anything else.

    What was read is encoded again and compared, which refuses every other spelling of the same
    values: two replicas with equal states must not have different bytes.
    """
    if len(data) > limits.MAX_STATE_META_BYTES:
        raise EdgeAgentError("the state's scalars are larger than allowed")
    try:
        raw = msgpack.unpackb(data, use_list=True, raw=False, strict_map_key=True)
        version, iteration, skipped, groups, presence, slots, schedule, *more = raw
        if version != META_VERSION or len(more) > 1:
            raise ValueError("another version")
        meta = StateMeta(
            _count(iteration),
            _count(skipped),
            tuple(_dictionary(_unpack(group, 0)) for group in _list(groups)),
            _instance(presence, bytes),
            tuple(_slot(slot) for slot in _list(slots)),
            None if schedule is None else _dictionary(_unpack(schedule, 0)),
            _dictionary(_unpack(more[0], 0)) if more else None,
        )
        canonical = meta.encode()
    except (ValueError, TypeError, msgpack.UnpackException, UsageError) as error:
        raise EdgeAgentError(f"the state's scalars are malformed: {error}") from None
    if canonical != data:
        raise EdgeAgentError("the state's scalars are malformed: not in canonical form")
    return meta


def encode_value(value: Any, where: str) -> bytes:
    """Return one value's canonical bytes; raise `UsageError`, naming `where`, if it has none."""
    data: bytes = msgpack.packb(_pack(value, where), use_bin_type=True)
    return data


def decode_value(data: bytes) -> Any:
    """Read what `encode_value` wrote; raise `EdgeAgentError` on anything else."""
    try:
        value = _unpack(msgpack.unpackb(data, use_list=True, raw=False, strict_map_key=True), 0)
        canonical = encode_value(value, "a value")
    except (ValueError, TypeError, msgpack.UnpackException, UsageError) as error:
        raise EdgeAgentError(f"a value is malformed: {error}") from None
    if canonical != data:
        raise EdgeAgentError("a value is malformed: not in canonical form")
    return value


def adopt_value(mine: Any, theirs: Any, where: str) -> Any:
    """Return `theirs` in the types of `mine`; raise `EdgeAgentError` if the two do not fit.

    None and numbers may replace each other. Containers must be of the same kind, and dictionaries
    must have the same keys unless all keys are integers, because keys that are text become
    attributes of a schedule, and foreign bytes must never add an attribute or remove one.
    `where` says in the error which value it was.
    """
    if isinstance(mine, Mapping) and isinstance(theirs, dict):
        if set(mine) != set(theirs) and not all(isinstance(key, int) for key in (*mine, *theirs)):
            raise EdgeAgentError(f"the state to adopt has other entries in {where}")
        entries = {
            key: adopt_value(mine.get(key), value, f"{where}.{key}")
            for key, value in theirs.items()
        }
        same_kind: Any = type(mine)
        return entries if same_kind is dict else same_kind(entries)
    if isinstance(mine, list | tuple) and type(mine) is type(theirs):
        if len(mine) != len(theirs):
            if isinstance(mine, tuple):
                raise EdgeAgentError(f"the state to adopt has more or fewer values in {where}")
            return theirs
        return type(mine)(
            adopt_value(m, t, f"{where}[{n}]")
            for n, (m, t) in enumerate(zip(mine, theirs, strict=True))
        )
    plain = (type(None), bool, int, float)
    if isinstance(mine, plain) and isinstance(theirs, plain):
        return theirs
    if mine is None or type(mine) is type(theirs):
        return theirs
    raise EdgeAgentError(f"the state to adopt has a value of another kind in {where}")


def _pack(value: Any, where: str, depth: int = 0) -> Any:
    """Return `value` as msgpack shall encode it; raise `UsageError` if it has no encoding."""
    if depth > _MAX_DEPTH:
        raise UsageError(f"{where} is nested too deeply to be replicated")
    if value is None or isinstance(value, bool | str | bytes):
        return value
    if type(value) is int and -(1 << 63) <= value < 1 << 63:
        return value
    if isinstance(value, float):  # NaN has many bit patterns; all of them become the same one
        return math.nan if math.isnan(value) else float(value)
    if isinstance(value, list):
        return [_LIST, *(_pack(item, where, depth + 1) for item in value)]
    if isinstance(value, tuple):
        return [_TUPLE, *(_pack(item, where, depth + 1) for item in value)]
    if isinstance(value, Mapping):
        if not all(type(key) in (str, int) for key in value):
            raise UsageError(f"{where} has a dictionary whose keys are neither text nor integers")
        packed: list[Any] = [_DICT]
        for key in sorted(value, key=lambda k: (isinstance(k, str), k)):
            packed += [key, _pack(value[key], f"{where}.{key}", depth + 1)]
        return packed
    raise UsageError(f"{where} is a {type(value).__name__}, which edgeagent cannot replicate")


def _unpack(value: Any, depth: int) -> Any:
    """Return the value that `_pack` was given; raise `ValueError` for anything it never makes."""
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deeply")
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    kind, *items = _list(value)
    if kind == _LIST:
        return [_unpack(item, depth + 1) for item in items]
    if kind == _TUPLE:
        return tuple(_unpack(item, depth + 1) for item in items)
    if kind != _DICT or len(items) % 2:
        raise ValueError("unknown container")
    if not all(type(key) in (str, int) for key in items[::2]):
        raise ValueError("key is neither text nor integer")
    return {
        key: _unpack(item, depth + 1) for key, item in zip(items[::2], items[1::2], strict=True)
    }


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= limits.MAX_INTEGER:
        raise ValueError("a count is no count")
    return value


def _list(value: Any) -> list[Any]:
    return _instance(value, list)


def _dictionary(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError("expected named entries")
    return value


def _instance(value: Any, kind: type[_T]) -> _T:
    if type(value) is not kind:
        raise ValueError(f"expected {kind.__name__}")
    return value


def _slot(value: Any) -> tuple[int, str, Any]:
    parameter, name, content = _list(value)
    return (_count(parameter), _instance(name, str), _unpack(content, 0))
