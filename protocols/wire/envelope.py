"""A control message and the identities that it carries: one control frame.

As in messages, fields are only ever added at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocols import limits
from protocols.wire.fields import (
    ATTEMPT,
    ITERATION,
    LINEAGE,
    NODE,
    NODE_OR_ALL,
    NUMBER,
    TERM,
    VERSION,
    VIEW_NUMBER,
    UInt,
    wire,
)

if TYPE_CHECKING:
    from protocols.wire.messages import Message


@dataclass(frozen=True, slots=True)
class Tags:
    """The identities that every message carries (protocol.md, 1.1).

    `lineage` to `attempt` say where the sender stands. `origin`, `incarnation` and `sequence`
    identify the message. `destination` is a node id or `EVERYONE`. `hops` counts the links that the
    message has crossed.
    """

    lineage: bytes = wire(LINEAGE)
    term: int = wire(TERM)
    view: int = wire(VIEW_NUMBER)
    policy: int = wire(VERSION)
    iteration: int = wire(ITERATION)
    attempt: int = wire(ATTEMPT)
    origin: bytes = wire(NODE)
    incarnation: int = wire(NUMBER)
    sequence: int = wire(NUMBER)
    destination: bytes = wire(NODE_OR_ALL)
    hops: int = wire(UInt(limits.MAX_HOPS))


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message and its identities: one control frame."""

    tags: Tags
    message: Message
