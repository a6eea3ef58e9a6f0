"""Events: what a node is told, as `Node.handle` takes it.

Events are plain immutable data. The agent's shell and the simulator build exactly these, and
neither adds a decision of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocols.wire.messages import Ping, Pong

if TYPE_CHECKING:
    from protocols.cluster.view import Member
    from protocols.network.link_end import LinkEnd
    from protocols.network.stretch import Stretch
    from protocols.rounds.control_word import ControlWord
    from protocols.scheduler.planning import Found
    from protocols.wire.envelope import Envelope


@dataclass(frozen=True, slots=True)
class LinkUp:
    """A link to `peer` is open, and `peer` has proved its key."""

    peer: Member


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The link to `node` has ended for the reason `why`."""

    node: bytes
    why: LinkEnd


@dataclass(frozen=True, slots=True)
class Silent:
    """Nothing has arrived from `node` for too long, although the link to it is open."""

    node: bytes


@dataclass(frozen=True, slots=True)
class Faulty:
    """The neighbour `node` has broken the protocol, and the link to it is about to be cut."""

    node: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class DialFailed:
    """No link to `node` could be opened."""

    node: bytes


@dataclass(frozen=True, slots=True)
class Located:
    """`node` has answered, proved its identity, and says that its agent is in this `incarnation`,
    can be dialled at these addresses, and is a member in `lineage`, b"" if it is none."""

    node: bytes
    addresses: tuple[str, ...]
    incarnation: int
    lineage: bytes


@dataclass(frozen=True, slots=True)
class Received:
    """A decoded control frame came over the link to `via`."""

    via: bytes
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. It is due at `Node.deadline` at the latest."""


@dataclass(frozen=True, slots=True)
class Contributed:
    """The trainer has computed the micro-batches that it was given, and their sum is in P. See
    `edgeagent.handover.Contributed` for the fields."""

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
class ChunksReady:
    """While the trainer still computes, P already holds the sum over `micro_batches` in the data
    chunks of the bitmap `chunks`. See `edgeagent.handover.ChunksReady` for the fields."""

    iteration: int
    micro_batches: tuple[int, ...]
    chunks: bytes
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Progressed:
    """The trainer has computed so many more of the micro-batches that it was given in this turn,
    and goes on. Only told in rounds of local steps, which may take long."""

    iteration: int
    micro_batches: int
    turn: int = 0


@dataclass(frozen=True, slots=True)
class TrainerEnded:
    """The trainer's process has ended. The node answers in its place from now on."""


@dataclass(frozen=True, slots=True)
class RoundReduced:
    """Every chunk of the round is reduced here; `word` is its chunk 0."""

    iteration: int
    attempt: int
    word: ControlWord


@dataclass(frozen=True, slots=True)
class RoundDecided:
    """The reduced control word of a round whose chunks have holders is here. Each sum lies at all
    holders of its chunk; if the word is final, the owners make the results."""

    iteration: int
    attempt: int
    word: ControlWord


@dataclass(frozen=True, slots=True)
class Published:
    """The trainer has put the results that `Publish` asked for into R."""

    iteration: int
    attempt: int


@dataclass(frozen=True, slots=True)
class StripeArrived:
    """The slots of a whole stripe, as they were at the start of `iteration`, have come from a
    holder."""

    iteration: int
    stripe: int


@dataclass(frozen=True, slots=True)
class Applied:
    """The trainer has applied the update of `iteration`. `meta` are the state's scalars after it,
    and `claim` is a digest of the state (`limits.CLAIM_BYTES`; empty if none was taken)."""

    iteration: int
    meta: bytes
    claim: bytes = b""


@dataclass(frozen=True, slots=True)
class UpdateDelayed:
    """What the node has asked of the trainer for `iteration`, with `Apply` or `Publish`, was not
    handed to it before now. Either joiners still received the result of that round from here, whose
    memory the trainer uses next: that is repeated as long as they take it in, said for the last
    time when the trainer has the update, and not repeated if they take in nothing any more. Or
    slots had to be stepped or copied first: that is said once."""

    iteration: int


@dataclass(frozen=True, slots=True)
class PiecesTaken:
    """The digests that `TakePieces` asked for: one of `divergence.PIECE_BYTES` for each tensor that
    the claim about the state at the start of `iteration` covers."""

    iteration: int
    pieces: bytes


@dataclass(frozen=True, slots=True)
class ShardArrived:
    """A whole shard has come from `source`. `digest` is the SHA-256 of what arrived, and `rate` how
    fast the link from there is in bytes/s, None if not known."""

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
class OwnShardsHashed:
    """The digests that `HashOwnShards` asked for."""

    join: int
    digests: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """The snapshot that `TakeSnapshot` asked for is there, or (`ok` False) memory was short."""

    iteration: int
    ok: bool


