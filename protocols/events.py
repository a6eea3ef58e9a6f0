"""What a node is told: every event that `Node.handle` takes.

Plain immutable data. The agent's shell and the simulator both build exactly these, and neither adds
a decision of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protocols.cluster.view import Member
    from protocols.network.link_end import LinkEnd
    from protocols.rounds.control_word import ControlWord
    from protocols.wire.envelope import Envelope


@dataclass(frozen=True, slots=True)
class LinkUp:
    """A link to `peer` is open and its key is proven."""

    peer: Member


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The link to `node` is gone, and why."""

    node: bytes
    why: LinkEnd


@dataclass(frozen=True, slots=True)
class Silent:
    """Nothing was heard from `node` for too long, although its link is open."""

    node: bytes


@dataclass(frozen=True, slots=True)
class Faulty:
    """Neighbour `node` sent what cannot be; its link is about to be cut."""

    node: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class DialFailed:
    """No link to `node` could be opened."""

    node: bytes


@dataclass(frozen=True, slots=True)
class Located:
    """`node`, or somebody who holds the token and says so, can be dialled at these addresses."""

    node: bytes
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Received:
    """A decoded control frame came over the link to `via`."""

    via: bytes
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; due at `Node.deadline` at the latest."""


@dataclass(frozen=True, slots=True)
class Contributed:
    """The trainer's own sum lies in P. See `edgeagent.handover.Contributed` for the fields."""

    iteration: int
    micro_batches: tuple[int, ...]
    loss_sum: float
    gradient_bitmap: bytes
    integer_buffers: bytes
    agree: bool
    turn: int = 0
    settings: bytes = b""
    other_settings: bytes = b""
    stop: bool = False


@dataclass(frozen=True, slots=True)
class RoundReduced:
    """Every chunk of the round is reduced here; `word` is its chunk 0."""

    iteration: int
    attempt: int
    word: ControlWord


@dataclass(frozen=True, slots=True)
class Applied:
    """The trainer applied the update of `iteration`; `meta` are the state's scalars after it,
    `claim` a digest of it (`limits.CLAIM_BYTES`; empty: none was taken)."""

    iteration: int
    meta: bytes
    claim: bytes = b""


@dataclass(frozen=True, slots=True)
class PiecesTaken:
    """Digests of `divergence.PIECE_BYTES` of each tensor that the claim of the state at the start
    of `iteration` was taken of."""

    iteration: int
    pieces: bytes


@dataclass(frozen=True, slots=True)
class ShardArrived:
    """A whole shard came from `source`; `digest` is the SHA-256 of what arrived, `rate` what the
    link from there brings at present, in bytes/s (None: not known)."""

    source: bytes
    shard: int
    digest: bytes
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class ManifestReady:
    """The digests that `SendManifest` asked for."""

    joiner: bytes
    join: int
    leaves: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Frozen:
    """The running round is frozen; `have`: bitmap of its chunks that are reduced here."""

    have: bytes


@dataclass(frozen=True, slots=True)
class LeaveWanted:
    """The user wants this node to leave gracefully."""


@dataclass(frozen=True, slots=True)
class YieldWanted:
    """This node's cluster of one gives way to another: depart as soon as the trainer is idle."""


@dataclass(frozen=True, slots=True)
class AwayWanted:
    """The user's script wants no share (`away`), or one again."""

    away: bool


@dataclass(frozen=True, slots=True)
class Incoming:
    """One open link as its receiver knows it: one-way delay, payload bytes/s from `node` (None:
    not known), payload bytes sent to it and received from it so far."""

    node: bytes
    delay_s: float | None
    rate: float | None
    sent_bytes: int
    received_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured here so far, once a heartbeat. `micro_batch_s`: what one micro-batch takes
    (None: not known); `compute_s`, `sync_s`: of the last iteration."""

    incoming: tuple[Incoming, ...]
    micro_batch_s: float | None
    compute_s: float | None
    sync_s: float | None


@dataclass(frozen=True, slots=True)
class LinkWanted:
    """The user wants a link to member `node`, or (`wanted` False) none."""

    node: bytes
    wanted: bool


@dataclass(frozen=True, slots=True)
class ExpelWanted:
    """The user wants member `node` out of the cluster for good."""

    node: bytes


@dataclass(frozen=True, slots=True)
class TokenWanted:
    """The user wants `token` to be the cluster's from now on."""

    token: bytes


Event = (
    LinkUp
    | LinkDown
    | Silent
    | Faulty
    | DialFailed
    | Located
    | Received
    | Tick
    | Contributed
    | RoundReduced
    | Applied
    | PiecesTaken
    | ShardArrived
    | ManifestReady
    | Frozen
    | LeaveWanted
    | YieldWanted
    | AwayWanted
    | Measured
    | LinkWanted
    | ExpelWanted
    | TokenWanted
)
