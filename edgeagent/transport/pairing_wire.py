"""The messages of a pairing connection, inside TLS 1.3.

    invitee                                    inviter
    Hello(versions, channel, PAKE message)
                                               Answer(version, PAKE message)
    Confirm(proof of the key)
                                               Grant(proof of the key, sealed: cluster, name)
    Ready(sealed: name)
                                               Token(sealed: token)
    Stored(sealed: nothing)
    At any point the inviter may send Refusal(reason) instead and close. What is sealed can be read
    and made only by an end that has computed the same key from the same code.

This module does no I/O. A body is a msgpack array whose first value is its kind; `join_wire.frame`
puts its length in front. `decode_*` raises `RemoteProtocolError` and nothing else. Kinds and
reasons are append-only.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from edgeagent.transport import bounds, fields
from edgeagent.transport.pairing_code import CHANNEL_DIGITS
from edgeagent.transport.token import TOKEN_BYTES
from protocols import limits
from protocols.errors import RemoteProtocolError

VERSIONS: tuple[int, ...] = (1,)
PAKE_BYTES = 33  # a letter for the side, and a point of the curve
CONFIRMATION_BYTES = 32
SEAL_BYTES = 16  # by which a sealed text is longer than what it holds

_ITEMS = bounds.MAX_VERSIONS
_MOST_SEALED = 2 * (limits.MAX_NAME_BYTES + 3) + 8 + SEAL_BYTES


class Kind(IntEnum):
    """What a frame on a pairing connection is."""

    HELLO = 1
    ANSWER = 2
    CONFIRM = 3
    GRANT = 4
    READY = 5
    TOKEN = 6
    STORED = 7
    REFUSAL = 8


class Reason(IntEnum):
    """Why an inviter refuses."""

    VERSION = 1
    CHANNEL = 2  # another invitation's code
    CODE = 3  # the secret part of the code differs
    OVER = 4  # the code has expired, was used, or is void after too many wrong attempts
    BUSY = 5  # another device is being paired at this moment


class Hello(NamedTuple):
    """The invitee's first message."""

    versions: tuple[int, ...]
    channel: str
    pake: bytes


class Answer(NamedTuple):
    """The inviter's first message."""

    version: int
    pake: bytes


class Grant(NamedTuple):
    """The inviter's proof of the key, and the sealed names of cluster and inviter."""

    proof: bytes
    sealed: bytes


def encode_hello(hello: Hello) -> bytes:
    """Return the body of a hello."""
    return fields.pack(Kind.HELLO, list(hello.versions), hello.channel, hello.pake)


def decode_hello(body: bytes) -> Hello:
    """Return the hello that `body` is."""
    versions, channel, pake = fields.shape(fields.unpack(body, _ITEMS), Kind.HELLO, 3)
    numbers = fields.array(versions, "versions", 1, bounds.MAX_VERSIONS)
    offered = tuple(fields.integer(n, "version", 1, bounds.MAX_VERSION) for n in numbers)
    digits = fields.text(channel, "channel", CHANNEL_DIGITS)
    if len(digits) != CHANNEL_DIGITS or not digits.isascii() or not digits.isdecimal():
        raise RemoteProtocolError(f"channel is not {CHANNEL_DIGITS} digits")
    return Hello(offered, digits, fields.blob(pake, "PAKE message", PAKE_BYTES, PAKE_BYTES))


def encode_answer(answer: Answer) -> bytes:
    """Return the body of an answer."""
    return fields.pack(Kind.ANSWER, answer.version, answer.pake)


def decode_answer(body: bytes) -> Answer:
    """Return the answer that `body` is."""
    version, pake = fields.shape(fields.unpack(body, _ITEMS), Kind.ANSWER, 2)
    number = fields.integer(version, "version", 1, bounds.MAX_VERSION)
    return Answer(number, fields.blob(pake, "PAKE message", PAKE_BYTES, PAKE_BYTES))


def encode_confirm(proof: bytes) -> bytes:
    """Return the body of the invitee's proof of the key."""
    return fields.pack(Kind.CONFIRM, proof)


def decode_confirm(body: bytes) -> bytes:
    """Return the invitee's proof of the key."""
    (proof,) = fields.shape(fields.unpack(body, _ITEMS), Kind.CONFIRM, 1)
    return fields.blob(proof, "proof", CONFIRMATION_BYTES, CONFIRMATION_BYTES)


def encode_grant(grant: Grant) -> bytes:
    """Return the body of a grant."""
    return fields.pack(Kind.GRANT, grant.proof, grant.sealed)


def decode_grant(body: bytes) -> Grant:
    """Return the grant that `body` is."""
    proof, sealed = fields.shape(fields.unpack(body, _ITEMS), Kind.GRANT, 2)
    return Grant(
        fields.blob(proof, "proof", CONFIRMATION_BYTES, CONFIRMATION_BYTES),
        fields.blob(sealed, "sealed text", SEAL_BYTES, _MOST_SEALED),
    )


def encode_sealed(kind: Kind, sealed: bytes) -> bytes:
    """Return the body of a message that is sealed as a whole: Ready, Token or Stored."""
    return fields.pack(kind, sealed)


def decode_sealed(kind: Kind, body: bytes) -> bytes:
    """Return the sealed text of a message of this kind."""
    (sealed,) = fields.shape(fields.unpack(body, _ITEMS), kind, 1)
    return fields.blob(sealed, "sealed text", SEAL_BYTES, _MOST_SEALED)


def encode_refusal(reason: Reason) -> bytes:
    """Return the body of a refusal."""
    return fields.pack(Kind.REFUSAL, reason)


def decode_refusal(body: bytes) -> Reason | None:
    """Return the reason if `body` is a refusal, None if it is something else."""
    values = fields.unpack(body, _ITEMS)
    if values[0] != Kind.REFUSAL:
        return None
    (reason,) = fields.shape(values, Kind.REFUSAL, 1)
    return Reason(fields.integer(reason, "reason", 1, len(Reason)))


def encode_names(cluster: str, name: str) -> bytes:
    """Return the text that a grant seals."""
    return fields.pack(cluster, name)


def decode_names(text: bytes) -> tuple[str, str]:
    """Return (cluster, name) of what a grant has sealed."""
    cluster, name = fields.array(fields.unpack(text, _ITEMS), "names", 2, 2)
    return fields.name(cluster), fields.name(name)


def encode_name(name: str) -> bytes:
    """Return the text that a Ready seals."""
    return fields.pack(name)


def decode_name(text: bytes) -> str:
    """Return the name that a Ready has sealed."""
    (name,) = fields.array(fields.unpack(text, _ITEMS), "name", 1, 1)
    return fields.name(name)


def decode_token(text: bytes) -> bytes:
    """Return the token that a Token has sealed."""
    return fields.blob(text, "token", TOKEN_BYTES, TOKEN_BYTES)
