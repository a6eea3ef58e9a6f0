"""What a node is told (events) and what it wants done (effects).

Law: plain immutable data. The agent's shell and the simulator both speak exactly this; neither adds
a decision of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protocols.control_word import ControlWord
    from protocols.envelope import Envelope
    from protocols.link_end import LinkEnd
    from protocols.round import RoundSpec
    from protocols.view import Member

# --- events ---------------------------------------------------------------------------------------


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

# --- effects --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Send `envelope` over the link to `to`."""

    to: bytes
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class Trust:
    """Accept `member`'s key on links from now on."""

    member: Member


@dataclass(frozen=True, slots=True)
class Distrust:
    """Accept the key of `node` no longer."""

    node: bytes


@dataclass(frozen=True, slots=True)
class Dial:
    """Open a link to `member`."""

    member: Member


@dataclass(frozen=True, slots=True)
class CloseLink:
    """Send what is queued for `node`, then close the link."""

    node: bytes


@dataclass(frozen=True, slots=True)
class BeginTraining:
    """Tell the trainer to start at `iteration`; if `adopt`, the state was pulled."""

    iteration: int
    adopt: bool
    meta: bytes
    steps: int


@dataclass(frozen=True, slots=True)
class StartRound:
    """Run this round from now on."""

    spec: RoundSpec


@dataclass(frozen=True, slots=True)
class ServeRound:
    """Send what `spec.spread` says of R of a round that is over here, to those who lack it."""

    spec: RoundSpec


@dataclass(frozen=True, slots=True)
class FreezeRound:
    """Accept, send and complete nothing more of the running round; answer with `Frozen`."""


@dataclass(frozen=True, slots=True)
class GiveWork:
    """Tell the trainer to compute these micro-batches (more) of `iteration`. In another `turn` than
    before it begins its sum anew: what it had computed of the iteration was handed back."""

    iteration: int
    micro_batches: tuple[int, ...]
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Contribute:
    """P and `word` are this node's part of the running round. If no micro-batch is in `word`, P
    counts as zeros, whatever it holds: a late trainer may be writing there."""

    word: ControlWord


@dataclass(frozen=True, slots=True)
class Apply:
    """Tell the trainer to apply R of `iteration`, or what `KeepUpdate` has kept of it."""

    iteration: int
    word: ControlWord
    members: int


@dataclass(frozen=True, slots=True)
class TakePieces:
    """Answer `PiecesTaken`, now: the state is constant until the next effect."""

    iteration: int


@dataclass(frozen=True, slots=True)
class Differs:
    """Tell the user where the state here differs from that of the others: in number `piece` of
    those that were taken, or in the scalars, of which `mine` are here and `theirs` there."""

    iteration: int
    piece: int | None
    mine: bytes
    theirs: bytes


@dataclass(frozen=True, slots=True)
class KeepUpdate:
    """Keep R of `iteration`, which is complete, until it has been applied: the trainer is late."""

    iteration: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Send `node` so much at once that it can measure the link: `limits.MAX_PROBE_BYTES`, or what
    leaves in `limits.MAX_PROBE_SECONDS` and `limits.PROBE_ROUND_TRIPS`."""

    node: bytes


@dataclass(frozen=True, slots=True)
class TakeDigest:
    """Hash the training state, which is constant until the next `Apply`."""

    iteration: int
    commit: bytes


@dataclass(frozen=True, slots=True)
class SendManifest:
    """Hash the state in shards of `shard_bytes`; answer with `ManifestReady`."""

    joiner: bytes
    join: int
    shard_bytes: int


@dataclass(frozen=True, slots=True)
class SendShards:
    """Send these shards of the state, constant meanwhile, to `joiner` over bulk."""

    joiner: bytes
    join: int
    iteration: int
    shard_bytes: int
    shards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """Something a user may want to know; `values` are JSON-able, node ids already names."""

    event: str
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class JoinFailed:
    """This node's join came to nothing; try again from the start, but not before `pause_s`."""

    reason: str
    pause_s: float = 0.0


@dataclass(frozen=True, slots=True)
class UseToken:
    """Prove and accept this token, and no other, from now on."""

    token: bytes


@dataclass(frozen=True, slots=True)
class Depart:
    """This node's part is over. `why`: "left", "steps", "yielded" (to another cluster), "stalled"
    (its trainer does not answer; it joins again when that does), "diverged" (its state differs from
    that of the others, so it has to pull theirs), "expelled"
    (the others went on without it; it may join again), "removed" (by a user) or "error" (then
    `message` says what)."""

    why: str
    message: str


Effect = (
    Send
    | Trust
    | Distrust
    | Dial
    | CloseLink
    | BeginTraining
    | StartRound
    | ServeRound
    | FreezeRound
    | GiveWork
    | Contribute
    | Apply
    | KeepUpdate
    | TakePieces
    | Differs
    | Probe
    | TakeDigest
    | SendManifest
    | SendShards
    | Report
    | JoinFailed
    | UseToken
    | Depart
)
