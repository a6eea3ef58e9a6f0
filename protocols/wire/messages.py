"""Every control message, with its tag.

Tags never change and are never used again, and fields are only ever added at the end of a message.
Each docstring says who sends the message to whom, often in the words of the sender ("me" is the
sender). "Flooded" messages reach every node over any path; "direct" ones cross one link only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from protocols import limits
from protocols.cluster.ancestry import Ancestor
from protocols.cluster.policy import Electorate, Policy
from protocols.network.measures import KeepingUp
from protocols.rounds.divergence import PIECE_BYTES
from protocols.wire.copy_messages import CopyEnded as CopyEnded
from protocols.wire.copy_messages import Manifest as Manifest
from protocols.wire.copy_messages import ManifestRequest as ManifestRequest
from protocols.wire.copy_messages import NoSnapshot as NoSnapshot
from protocols.wire.copy_messages import ShardRequest as ShardRequest
from protocols.wire.copy_messages import ShardsHere as ShardsHere
from protocols.wire.copy_messages import StripesLearned as StripesLearned
from protocols.wire.copy_messages import StripesWanted as StripesWanted
from protocols.wire.copy_messages import UpdateRecord as UpdateRecord
from protocols.wire.copy_messages import UpdateRequest as UpdateRequest
from protocols.wire.fields import (
    ATTEMPT,
    CONSTANTS,
    COUNT32,
    DIGEST,
    FENCE_NUMBER,
    ITERATION,
    NODE,
    NUMBER,
    SAMPLES,
    TERM,
    VERSION,
    Blob,
    Bool,
    Float,
    Many,
    Nested,
    Text,
    UInt,
    wire,
)
from protocols.wire.join_messages import CaughtUp as CaughtUp
from protocols.wire.join_messages import Introduce as Introduce
from protocols.wire.join_messages import Introduced as Introduced
from protocols.wire.join_messages import JoinAborted as JoinAborted
from protocols.wire.join_messages import JoinRequest as JoinRequest
from protocols.wire.join_messages import LinksOpen as LinksOpen
from protocols.wire.join_messages import OpenLinks as OpenLinks
from protocols.wire.join_messages import StaysOutside as StaysOutside
from protocols.wire.message import Message as Message

EVERYONE = b""


@dataclass(frozen=True, slots=True)
class Ping(Message):
    """Direct, both ways: measures a link's delay and shows that the sender lives. `sent_at`:
    seconds of the sender's clock."""

    TAG: ClassVar[int] = 1
    sent_at: float = wire(Float())


@dataclass(frozen=True, slots=True)
class Pong(Message):
    """Direct answer to `Ping`, with its `sent_at`."""

    TAG: ClassVar[int] = 2
    sent_at: float = wire(Float())


@dataclass(frozen=True, slots=True)
class Welcome(Message):
    """Direct, from a member to whoever has opened a link to it: who is the scheduler, which policy
    is in force, and at which iteration training ends."""

    TAG: ClassVar[int] = 3
    scheduler: bytes = wire(NODE)
    policy: Policy = wire(Nested(Policy))
    steps: int = wire(NUMBER)


@dataclass(frozen=True, slots=True)
class PolicyBody(Message):
    """Scheduler to members and joiners, or any node that is asked: store this policy."""

    TAG: ClassVar[int] = 9
    policy: Policy = wire(Nested(Policy))


@dataclass(frozen=True, slots=True)
class PolicyStored(Message):
    """Member or joiner to scheduler: I hold that policy's body."""

    TAG: ClassVar[int] = 10
    policy_term: int = wire(TERM)
    version: int = wire(VERSION)


@dataclass(frozen=True, slots=True)
class PolicyComing(Message):
    """Scheduler to the root of the control word's tree: that policy is to be named by the word of
    this attempt of `iteration`. If it is not `ready`, too few nodes hold its body yet, or it is not
    made yet and the key is that of the policy in force: hold the word back for it."""

    TAG: ClassVar[int] = 50
    policy_term: int = wire(TERM)
    version: int = wire(VERSION)
    iteration: int = wire(ITERATION)
    attempt: bytes = wire(DIGEST)  # as `fence.attempt_id` names it
    ready: bool = wire(Bool())