@dataclass(frozen=True, slots=True)
class UpdateCopied:
    """R of `iteration` is copied, as `LogUpdate` asked for, or memory was short: R may change."""

    iteration: int


@dataclass(frozen=True, slots=True)
class UpdateLogged:
    """The copy of the update of `iteration` is hashed, too: `leaves` are the SHA-256 of its parts,
    in order. If memory was short, it is not kept, and there are no `leaves`."""

    iteration: int
    leaves: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class UpdateArrived:
    """A whole part of the update of `iteration` has come from `source`. `digest` and `rate` are as
    in `ShardArrived`."""

    source: bytes
    iteration: int
    part: int
    digest: bytes
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class Frozen:
    """The running round is frozen; `have`: bitmap of its chunks that are reduced here."""

    have: bytes


@dataclass(frozen=True, slots=True)
class LeaveWanted:
    """The user wants this node to leave without disturbing the others."""


@dataclass(frozen=True, slots=True)
class YieldWanted:
    """This node's cluster gives way to another one: depart as soon as the trainer is idle."""


@dataclass(frozen=True, slots=True)
class StandAside:
    """The user wants this device out of the cluster for a while, as if its trainer hung."""


@dataclass(frozen=True, slots=True)
class AwayWanted:
    """The user's script wants no share of the work (`away`), or one again."""

    away: bool


@dataclass(frozen=True, slots=True)
class Incoming:
    """What this node knows of an open link. `delay_s`: one way. `rate`: payload bytes/s that arrive
    from `node`. Both are None if not known. `sent_bytes`, `received_bytes`: payload bytes so far.
    `alone`: the rate was measured while no other link was busy."""

    node: bytes
    delay_s: float | None
    rate: float | None
    sent_bytes: int
    received_bytes: int = 0
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """What this node has measured so far; told at each heartbeat. `micro_batch_s`: how long one
    micro-batch takes. `compute_s`, `sync_s`: how long the last iteration's own computing, and the
    wait for its round, took. None if not known. `sent`, `received`: what all links carried together
    in each of the times, since this was told last, in which several were busy."""

    incoming: tuple[Incoming, ...]
    micro_batch_s: float | None
    compute_s: float | None
    sync_s: float | None
    sent: tuple[Stretch, ...] = ()
    received: tuple[Stretch, ...] = ()


@dataclass(frozen=True, slots=True)
class WaysFound:
    """The search `number` (`effects.SearchWays`) has `found` these ways."""

    number: int
    found: Found


@dataclass(frozen=True, slots=True)
class LinkWanted:
    """The user wants a link to the member `node`, or wants none (`wanted` False)."""

    node: bytes
    wanted: bool


@dataclass(frozen=True, slots=True)
class ExpelWanted:
    """The user wants to expel the member `node` from the cluster for good."""

    node: bytes


@dataclass(frozen=True, slots=True)
class TokenWanted:
    """The user wants `token` to be the cluster's token from now on."""

    token: bytes


# What concerns copies of the training state, at a joiner or at a source.
TrainerEvent = (
    ChunksReady | Progressed | Contributed | TrainerEnded | Published | UpdateDelayed | PiecesTaken
)
CopyEvent = (
    ShardArrived
    | ManifestReady
    | OwnShardsHashed
    | SnapshotTaken
    | UpdateCopied
    | UpdateLogged
    | UpdateArrived
    | StripeArrived
)
Event = (
    LinkUp
    | LinkDown
    | Silent
    | Faulty
    | DialFailed
    | Located
    | Received
    | Tick
    | ChunksReady
    | Progressed
    | Contributed
    | TrainerEnded
    | RoundDecided
    | Published
    | RoundReduced
    | Applied
    | UpdateDelayed
    | PiecesTaken
    | ShardArrived
    | ManifestReady
    | OwnShardsHashed
    | SnapshotTaken
    | UpdateCopied
    | UpdateLogged
    | UpdateArrived
    | StripeArrived
    | Frozen
    | LeaveWanted
    | YieldWanted
    | AwayWanted
    | StandAside
    | Measured
    | WaysFound
    | LinkWanted
    | ExpelWanted
    | TokenWanted
)


def is_heartbeat(event: Event, lineage: bytes) -> bool:
    """Return whether `event` is the heartbeat of a neighbour in `lineage`, that of the node.

    These are most of all events, and they change nothing but what is measured, so no part of the
    node has to look at them. Those of another lineage may tell of a fork.
    """
    if not isinstance(event, Received) or not isinstance(event.envelope.message, Ping | Pong):
        return False
    tags = event.envelope.tags
    return tags.origin == event.via and tags.lineage == lineage
