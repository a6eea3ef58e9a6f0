"""The messages with which a joiner copies the state; `messages.py` lists them with all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from protocols import limits
from protocols.wire.fields import (
    COUNT32,
    DIGEST,
    ITERATION,
    NUMBER,
    Blob,
    Bool,
    Many,
    UInt,
    wire,
)
from protocols.wire.message import Message


@dataclass(frozen=True, slots=True)
class ManifestRequest(Message):
    """Direct, joiner to a source: send me the digests of the state that I am to pull, from shard
    `first` on. The shards before it are here, as part of constants that both of us have."""

    TAG: ClassVar[int] = 12
    join: int = wire(NUMBER)
    shard_bytes: int = wire(UInt(limits.MAX_SHARD_BYTES))
    first: int = wire(COUNT32, 0)


@dataclass(frozen=True, slots=True)
class Manifest(Message):
    """Direct answer: SHA-256 of each shard of the held state that was asked for, in order."""

    TAG: ClassVar[int] = 13
    join: int = wire(NUMBER)
    leaves: tuple[bytes, ...] = wire(Many(DIGEST, limits.MAX_SHARDS))


@dataclass(frozen=True, slots=True)
class ShardRequest(Message):
    """Direct, joiner to a source: send these shards of `shard_bytes` each over bulk."""

    TAG: ClassVar[int] = 14
    join: int = wire(NUMBER)
    shard_bytes: int = wire(UInt(limits.MAX_SHARD_BYTES))
    shards: tuple[int, ...] = wire(Many(COUNT32, limits.MAX_SHARDS))


@dataclass(frozen=True, slots=True)
class UpdateRecord(Message):
    """Direct, source to a joiner that copies beside the training: the update of `iteration` is
    complete, and I keep it for you.

    `word`: the reduced control word of that round. `members`: how many members have summed.
    `commit`: C(iteration). `leaves`: SHA-256 of each part of the update, in order.
    """

    TAG: ClassVar[int] = 42
    join: int = wire(NUMBER)
    iteration: int = wire(ITERATION)
    word: bytes = wire(Blob(limits.MAX_CONTROL_WORD_BYTES))
    members: int = wire(UInt(limits.MAX_MEMBERS))
    commit: bytes = wire(DIGEST)
    leaves: tuple[bytes, ...] = wire(Many(DIGEST, limits.MAX_SHARDS))


@dataclass(frozen=True, slots=True)
class UpdateRequest(Message):
    """Direct, joiner to a source: send these parts of the update of `iteration` over bulk, or, if
    there are none, tell me of that update again. I have all updates before that of `needs`.
    `whole`: I have the whole snapshot, too, so you need not keep it for me."""

    TAG: ClassVar[int] = 43
    join: int = wire(NUMBER)
    iteration: int = wire(ITERATION)
    needs: int = wire(ITERATION)
    parts: tuple[int, ...] = wire(Many(COUNT32, limits.MAX_SHARDS))
    whole: bool = wire(Bool(), False)


@dataclass(frozen=True, slots=True)
class CopyEnded(Message):
    """Direct, source to a joiner: I keep nothing for your join any more. Another joiner that has
    sent shards says the same when its own copy is whole."""

    TAG: ClassVar[int] = 44
    join: int = wire(NUMBER)


@dataclass(frozen=True, slots=True)
class NoSnapshot(Message):
    """Source to scheduler: this join can copy nothing from me. I cannot keep a snapshot, because
    memory is short, or my state lacks updates, because my trainer is behind."""

    TAG: ClassVar[int] = 45
    join: int = wire(NUMBER)


@dataclass(frozen=True, slots=True)
class ShardsHere(Message):
    """Joiner to another joiner that copies the state of the same `iteration`: these shards of
    `shard_bytes` each are here and verified, besides those that I have told you of before. Over a
    link between us you may ask me for them (`ShardRequest`) until I say `CopyEnded`. Without one,
    `shards` is empty, and the message says that I am ready for a link. `join`: the sender's own
    join. `begins`: the sender has not heard of your shards yet, so tell it of all."""

    TAG: ClassVar[int] = 46
    join: int = wire(NUMBER)
    iteration: int = wire(ITERATION)
    shard_bytes: int = wire(UInt(limits.MAX_SHARD_BYTES))
    begins: bool = wire(Bool())
    shards: tuple[int, ...] = wire(Many(COUNT32, limits.MAX_SHARDS))


@dataclass(frozen=True, slots=True)
class StripesWanted(Message):
    """Direct, learner to a holder: send me the slots of these stripes as they are at the start of
    `iteration`, for which a policy names me as their learner."""

    TAG: ClassVar[int] = 47
    iteration: int = wire(ITERATION)
    stripes: tuple[int, ...] = wire(Many(UInt(limits.MAX_STRIPES), limits.MAX_STRIPES))


@dataclass(frozen=True, slots=True)
class StripesLearned(Message):
    """Flooded, by a learner: I have the slots of these stripes and keep them up to date. The
    scheduler makes the sender a holder; if the scheduler is lost, the others know what they have
    without it."""

    TAG: ClassVar[int] = 48
    stripes: tuple[int, ...] = wire(Many(UInt(limits.MAX_STRIPES), limits.MAX_STRIPES))