@dataclass(frozen=True, slots=True)
class PolicyFetch(Message):
    """To all neighbours, by a node that lacks the body of a policy that comes into force: send
    it."""

    TAG: ClassVar[int] = 11
    policy_term: int = wire(TERM)
    version: int = wire(VERSION)


@dataclass(frozen=True, slots=True)
class Pulled(Message):
    """Flooded by a joiner: every shard is here and verified, so nobody has to hold the state."""

    TAG: ClassVar[int] = 15
    join: int = wire(NUMBER)
    iteration: int = wire(ITERATION)


@dataclass(frozen=True, slots=True)
class LeaveRequest(Message):
    """Member to scheduler: plan without me. Repeated until a policy without it is in force."""

    TAG: ClassVar[int] = 18
    incarnation: int = wire(NUMBER)


@dataclass(frozen=True, slots=True)
class PassRole(Message):
    """Scheduler to its successor: stand for election in term `next_term`."""

    TAG: ClassVar[int] = 19
    next_term: int = wire(TERM)


@dataclass(frozen=True, slots=True)
class VoteRequest(Message):
    """Candidate to all members: vote for me in `next_term`.

    (`policy_term`, `version`): its newest stored policy. `asked`: the scheduler asked it to stand.
    """

    TAG: ClassVar[int] = 20
    next_term: int = wire(TERM)
    policy_term: int = wire(TERM)
    version: int = wire(VERSION)
    asked: bool = wire(Bool())


@dataclass(frozen=True, slots=True)
class Vote(Message):
    """Member to candidate. A member grants one vote in a term.

    (`policy_term`, `version`): its newest stored policy, which a candidate needs to get its vote.
    """

    TAG: ClassVar[int] = 21
    next_term: int = wire(TERM)
    granted: bool = wire(Bool())
    policy_term: int = wire(TERM, 0)
    version: int = wire(VERSION, 0)


@dataclass(frozen=True, slots=True)
class Lead(Message):
    """Flooded by the node that was elected scheduler of `new_term`; `why`: "rotated" or "failed
    over"."""

    TAG: ClassVar[int] = 22
    new_term: int = wire(TERM)
    why: str = wire(Text(limits.MAX_NAME_BYTES))


@dataclass(frozen=True, slots=True)
class LinkLost(Message):
    """Flooded: my link to `peer` has ended. `reset`: it ended in a way that proves that `peer`
    takes no more part (`LinkEnd.proves_departure`)."""

    TAG: ClassVar[int] = 23
    peer: bytes = wire(NODE)
    reset: bool = wire(Bool())


@dataclass(frozen=True, slots=True)
class ShareWish(Message):
    """Member to scheduler: give me no micro-batches (`away`), or a share again."""

    TAG: ClassVar[int] = 24
    away: bool = wire(Bool())


@dataclass(frozen=True, slots=True)
class PullBegins(Message):
    """Direct, source to joiner: I hold the state as it is at the start of `iteration`; ask for it.

    `policy_term`, `version`: the policy in force. `commit`: C(iteration - 1). `samples`: committed
    so far. `meta`: the state's scalars. `ancestors`: the lineages that came before this one.
    `constants`: as in `LinksOpen`.
    """

    TAG: ClassVar[int] = 25
    join: int = wire(NUMBER)
    iteration: int = wire(ITERATION)
    policy_term: int = wire(TERM)
    version: int = wire(VERSION)
    commit: bytes = wire(DIGEST)
    samples: int = wire(SAMPLES)
    meta: bytes = wire(Blob(limits.MAX_STATE_META_BYTES))
    ancestors: tuple[Ancestor, ...] = wire(Many(Nested(Ancestor), limits.MAX_ANCESTORS))
    constants: bytes = wire(CONSTANTS, b"")


