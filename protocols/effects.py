"""Effects: what a node wants done, as `Node.handle` returns it.

Effects are plain immutable data. The agent's shell and the simulator perform exactly these, in
their order, and neither adds a decision of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protocols.cluster.policy import Policy
    from protocols.cluster.view import Member
    from protocols.rounds.control_word import ControlWord
    from protocols.rounds.round import RoundSpec
    from protocols.scheduler.planning import Found
    from protocols.wire.envelope import Envelope


@dataclass(frozen=True, slots=True)
class Send:
    """Send `envelope` over the link to `to`."""

    to: bytes
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class Trust:
    """Accept links from `member`, which proves itself by its key, from now on."""

    member: Member


@dataclass(frozen=True, slots=True)
class Distrust:
    """Accept no links from `node` any longer."""

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
    """Tell the trainer to start at `iteration`. If `adopt`, the state was pulled, and `meta` are
    its scalars. Training ends after the iteration number `steps`."""

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
    """Send the chunks of R that `spec.spread` names, of a round that is over here, to the nodes
    that lack them."""

    spec: RoundSpec


@dataclass(frozen=True, slots=True)
class FreezeRound:
    """Accept, send and complete nothing more of the running round; answer with `Frozen`."""


@dataclass(frozen=True, slots=True)
class GiveWork:
    """Tell the trainer to compute these micro-batches of `iteration`, and to add them to its sum.
    If the `turn` is another one than before, it begins its sum anew, because what it had computed
    of the iteration was handed back."""

    iteration: int
    micro_batches: tuple[int, ...]
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Contribute:
    """P and `word` are this node's part of the running round. If no micro-batch is in `word`, P
    counts as zeros, whatever it holds: a late trainer may be writing there."""

    word: ControlWord


@dataclass(frozen=True, slots=True)
class ContributeChunks:
    """P is this node's part of the running round in these data chunks, and does not change there
    in this attempt. `Contribute` follows. The sums count only if its word has the micro-batches
    that are in these chunks."""

    chunks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HoldWord:
    """If the control word of the running round is summed at this node, wait for `NamePolicy` with
    that, but only as long as other chunks are missing (`Round.hold_word`)."""


@dataclass(frozen=True, slots=True)
class NamePolicy:
    """Have the control word of the running round name `policy`, which is the key of one, if this
    node sums the word and has not done so yet."""

    policy: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Apply:
    """Tell the trainer to apply R of `iteration`, or what `KeepUpdate` has kept of it, or, at a
    joiner that copies beside the training, the parts of it that have come in. Where chunks have
    holders, R has new weights, and the trainer steps the slots of `stripes` with their sums. Before
    that, those of the stripes `anew` begin anew, unless they did so for `Publish`. `slots_now`: the
    slots are stepped before `Applied`, and not while the trainer waits for the next round."""

    iteration: int
    word: ControlWord
    members: int
    stripes: tuple[int, ...] = ()
    anew: tuple[int, ...] = ()
    slots_now: bool = False


@dataclass(frozen=True, slots=True)
class PassOver:
    """Let the update of `iteration` pass by, as there is no trainer any more to apply it. Answer
    with `Applied` once R is on its way to all who follow this node."""

    iteration: int


@dataclass(frozen=True, slots=True)
class Publish:
    """Tell the trainer to put into R the new weights of `stripes`, which it makes of the sums that
    are kept here; it changes nothing else, since the others may have to do it in its place. The
    slots of the stripes `anew` begin anew before. Those of the stripes `lost` are lost with their
    sums, so their new weights are the old ones. Answer with `Published`."""

    iteration: int
    attempt: int
    word: ControlWord
    members: int
    stripes: tuple[int, ...]
    anew: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PublishChunks:
    """Send the results that are in R now to everyone."""


@dataclass(frozen=True, slots=True)
class LendStripes:
    """Send the slots of `stripes` as they are now, at the start of `iteration`, to the neighbour
    `learner`. The state is constant until the next effect; copy them."""

    learner: bytes
    iteration: int
    stripes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TakePieces:
    """Digest the pieces of the state and answer with `PiecesTaken`, before the next effect is
    performed, because the state is constant only until then."""

    iteration: int


@dataclass(frozen=True, slots=True)
class Differs:
    """Tell the user where the state here differs from that of the others: in the piece with the
    number `piece`, or, if that is None, in the scalars, which are `mine` here and `theirs`
    there."""

    iteration: int
    piece: int | None
    mine: bytes
    theirs: bytes


@dataclass(frozen=True, slots=True)
class KeepUpdate:
    """Keep a copy of R of `iteration`, which is complete, until the late trainer has applied it,
    and of the sums of those `stripes` of a divided optimizer whose slots it is to step then."""

    iteration: int
    stripes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Probe:
    """Send `node` as much at once as it needs to measure the link: `limits.MAX_PROBE_BYTES`, or
    what can be sent in `limits.MAX_PROBE_SECONDS` and `limits.PROBE_ROUND_TRIPS`, whichever is
    less."""

    node: bytes


@dataclass(frozen=True, slots=True)
class LinkFell:
    """The link from `node` carries no more than `rate`, in bytes/s: forget what it carried before,
    which was more."""

    node: bytes
    rate: float


@dataclass(frozen=True, slots=True)
class TakeDigest:
    """Hash the whole training state, which is constant until the next `Apply`, and report it."""

    iteration: int
    commit: bytes


@dataclass(frozen=True, slots=True)
class SendManifest:
    """Hash the shards of `shard_bytes` of the state, from number `first` on; answer with
    `ManifestReady`. `snapshot`: hash the snapshot of this iteration instead of the state as it is
    now."""

    joiner: bytes
    join: int
    shard_bytes: int
    first: int = 0
    snapshot: int | None = None


@dataclass(frozen=True, slots=True)
class SendShards:
    """Send these shards of the state, which is held constant meanwhile, to `joiner` over bulk. If
    `from_snapshot`, they are those of the snapshot of `iteration`. If `as_now`, the state may
    change before all is sent, and the shards are sent as they are now."""

    joiner: bytes
    join: int
    iteration: int
    shard_bytes: int
    shards: tuple[int, ...]
    from_snapshot: bool = False
    as_now: bool = False


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Copy the state, which is that at the start of `iteration` and constant until the answer
    `SnapshotTaken`."""

    iteration: int


