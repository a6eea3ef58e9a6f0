"""Kinds of fields that only the transport's messages have (`protocols/wire/fields.py` has the
others): names, addresses, and who a peer is.

As every kind, each accepts a value of exactly the right type and size, or raises
`RemoteProtocolError` and nothing else, because bytes from a peer may be anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, TypeVar

from edgeagent.config import join_address, split_address
from edgeagent.errors import UsageError
from edgeagent.transport import bounds
from edgeagent.transport.api import PeerInfo
from edgeagent.transport.certificate import node_id
from protocols import limits
from protocols.errors import RemoteProtocolError
from protocols.wire.fields import NUMBER, Blob, Many, Text, UInt

E = TypeVar("E", bound=IntEnum)

_ADDRESS_TEXT = Text(limits.MAX_ADDRESS_BYTES)


@dataclass(frozen=True, slots=True)
class Chosen(Generic[E]):
    """One of the numbers of an enumeration. With `other`, any other number up to 255 is taken for
    that one, so that a later version may add numbers."""

    options: type[E]
    other: E | None = None

    def encode(self, value: E) -> int:
        return int(value)

    def decode(self, raw: object) -> E:
        if type(raw) is int and 0 < raw < 256:
            if raw in list(self.options):
                return self.options(raw)
            if self.other is not None:
                return self.other
        raise RemoteProtocolError("expected a number that has a meaning")


@dataclass(frozen=True, slots=True)
class Address:
    """A HOST:PORT text, in the form that `join_address` makes."""

    def encode(self, value: str) -> str:
        return value

    def decode(self, raw: object) -> str:
        found = _ADDRESS_TEXT.decode(raw)
        if not found.isascii() or " " in found:
            raise RemoteProtocolError("address with forbidden characters")
        try:
            host, port = split_address(found)
        except UsageError:
            raise RemoteProtocolError("address is not HOST:PORT") from None
        if port == 0 or join_address(host, port) != found:
            raise RemoteProtocolError("address is not HOST:PORT")
        return found


@dataclass(frozen=True, slots=True)
class Peer:
    """A `PeerInfo`; its id is not sent, because it follows from its certificate. The certificate's
    content is checked when it is to be trusted."""

    def encode(self, value: PeerInfo) -> list[object]:
        return [value.incarnation, value.name, list(value.addresses), value.certificate]

    def decode(self, raw: object) -> PeerInfo:
        if type(raw) is not list or len(raw) != 4:
            raise RemoteProtocolError("expected a peer")
        number, name, addresses, certificate = raw
        der = CERTIFICATE.decode(certificate)
        return PeerInfo(
            node_id(der), NUMBER.decode(number), NAME.decode(name), ADDRESSES.decode(addresses), der
        )


NAME = Text(limits.MAX_NAME_BYTES, smallest=1)
ADDRESSES = Many(Address(), limits.MAX_ADDRESSES)
CERTIFICATE = Blob(limits.MAX_CERTIFICATE_BYTES, 1)
PROTOCOL_VERSION = UInt(bounds.MAX_VERSION, smallest=1)
PROTOCOL_VERSIONS = Many(PROTOCOL_VERSION, bounds.MAX_VERSIONS, smallest=1)