@dataclass(frozen=True, slots=True)
class PulledFrom:
    """How many verified bytes of the state came from `source`, and how fast the link from there is
    in payload bytes/s, 0 if not known."""

    source: bytes = wire(NODE)
    pulled_bytes: int = wire(NUMBER)
    rate: int = wire(NUMBER)


@dataclass(frozen=True, slots=True)
class JoinProgress(Message):
    """Joiner to scheduler, about once a second while it pulls. `total_bytes`: how much of the
    state it has to pull, without what it had already. `pull_us`: for how many microseconds it has
    pulled so far."""

    TAG: ClassVar[int] = 26
    join: int = wire(NUMBER)
    total_bytes: int = wire(NUMBER)
    pull_us: int = wire(NUMBER)
    sources: tuple[PulledFrom, ...] = wire(Many(Nested(PulledFrom), limits.MAX_LINKS_PER_NODE))

    @property
    def pulled_bytes(self) -> int:
        """Verified bytes so far."""
        return sum(source.pulled_bytes for source in self.sources)


@dataclass(frozen=True, slots=True)
class Fence(Message):
    """Scheduler to all members: freeze the running attempt and report (protocol.md, 8.2)."""

    TAG: ClassVar[int] = 27
    fence_term: int = wire(TERM)
    number: int = wire(FENCE_NUMBER)


