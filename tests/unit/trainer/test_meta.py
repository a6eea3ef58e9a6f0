"""The scalars of the state: canonical bytes; foreign bytes raise our own error and nothing else."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.trainer.meta import StateMeta, adopt_value, decode_meta

plain = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.binary(max_size=8)
)
values = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=4) | st.integers(0, 99), inner, max_size=3)
    ),
    max_leaves=12,
)
groups = st.lists(st.dictionaries(st.text(max_size=6), values, max_size=4), max_size=3)
EXAMPLE = StateMeta(
    7,
    1,
    ({"lr": 0.1, "betas": (0.9, 0.999), "foreach": False, "maximize": None},),
    b"\x03",
    ((0, "step", 7),),
    {"_last_lr": [0.1], "milestones": {5: 1}, "last_epoch": 7},
)


@given(groups, values)
def test_round_trip(some: list[dict[str, Any]], value: Any) -> None:
    meta = StateMeta(3, 0, tuple(some), b"\x01", ((0, "s", value),), {"x": value})
    assert decode_meta(meta.encode()) == meta


def test_equal_states_have_equal_bytes_whatever_the_order() -> None:
    one = StateMeta(0, 0, ({"lr": 0.1, "eps": 1e-8},), b"", (), {"a": Counter({2: 1, 1: 3})})
    two = StateMeta(0, 0, ({"eps": 1e-8, "lr": 0.1},), b"", (), {"a": {1: 3, 2: 1}})
    assert one.encode() == two.encode()
    nan = StateMeta(0, 0, ({"x": -math.nan},), b"", (), None)
    assert nan.encode() == StateMeta(0, 0, ({"x": math.nan},), b"", (), None).encode()


@given(st.binary(max_size=200))
def test_random_bytes_raise_our_error_only(data: bytes) -> None:
    with pytest.raises(EdgeAgentError):
        decode_meta(data)


@given(st.integers(0, len(EXAMPLE.encode()) - 1), st.integers(0, 255))
def test_one_changed_byte_is_refused_or_still_canonical(at: int, value: int) -> None:
    data = bytearray(EXAMPLE.encode())
    data[at] = value
    try:
        meta = decode_meta(bytes(data))
    except EdgeAgentError:
        return
    assert meta.encode() == bytes(data)


@given(values)
def test_foreign_structures_raise_our_error_only(value: Any) -> None:
    with pytest.raises(EdgeAgentError):
        decode_meta(msgpack.packb(value, default=repr, strict_types=False))


def test_deep_nesting_is_refused() -> None:
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    with pytest.raises(UsageError, match="nested"):
        StateMeta(0, 0, (), b"", (), {"x": deep}).encode()
    bomb = b"\x97\x01\x00\x00\x90\xc4\x00\x90" + b"\x92\x00" * 5000 + b"\xc0"
    with pytest.raises(EdgeAgentError):
        decode_meta(bomb)


@pytest.mark.parametrize("value", [object(), lambda: 0, 1 << 70, {1.5: 2}, 3j])
def test_what_has_no_bytes_is_named(value: Any) -> None:
    with pytest.raises(UsageError, match="lr_scheduler"):
        StateMeta(0, 0, (), b"", (), {"x": value}).encode()


def test_too_large() -> None:
    with pytest.raises(UsageError, match="bytes"):
        StateMeta(0, 0, (), b"", (), {"x": b"0" * (600 << 10)}).encode()
    with pytest.raises(EdgeAgentError, match="larger"):
        decode_meta(b"0" * (600 << 10))


def test_adopt_value_keeps_the_shape() -> None:
    mine = {"a": 1, "b": (0.9, 0.99), "c": Counter({1: 2}), "d": [1.0], "e": None, "f": "x"}
    theirs = {"a": 2.5, "b": (0.8, 0.98), "c": {3: 1}, "d": [1.0, 2.0], "e": 4, "f": "y"}
    adopted = adopt_value(mine, theirs, "w")
    assert adopted == {**theirs, "c": Counter({3: 1})}
    assert type(adopted["c"]) is Counter


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ({"step": 1}, {"stop": 1}),
        ({"a": 1}, {"a": 1, "__class__": 2}),
        ({"a": (1, 2)}, {"a": (1, 2, 3)}),
        ({"a": "x"}, {"a": 1}),
        ({"a": 1}, {"a": [1]}),
        ({"a": [1]}, {"a": (1,)}),
        ({"a": {"b": 1}}, {"a": {"c": 1}}),
    ],
)
def test_adopt_value_refuses_another_shape(mine: Any, theirs: Any) -> None:
    with pytest.raises(EdgeAgentError, match="where"):
        adopt_value(mine, theirs, "where")
