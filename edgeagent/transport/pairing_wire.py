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

This module does no I/O. The messages are tagged records (`protocols/wire/packing.py`);
`join_wire.frame` puts the length in front. Tags and reasons are append-only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import ClassVar, TypeVar

from edgeagent.transport.kinds import NAME, PROTOCOL_VERSION, PROTOCOL_VERSIONS, Chosen
from edgeagent.transport.pairing_code import CHANNEL_DIGITS
from edgeagent.transport.token import TOKEN_BYTES
from protocols import limits
from protocols.wire.fields import Blob, Text, decode_fields, encode_fields, wire
from protocols.wire.message import Message
from protocols.wire.packing import pack, unpack

R = TypeVar("R", "Names", "Name")

VERSIONS: tuple[int, ...] = (1,)
PAKE_BYTES = 33  # a letter for the side, and a point of the curve
CONFIRMATION_BYTES = 32
SEAL_BYTES = 16  # by which a sealed text is longer than what it holds

_PAKE = Blob(PAKE_BYTES, PAKE_BYTES)
_PROOF = Blob(CONFIRMATION_BYTES, CONFIRMATION_BYTES)
_SEALED = Blob(2 * (limits.MAX_NAME_BYTES + 3) + 8 + SEAL_BYTES, SEAL_BYTES)


class Reason(IntEnum):
    """Why an inviter refuses."""

    VERSION = 1
    CHANNEL = 2  # another invitation's code
    CODE = 3  # the secret part of the code differs
    OVER = 4  # the code has expired, was used, or is void after too many wrong attempts
    BUSY = 5  # another device is being paired at this moment


class Seal(Enum):
    """What a sealed text is for; each has a key of its own."""

    GRANT = "GRANT"
    READY = "READY"
    TOKEN = "TOKEN"
    STORED = "STORED"


@dataclass(frozen=True, slots=True)
class Hello(Message):
    """The invitee's first message."""

    TAG: ClassVar[int] = 1
    versions: tuple[int, ...] = wire(PROTOCOL_VERSIONS)
    channel: str = wire(Text(CHANNEL_DIGITS, CHANNEL_DIGITS))
    pake: bytes = wire(_PAKE)

    def __post_init__(self) -> None:
        if not self.channel.isascii() or not self.channel.isdecimal():
            raise ValueError(f"channel is not {CHANNEL_DIGITS} digits")


@dataclass(frozen=True, slots=True)
class Answer(Message):
    """The inviter's first message."""

    TAG: ClassVar[int] = 2
    version: int = wire(PROTOCOL_VERSION)
    pake: bytes = wire(_PAKE)


@dataclass(frozen=True, slots=True)
class Confirm(Message):
    """The invitee's proof of the key."""

    TAG: ClassVar[int] = 3
    proof: bytes = wire(_PROOF)


@dataclass(frozen=True, slots=True)
class Grant(Message):
    """The inviter's proof of the key, and the sealed names of cluster and inviter (`Names`)."""

    TAG: ClassVar[int] = 4
    proof: bytes = wire(_PROOF)
    sealed: bytes = wire(_SEALED)


@dataclass(frozen=True, slots=True)
class Ready(Message):
    """The invitee agrees; sealed is its own name (`Name`)."""

    TAG: ClassVar[int] = 5
    sealed: bytes = wire(_SEALED)


@dataclass(frozen=True, slots=True)
class Token(Message):
    """The sealed token."""

    TAG: ClassVar[int] = 6
    sealed: bytes = wire(_SEALED)


@dataclass(frozen=True, slots=True)
class Stored(Message):
    """The invitee has stored the token; sealed is nothing."""

    TAG: ClassVar[int] = 7
    sealed: bytes = wire(_SEALED)


@dataclass(frozen=True, slots=True)
class Refusal(Message):
    """Why the inviter refuses."""

    TAG: ClassVar[int] = 8
    reason: Reason = wire(Chosen(Reason))


@dataclass(frozen=True, slots=True)
class Names:
    """What a `Grant` seals."""

    cluster: str = wire(NAME)
    inviter: str = wire(NAME)


@dataclass(frozen=True, slots=True)
class Name:
    """What a `Ready` seals."""

    name: str = wire(NAME)


def encode_sealed_record(record: Names | Name) -> bytes:
    """Return the text to be sealed."""
    return pack(encode_fields(record))


def decode_sealed_record(kind: type[R], text: bytes) -> R:
    """Return the record in a text that was sealed. Raises `RemoteProtocolError` if it is none."""
    return decode_fields(kind, unpack(text))


def decode_token(text: bytes) -> bytes:
    """Return the token that a `Token` has sealed."""
    return Blob(TOKEN_BYTES, TOKEN_BYTES).decode(text)
