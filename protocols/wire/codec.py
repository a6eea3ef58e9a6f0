"""Control frames: from envelope to bytes and back.

A frame is the msgpack array `[tag, tags, body]`. Whatever the bytes are, `decode` returns a valid
envelope or raises `RemoteProtocolError`, and nothing else. Work and memory stay proportional to
`limits.MAX_CONTROL_BYTES`.
"""

from __future__ import annotations

from protocols import limits
from protocols.errors import LocalProtocolError, RemoteProtocolError
from protocols.wire.envelope import Envelope, Tags
from protocols.wire.fields import decode_fields, encode_fields
from protocols.wire.messages import BY_TAG
from protocols.wire.packing import pack, unpack


def encode(envelope: Envelope) -> bytes:
    """Return the frame of `envelope`. Raises `LocalProtocolError` if it is over the limit."""
    message = envelope.message
    frame = pack([message.TAG, encode_fields(envelope.tags), encode_fields(message)])
    if len(frame) > limits.MAX_CONTROL_BYTES:
        raise LocalProtocolError(
            f"{type(message).__name__} of {len(frame)} bytes is over the limit"
        )
    return frame


def decode(frame: bytes) -> Envelope:
    """Return the envelope in `frame`. Raises `RemoteProtocolError` if there is none."""
    if len(frame) > limits.MAX_CONTROL_BYTES:
        raise RemoteProtocolError("control frame over the limit")
    raw = unpack(frame)
    if type(raw) is not list or len(raw) != 3 or type(raw[0]) is not int:
        raise RemoteProtocolError("expected [tag, tags, body]")
    kind = BY_TAG.get(raw[0])
    if kind is None:
        raise RemoteProtocolError(f"unknown message tag {raw[0]}")
    return Envelope(decode_fields(Tags, raw[1]), decode_fields(kind, raw[2]))