@dataclass(frozen=True, slots=True)
class DropSnapshot:
    """Free the snapshot of `iteration`."""

    iteration: int


@dataclass(frozen=True, slots=True)
class LogUpdate:
    """Keep a copy of R of `iteration`, which is complete. Answer when R is copied (`UpdateCopied`),
    and again with the digests of its parts (`UpdateLogged`). R does not change before the first
    answer; both must come even if the copy is not wanted any more. The copy is kept until
    `DropUpdates`."""

    iteration: int


@dataclass(frozen=True, slots=True)
class DropUpdates:
    """Free the copies of R that `LogUpdate` has kept, or that a joiner has received, of all
    iterations before `before`."""

    before: int


@dataclass(frozen=True, slots=True)
class SendUpdate:
    """Send these parts of the update of `iteration`, which `LogUpdate` has kept, to `joiner` over
    bulk."""

    joiner: bytes
    join: int
    iteration: int
    parts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HashOwnShards:
    """Hash the first `shards` shards of the state that is here, each of `shard_bytes`; answer with
    `OwnShardsHashed`. They do not change meanwhile."""

    join: int
    shard_bytes: int
    shards: int


@dataclass(frozen=True, slots=True)
class Report:
    """Tell the user of an event. `values` can be written as JSON, and name nodes by their names."""

    event: str
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class JoinFailed:
    """This node's join has failed: begin again from the start, but not before `pause_s`.
    `stands_by`: the others are faster without this device."""

    reason: str
    pause_s: float = 0.0
    stands_by: bool = False


@dataclass(frozen=True, slots=True)
class StandsBy:
    """This node follows the others from outside for now, for this reason, which may change."""

    reason: str


@dataclass(frozen=True, slots=True)
class UseToken:
    """Use this token and no other from now on, to prove this node and to check others."""

    token: bytes


@dataclass(frozen=True, slots=True)
class Depart:
    """This node's part is over. `why` is one of:

    - "steps": training has ended; "left": it has left, as its user wanted
    - "yielded": its cluster gives way to another one
    - "stalled": its trainer does not answer; it joins again when the trainer does
    - "diverged": its state differs from that of the others, so it has to pull theirs
    - "expelled": the others went on without it; it may join again
    - "removed": a user has expelled it for good
    - "parts lost": parts of the optimizer's state are lost, and its user wants it to stop then
    - "error": `message` says what went wrong
    """

    why: str
    message: str


@dataclass(frozen=True, slots=True)
class SearchWays:
    """Have the planner search for ways over the links of `policy`, with what is measured now, and
    answer with `events.WaysFound`. That takes long, so everything else goes on meanwhile.
    `number` tells searches apart; `before` is what the last one found."""

    number: int
    policy: Policy
    before: Found | None


# One family for each part of the agent's shell, which performs the effects of that family.
PeerEffect = Send | Trust | Distrust | Dial | CloseLink | Probe | LinkFell
RoundEffect = (
    StartRound
    | ServeRound
    | FreezeRound
    | ContributeChunks
    | Contribute
    | HoldWord
    | NamePolicy
    | PublishChunks
)
TrainerEffect = (
    BeginTraining
    | GiveWork
    | Publish
    | Apply
    | PassOver
    | KeepUpdate
    | TakePieces
    | Differs
    | TakeDigest
)
ShardEffect = SendManifest | SendShards | HashOwnShards
CopyEffect = TakeSnapshot | DropSnapshot | LogUpdate | DropUpdates | SendUpdate
StripeEffect = LendStripes
PlannerEffect = SearchWays
OwnerEffect = Report | UseToken | Depart | JoinFailed | StandsBy
Effect = (
    PeerEffect
    | RoundEffect
    | TrainerEffect
    | ShardEffect
    | CopyEffect
    | StripeEffect
    | PlannerEffect
    | OwnerEffect
)
