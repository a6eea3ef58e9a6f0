"""The messages that open a link, inside mutual TLS 1.3.

    dialling end                       accepting end
    control: LinkHello                 LinkHello, or Refuse
    bulk:    LinkHello (same nonce)    LinkHello
    then, whoever dialled:
    larger id                          smaller id
    control: Ready                     Commit (the link is up here), or Refuse
    (the link is up here)

This module does no I/O. Of the two nodes, the one with the smaller id alone decides which of
several openings becomes the link, so that two ends that dial each other at the same moment get
exactly one link. The one with the larger id has at most one Ready unanswered. Its Ready therefore
also says that it has no link with the other, or that the other has just asked it for a new one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from edgeagent.transport import bounds, fields
from protocols import limits
from protocols.errors import RemoteProtocolError

VERSION = 1

_ITEMS = 32


class Kind(IntEnum):
    """What an opening frame is. Append-only."""

    HELLO = 1
    READY = 2
    COMMIT = 3
    REFUSE = 4


class Channel(IntEnum):
    """Which of a link's two connections this is."""

    CONTROL = 1
    BULK = 2


class Refusal(IntEnum):
    """Why a link is refused. Append-only."""

    OLDER = 1  # there is a link with a newer incarnation of the sender
    FULL = 2  # as many links as a node may have
    VERSION = 3
    SELF = 4  # the sender has this node's own key


REFUSAL_TEXTS = {
    Refusal.OLDER: "it has a link with a newer start of this node",
    Refusal.FULL: "it has as many links as it may have",
    Refusal.VERSION: "it speaks another protocol version",
    Refusal.SELF: "it holds this node's own key",
}


@dataclass(frozen=True, slots=True)
class LinkHello:
    """The first frame on each connection, both ways. `addresses` are of the peer listener."""

    channel: Channel
    version: int
    nonce: bytes
    node: bytes
    incarnation: int
    name: str
    addresses: tuple[str, ...]


def encode_hello(hello: LinkHello) -> bytes:
    """Return the body of a `LinkHello`."""
    return fields.pack(
        Kind.HELLO,
        hello.channel,
        hello.version,
        hello.nonce,
        hello.node,
        hello.incarnation,
        hello.name,
        list(hello.addresses),
    )


def decode_hello(body: bytes) -> LinkHello | Refusal:
    """Read a `LinkHello`, or the refusal that came instead."""
    values = fields.unpack(body, _ITEMS)
    if values[0] == Kind.REFUSE:
        return _refusal(values)
    channel, version, nonce, node, incarnation, name, addresses = fields.shape(
        values, Kind.HELLO, 7
    )
    return LinkHello(
        Channel(fields.integer(channel, "channel", Channel.CONTROL, Channel.BULK)),
        fields.integer(version, "version", 1, bounds.MAX_VERSION),
        fields.blob(nonce, "nonce", bounds.LINK_NONCE_BYTES, bounds.LINK_NONCE_BYTES),
        fields.blob(node, "node", limits.NODE_ID_BYTES, limits.NODE_ID_BYTES),
        fields.incarnation(incarnation),
        fields.name(name),
        fields.addresses(addresses),
    )


def encode(kind: Kind) -> bytes:
    """Return the body of Ready or Commit."""
    return fields.pack(kind)


def encode_refusal(refusal: Refusal) -> bytes:
    """Return the body of a refusal."""
    return fields.pack(Kind.REFUSE, refusal)


def decode_verdict(body: bytes, expected: Kind) -> Refusal | None:
    """Return None if this is `expected`, or the refusal that came instead."""
    values = fields.unpack(body, _ITEMS)
    if values[0] == Kind.REFUSE:
        return _refusal(values)
    fields.shape(values, expected, 0)
    return None


def _refusal(values: list[object]) -> Refusal:
    (number,) = fields.shape(values, Kind.REFUSE, 1)
    reason = fields.integer(number, "refusal", 1, 255)
    if reason not in list(Refusal):
        raise RemoteProtocolError("unknown refusal")
    return Refusal(reason)
