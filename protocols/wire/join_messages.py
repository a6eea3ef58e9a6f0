"""The messages with which a device joins; `messages.py` lists them with all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from protocols import limits
from protocols.cluster.view import Member
from protocols.wire.fields import (
    CONSTANTS,
    COUNT32,
    NODE,
    NUMBER,
    Bool,
    Many,
    Nested,
    Text,
    wire,
)
from protocols.wire.message import Message


@dataclass(frozen=True, slots=True)
class JoinRequest(Message):
    """Joiner to scheduler: let me in. Repeated until it is answered; repetitions by the same
    incarnation begin no second join. `neighbours`: names of members to link to, if its user named
    any."""

    TAG: ClassVar[int] = 4
    joiner: Member = wire(Nested(Member))
    neighbours: tuple[str, ...] = wire(Many(Text(limits.MAX_NAME_BYTES), limits.MAX_LINKS_PER_NODE))


@dataclass(frozen=True, slots=True)
class Introduce(Message):
    """Scheduler to a chosen neighbour: trust this joiner's key and expect its link."""

    TAG: ClassVar[int] = 5
    join: int = wire(NUMBER)
    joiner: Member = wire(Nested(Member))


@dataclass(frozen=True, slots=True)
class Introduced(Message):
    """Neighbour to scheduler: the joiner may dial me."""

    TAG: ClassVar[int] = 6
    join: int = wire(NUMBER)


@dataclass(frozen=True, slots=True)
class OpenLinks(Message):
    """Scheduler to joiner: open links to these members. To a member with join 0: the same."""

    TAG: ClassVar[int] = 7
    join: int = wire(NUMBER)
    neighbours: tuple[Member, ...] = wire(Many(Nested(Member), limits.MAX_LINKS_PER_NODE))


@dataclass(frozen=True, slots=True)
class LinksOpen(Message):
    """Joiner to scheduler: these links are open (at least one). `rates`: payload bytes/s that
    arrive over each, 0 if not known. A member answers with join 0 and without rates. `constants`:
    SHA-256 of that part of the state here which never changes while training, empty if there is
    none or it is not known. `copied`: the joiner has copied the state beside the training, and
    lacks only the last updates. `outside`: its user does not want it to enter, but to follow."""

    TAG: ClassVar[int] = 8
    join: int = wire(NUMBER)
    neighbours: tuple[bytes, ...] = wire(Many(NODE, limits.MAX_LINKS_PER_NODE))
    rates: tuple[int, ...] = wire(Many(NUMBER, limits.MAX_LINKS_PER_NODE), ())
    constants: bytes = wire(CONSTANTS, b"")
    copied: bool = wire(Bool(), False)
    outside: bool = wire(Bool(), False)


@dataclass(frozen=True, slots=True)
class CaughtUp(Message):
    """Joiner to scheduler: I have the state, and my trainer has applied an update like those of the
    members; let me in by a policy."""

    TAG: ClassVar[int] = 16
    join: int = wire(NUMBER)


@dataclass(frozen=True, slots=True)
class JoinAborted(Message):
    """Flooded by the scheduler: this join is over, and members that hold an update for it go on.
    The joiner is not to ask again for `pause_ms`. Join 0: a request that is refused at once.
    `stands_by`: the members are faster without it."""

    TAG: ClassVar[int] = 17
    join: int = wire(NUMBER)
    joiner: bytes = wire(NODE)
    reason: str = wire(Text())
    pause_ms: int = wire(COUNT32, 0)
    stands_by: bool = wire(Bool(), False)


@dataclass(frozen=True, slots=True)
class StaysOutside(Message):
    """Scheduler to a joiner, and at first to all: the members are faster without it, or its user
    does not want it to enter. It goes on to copy every update, and enters when that has changed."""

    TAG: ClassVar[int] = 49
    join: int = wire(NUMBER)
    joiner: bytes = wire(NODE)
    reason: str = wire(Text())
