"""The messages that open a link, inside mutual TLS 1.3.

    dialling end                       accepting end
    control: LinkHello                 LinkHello, or Refuse
    bulk:    LinkHello (same nonce)    LinkHello
    life:    LinkHello (same nonce)    LinkHello
    then, whoever dialled:
    larger id                          smaller id
    control: Ready                     Commit (the link is up here), or Refuse
    (the link is up here)

This module does no I/O. The messages are tagged records (`protocols/wire/packing.py`), of which the
tags are append-only. Of the two nodes, the one with the smaller id alone decides which of
several openings becomes the link, so that two ends that dial each other at the same moment get
exactly one link. The one with the larger id has at most one Ready unanswered. Its Ready therefore
also says that it has no link with the other, or that the other has just asked it for a new one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from edgeagent.transport import bounds
from edgeagent.transport.kinds import ADDRESSES, NAME, PROTOCOL_VERSION, Chosen
from protocols.wire.fields import NODE, NUMBER, Blob, wire
from protocols.wire.message import Message

VERSION = 1


class Channel(IntEnum):
    """Which of a link's three connections this is."""

    CONTROL = 1
    BULK = 2
    LIFE = 3  # carries nothing: how it ends says whether the process has died (`lifeline.py`)


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
class LinkHello(Message):
    """The first frame on each connection, both ways. `addresses` are of the peer listener."""

    TAG: ClassVar[int] = 1
    channel: Channel = wire(Chosen(Channel))
    version: int = wire(PROTOCOL_VERSION)
    nonce: bytes = wire(Blob(bounds.LINK_NONCE_BYTES, bounds.LINK_NONCE_BYTES))
    node: bytes = wire(NODE)
    incarnation: int = wire(NUMBER)
    name: str = wire(NAME)
    addresses: tuple[str, ...] = wire(ADDRESSES)


@dataclass(frozen=True, slots=True)
class Ready(Message):
    """The node with the larger id has all connections."""

    TAG: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class Commit(Message):
    """The link is up at the node with the smaller id, and is to come up at the other."""

    TAG: ClassVar[int] = 3


@dataclass(frozen=True, slots=True)
class Refuse(Message):
    """No link, and why not. It may come instead of any other frame."""

    TAG: ClassVar[int] = 4
    reason: Refusal = wire(Chosen(Refusal))
