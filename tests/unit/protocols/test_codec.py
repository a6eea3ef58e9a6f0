"""Control frames: every message can be read back; hostile bytes are read or refused, cheaply."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols import limits
from protocols.errors import LocalProtocolError, RemoteProtocolError
from protocols.wire.codec import decode, encode
from protocols.wire.envelope import Envelope
from protocols.wire.messages import BY_TAG, MESSAGES, Manifest, Message, Ping

from .records import envelopes, plain, tags


def plain_frame(kind: type[Message]) -> bytes:
    """Return a short frame with a message of this kind."""
    return encode(Envelope(tags(), plain(kind)))


def read_or_refuse(frame: bytes) -> None:
    """Decode: what is not refused is a valid message; any other exception fails the test."""
    try:
        envelope = decode(frame)
    except RemoteProtocolError:
        return
    assert decode(encode(envelope)) == envelope


def test_tags_are_unique_and_in_use() -> None:
    assert len(BY_TAG) == len(MESSAGES)
    assert [BY_TAG[kind.TAG] for kind in MESSAGES] == list(MESSAGES)
    assert sorted(BY_TAG) == list(range(1, len(MESSAGES) + 1))


@pytest.mark.parametrize("kind", MESSAGES)
def test_plain_messages_read_back(kind: type[Message]) -> None:
    envelope = Envelope(tags(), plain(kind))
    assert decode(encode(envelope)) == envelope


@given(st.data())
def test_random_messages_read_back(data: st.DataObject) -> None:
    envelope = data.draw(envelopes(data.draw(st.sampled_from(MESSAGES))))
    assert decode(encode(envelope)) == envelope


@pytest.mark.parametrize("kind", MESSAGES)
def test_every_single_byte_change_is_read_or_refused(kind: type[Message]) -> None:
    frame = plain_frame(kind)
    for place, byte in enumerate(frame):
        for value in (0, byte ^ 1, 0x7F, 0x80, 0x92, 0xC0, 0xC1, 0xD4, 0xDD, 0xDF, 0xFF):
            read_or_refuse(frame[:place] + bytes([value]) + frame[place + 1 :])
    for length in range(len(frame)):
        with pytest.raises(RemoteProtocolError):
            decode(frame[:length])
    with pytest.raises(RemoteProtocolError):
        decode(frame + b"\x00")


@given(st.data())
def test_frames_cut_and_glued_are_read_or_refused(data: st.DataObject) -> None:
    first = encode(data.draw(envelopes(data.draw(st.sampled_from(MESSAGES)))))
    second = plain_frame(data.draw(st.sampled_from(MESSAGES)))
    head = data.draw(st.integers(0, len(first)))
    tail = data.draw(st.integers(0, len(second)))
    read_or_refuse(first[:head] + data.draw(st.binary(max_size=9)) + second[tail:])


@given(st.binary(max_size=300))
def test_random_bytes_are_read_or_refused(frame: bytes) -> None:
    read_or_refuse(frame)


raws = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.binary(max_size=40)
    | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=12) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=30,
)


@given(st.data())
def test_any_value_in_any_field_is_read_or_refused(data: st.DataObject) -> None:
    """One value at a random depth of a valid frame is replaced."""
    whole = at = msgpack.unpackb(plain_frame(data.draw(st.sampled_from(MESSAGES))))
    while True:
        place = data.draw(st.integers(0, len(at) - 1))
        deeper = at[place]
        if not isinstance(deeper, list) or not deeper or data.draw(st.booleans()):
            at[place] = data.draw(raws)
            break
        at = deeper
    read_or_refuse(msgpack.packb(whole))


@pytest.mark.parametrize(
    "raw", [None, 7, [], [1, []], [1, [], [], []], ["1", [], []], [True, [], []], {}, "abc"]
)
def test_frames_of_another_shape_are_refused(raw: Any) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(msgpack.packb(raw))


@pytest.mark.parametrize("tag", [0, -1, len(MESSAGES) + 1, 1 << 40])
def test_unknown_tags_are_refused(tag: int) -> None:
    frame = msgpack.packb([tag, msgpack.unpackb(plain_frame(Ping))[1], [0.5]])
    with pytest.raises(RemoteProtocolError, match="unknown message tag"):
        decode(frame)


def test_no_field_may_be_missing_or_added() -> None:
    for kind in MESSAGES:
        tag, head, body = msgpack.unpackb(plain_frame(kind))
        shapes = (
            [tag, head[:-1], body],
            [tag, head, body[:-1] if body else None],
            [tag, head, [*body, 1]],
            [tag, [*head, 1], body],
            [tag, head, body, 1],
        )
        for changed in shapes:
            with pytest.raises(RemoteProtocolError):
                decode(msgpack.packb(changed))


def test_own_messages_over_the_limit_are_our_fault() -> None:
    many = Manifest(1, (bytes(32),) * (limits.MAX_CONTROL_BYTES // 33))
    with pytest.raises(LocalProtocolError, match="Manifest"):
        encode(Envelope(tags(), many))


def test_the_largest_manifest_fits_a_frame() -> None:
    envelope = Envelope(tags(), Manifest(1, (bytes(32),) * limits.MAX_SHARDS))
    assert decode(encode(envelope)) == envelope


def test_frames_over_the_limit_are_refused_unread() -> None:
    frame = plain_frame(Ping)
    with pytest.raises(RemoteProtocolError, match="over the limit"):
        decode(frame + bytes(limits.MAX_CONTROL_BYTES - len(frame) + 1))
    with pytest.raises(RemoteProtocolError, match="ExtraData"):
        decode(frame + bytes(limits.MAX_CONTROL_BYTES - len(frame)))


@pytest.mark.parametrize(
    "frame",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\xdc\xff\xff" * 1000,
        b"\xdc\x0b\xb8" * 1000,
        b"\x93\x01\x90" + b"\xdd\x00\x00\xff\xff" * 10,
        b"\xc7\x00\xff",
        b"\xc7\x0c\xff" + bytes(12),
        b"\xd6\xff" + bytes(4),
    ],
)
def test_large_claims_cost_little(frame: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError):
            decode(frame)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 32 * limits.MAX_CONTROL_BYTES