@dataclass(frozen=True, slots=True)
class FenceReport(Message):
    """Member to scheduler: what I have of which attempt (protocol.md, 8.3).

    `have`: bitmap of the reduced chunks of `iteration` made in, or carried into, `attempt`.
    `working`: bitmap of the micro-batches that are, or soon will be, in P. `attempt_id` names the
    running attempt, `before_id` that of the round before. `policy`: the one in force here.
    `newest`: version of the newest body stored here. `links`: the members to which a link is open.
    `stored`: electorates of policies that are stored here and newer than `policy`, each of which
    may be in force elsewhere. `learned`: stripes of which I have become a holder, although `policy`
    still names me as a learner.
    """

    TAG: ClassVar[int] = 28
    fence_term: int = wire(TERM)
    number: int = wire(FENCE_NUMBER)
    iteration: int = wire(ITERATION)
    attempt: int = wire(ATTEMPT)
    attempt_id: bytes = wire(DIGEST)
    before_id: bytes = wire(DIGEST)
    have: bytes = wire(Blob(limits.MAX_CHUNKS // 8))
    working: bytes = wire(Blob(limits.MAX_MICRO_BATCHES // 8))
    policy: Policy = wire(Nested(Policy))
    newest: int = wire(VERSION)
    links: tuple[bytes, ...] = wire(Many(NODE, limits.MAX_LINKS_PER_NODE))
    stored: tuple[Electorate, ...] = wire(Many(Nested(Electorate), limits.MAX_POLICIES_KEPT))
    learned: tuple[int, ...] = wire(Many(UInt(limits.MAX_STRIPES), limits.MAX_STRIPES), ())


@dataclass(frozen=True, slots=True)
class Restart:
    """The decision of a fence (protocol.md, 8.5): how the members that stay go on.

    `iteration` is i*, the smallest that was reported. If `applied`, its whole result exists:
    members that lack chunks of it get them (in attempt `finish`; the result is named by
    `attempt_id`), and the round of `iteration` + 1 is done again, with nothing kept. Otherwise the
    round of `iteration` is done again with the kept chunks. `redo` is the attempt of the round that
    is done again. `have[k]`: which chunks of i* member k of the view has. `work[k]`: its
    micro-batches in the round that is done again. Raises ValueError unless both cover every member.
    """

    policy: Policy = wire(Nested(Policy))
    iteration: int = wire(ITERATION)
    applied: bool = wire(Bool())
    finish: int = wire(ATTEMPT)
    redo: int = wire(ATTEMPT)
    attempt_id: bytes = wire(DIGEST)
    have: tuple[bytes, ...] = wire(Many(Blob(limits.MAX_CHUNKS // 8), limits.MAX_MEMBERS))
    work: tuple[bytes, ...] = wire(Many(Blob(limits.MAX_MICRO_BATCHES // 8), limits.MAX_MEMBERS))

    def __post_init__(self) -> None:
        members = len(self.policy.view.members)
        if len(self.have) != members or len(self.work) != members:
            raise ValueError("a restart must cover every member")


@dataclass(frozen=True, slots=True)
class Prepare(Message):
    """Scheduler to the members that stay: store this decision (protocol.md, 8.6)."""

    TAG: ClassVar[int] = 29
    fence_term: int = wire(TERM)
    number: int = wire(FENCE_NUMBER)
    restart: Restart = wire(Nested(Restart))


@dataclass(frozen=True, slots=True)
class Prepared(Message):
    """Member to scheduler: stored, and I have seen no newer fence."""

    TAG: ClassVar[int] = 30
    fence_term: int = wire(TERM)
    number: int = wire(FENCE_NUMBER)


@dataclass(frozen=True, slots=True)
class Commit(Message):
    """Scheduler to the members that stay, and once to those left out: act on this decision
    (protocol.md, 8.7)."""

    TAG: ClassVar[int] = 31
    fence_term: int = wire(TERM)
    number: int = wire(FENCE_NUMBER)
    restart: Restart = wire(Nested(Restart))


@dataclass(frozen=True, slots=True)
class Committed(Message):
    """Member to scheduler: I act on the decision."""

    TAG: ClassVar[int] = 32
    fence_term: int = wire(TERM)
    number: int = wire(FENCE_NUMBER)


@dataclass(frozen=True, slots=True)
class Dropped(Message):
    """Direct: I have heard nothing from you for too long, so I close our link."""

    TAG: ClassVar[int] = 33


@dataclass(frozen=True, slots=True)
class LinkWish(Message):
    """Member to scheduler: link me to `peer` (`wanted`), or keep us apart. Repeated until the
    policy in force shows it, or `Refused` comes."""

    TAG: ClassVar[int] = 34
    peer: bytes = wire(NODE)
    wanted: bool = wire(Bool())


@dataclass(frozen=True, slots=True)
class Expel(Message):
    """Member to scheduler: plan without `node`, and never let it in again. Repeated like
    `LinkWish`."""

    TAG: ClassVar[int] = 35
    node: bytes = wire(NODE)


@dataclass(frozen=True, slots=True)
class Refused(Message):
    """Scheduler to member: your wish about `node` is refused, for the `reason` in words. `expels`:
    it was the wish to expel `node`, otherwise one about a link."""

    TAG: ClassVar[int] = 36
    node: bytes = wire(NODE)
    expels: bool = wire(Bool())
    reason: str = wire(Text())


@dataclass(frozen=True, slots=True)
class NewToken(Message):
    """Direct, from member to member: from now on the cluster's token is `token`.

    It is used only under a policy at least as new as (`policy_term`, `version`), and forgotten if
    that does not expel all of `expelled`, because it must not reach them. `count`: one more than
    that of the token which its maker knew before.
    """

    TAG: ClassVar[int] = 37
    token: bytes = wire(Blob(limits.MAX_TOKEN_BYTES, 1))
    policy_term: int = wire(TERM)
    version: int = wire(VERSION)
    count: int = wire(NUMBER)
    expelled: tuple[bytes, ...] = wire(Many(NODE, limits.MAX_EXPELLED))


@dataclass(frozen=True, slots=True)
class Outside(Message):
    """Joiner to scheduler, in answer to `Fence`: I am no member, and have given my join up."""

    TAG: ClassVar[int] = 38
    fence_term: int = wire(TERM)
    number: int = wire(FENCE_NUMBER)


@dataclass(frozen=True, slots=True)
class LinkRate:
    """How a link brings what `peer` sends: one-way delay in microseconds and payload bytes/s, both
    0 if not known. `alone`: 1 if the rate was measured while no other link was busy."""

    peer: bytes = wire(NODE)
    delay_us: int = wire(COUNT32)
    rate: int = wire(NUMBER)
    alone: int = wire(UInt(1), default=0)


@dataclass(frozen=True, slots=True)
class Measured(Message):
    """Flooded by a member: what it has measured of its links and of itself. Times are in
    microseconds, 0 if not known. `compute_us`, `sync_us`: of its last iteration. `keeping_up`: a
    number of `KeepingUp`, for its trainer. `owed_us`: for how long its trainer has not answered, 0
    if that is not unusual. `up`, `down`: what it can send and receive over all its links together,
    in bytes/s, 0 if no limit is known."""

    TAG: ClassVar[int] = 39
    links: tuple[LinkRate, ...] = wire(Many(Nested(LinkRate), limits.MAX_LINKS_PER_NODE))
    micro_batch_us: int = wire(NUMBER)
    compute_us: int = wire(NUMBER)
    sync_us: int = wire(NUMBER)
    keeping_up: int = wire(UInt(max(KeepingUp)), default=0)
    owed_us: int = wire(NUMBER, default=0)
    up: int = wire(NUMBER, default=0)
    down: int = wire(NUMBER, default=0)


@dataclass(frozen=True, slots=True)
class Accused(Message):
    """Flooded by a member that has cut its link to `peer`, because `peer` broke the protocol."""

    TAG: ClassVar[int] = 40
    peer: bytes = wire(NODE)
    reason: str = wire(Text())


@dataclass(frozen=True, slots=True)
class StatePieces(Message):
    """Direct, to a neighbour whose state at the start of `iteration` was found to differ: the
    digests of this member's state. `pieces`: see `events.PiecesTaken`; `meta`: the state's
    scalars."""

    TAG: ClassVar[int] = 41
    iteration: int = wire(ITERATION)
    pieces: bytes = wire(Blob(limits.MAX_PIECES * PIECE_BYTES))
    meta: bytes = wire(Blob(limits.MAX_STATE_META_BYTES))


MESSAGES: tuple[type[Message], ...] = (
    Ping,
    Pong,
    Welcome,
    JoinRequest,
    Introduce,
    Introduced,
    OpenLinks,
    LinksOpen,
    PolicyBody,
    PolicyStored,
    PolicyFetch,
    ManifestRequest,
    Manifest,
    ShardRequest,
    Pulled,
    CaughtUp,
    JoinAborted,
    LeaveRequest,
    PassRole,
    VoteRequest,
    Vote,
    Lead,
    LinkLost,
    ShareWish,
    PullBegins,
    JoinProgress,
    Fence,
    FenceReport,
    Prepare,
    Prepared,
    Commit,
    Committed,
    Dropped,
    LinkWish,
    Expel,
    Refused,
    NewToken,
    Outside,
    Measured,
    Accused,
    StatePieces,
    UpdateRecord,
    UpdateRequest,
    CopyEnded,
    NoSnapshot,
    ShardsHere,
    StaysOutside,
    StripesWanted,
    StripesLearned,
    PolicyComing,
)
# Messages that cross one link only: nobody passes them on.
DIRECT_MESSAGES = (
    Ping,
    Pong,
    Welcome,
    PullBegins,
    NewToken,
    Dropped,
    StatePieces,
    UpdateRecord,
    UpdateRequest,
    CopyEnded,
    StripesWanted,
)
# Messages that their origin repeats from time to time. Behind a link of the view that has broken
# they are missing until a fence has taken it out of the view.
REPEATED_MESSAGES = (Measured,)
# Messages that may lead from one lineage into another.
FENCE_MESSAGES = (Fence, FenceReport, Outside, Prepare, Prepared, Commit, Committed)
# Messages that are not believed of a member that two others have accused.
ORDERS = (Fence, Prepare, Commit, Lead, PassRole, VoteRequest, PolicyBody, PolicyComing)
BY_TAG: dict[int, type[Message]] = {kind.TAG: kind for kind in MESSAGES}

Letter = tuple[bytes, Message]  # (destination, message)
