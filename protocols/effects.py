"""What a node wants done: every effect that `Node.handle` returns.

Plain immutable data. The agent's shell and the simulator both perform exactly these, and neither
adds a decision of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protocols.cluster.view import Member
    from protocols.rounds.control_word import ControlWord
    from protocols.rounds.round import RoundSpec
    from protocols.wire.envelope import Envelope


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


# One family for each part of the agent that does what they say.
PeerEffect = Send | Trust | Distrust | Dial | CloseLink | Probe
RoundEffect = StartRound | ServeRound | FreezeRound | Contribute
TrainerEffect = BeginTraining | GiveWork | Apply | KeepUpdate | TakePieces | Differs | TakeDigest
SourceEffect = SendManifest | SendShards
OwnerEffect = Report | UseToken | Depart | JoinFailed
Effect = PeerEffect | RoundEffect | TrainerEffect | SourceEffect | OwnerEffect
