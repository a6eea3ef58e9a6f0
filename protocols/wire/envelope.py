"""A control message and the identities that it carries: one control frame.

Law: fields are append-only, as those of messages.
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
    """A message with the identities that every message carries (protocol.md, 1.1).

    `origin`, `incarnation` and `sequence` name the message once and for all; `destination` is a
    node id or `EVERYONE`; `hops` counts the links crossed.
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
