"""A joiner's way in: attach to a sponsor, ask the scheduler, link up, pull, follow, enter.

Every request is repeated until it is answered, each time to whoever is the scheduler by then, so a
change of scheduler loses nothing. Until a reduced control word names a policy with this node, no
round needs it, so its loss costs the members no step.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, assert_never

from protocols import limits
from protocols.effects import CloseLink, Dial, HashOwnShards, JoinFailed
from protocols.errors import RemoteProtocolError
from protocols.member.cycle import CycleState
from protocols.member.orders import check_welcome
from protocols.member.pull import (
    AskManifest,
    AskShards,
    Pull,
    PullDone,
    PullEffect,
    PullFailed,
    Spared,
)
from protocols.scheduler.planning import Offer
from protocols.table import Row, StateTable
from protocols.wire.messages import (
    EVERYONE,
    CaughtUp,
    JoinProgress,
    JoinRequest,
    LinksOpen,
    Manifest,
    ManifestRequest,
    OpenLinks,
    PullBegins,
    Pulled,
    PulledFrom,
    ShardRequest,
    Welcome,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocols.cluster.view import Member
    from protocols.events import Incoming, ShardArrived
    from protocols.member.context import Context
    from protocols.member.cycle import Cycle

# Each shard costs a digest and a frame header, so a shard is no smaller than this if it can be.
SMALLEST_SHARD_BYTES = 16 << 10
# No shard is larger than this if no rate of a source is known.
USUAL_SHARD_BYTES = 128 << 10
# No shard is larger than this if rates are known, so that little is lost with a source.
LARGEST_SHARD_BYTES = 512 << 10
# Each source gets about this many shards, so that they can be divided anew as rates change.
SHARDS_PER_SOURCE = 32
# The slowest source needs no longer than this for one shard, so that all can end together.
SHARD_SECONDS = 0.05
# But shards are so large that no more than this arrive per second, as each takes processor time.
SHARDS_PER_SECOND = 2000.0
# A shard's size is a multiple of this.
ALIGNMENT_BYTES = 64


class JoiningState(StrEnum):
    """Where the joiner stands."""

    # ATTACHING: waits for the sponsor's `Welcome`. REQUESTED: has asked the scheduler. LINKING:
    # opens the links it was told to. WAITING: for the policy that names its pull. FOLLOWING: has
    # the state, and waits for its first update. CAUGHT_UP: waits for a policy with it in the view.
    ATTACHING = "attaching"
    REQUESTED = "requested"
    LINKING = "linking"
    WAITING = "waiting"
    PULLING = "pulling"
    FOLLOWING = "following"
    CAUGHT_UP = "caught-up"
    ENTERED = "entered"
    FAILED = "failed"


_ON_THE_WAY = tuple(s for s in JoiningState if s not in (JoiningState.ENTERED, JoiningState.FAILED))
JOINING_TABLE: StateTable[JoiningState] = StateTable(
    "join (joiner)",
    Row(JoiningState.ATTACHING, "welcome", (JoiningState.REQUESTED,)),
    Row(JoiningState.REQUESTED, "open links", (JoiningState.LINKING,)),
    Row(JoiningState.LINKING, "links settled", (JoiningState.WAITING,)),
    Row(JoiningState.WAITING, "pull begins", (JoiningState.PULLING,)),
    Row(JoiningState.PULLING, "pulled", (JoiningState.FOLLOWING,)),
    Row(JoiningState.FOLLOWING, "applied", (JoiningState.CAUGHT_UP,)),
    Row(JoiningState.CAUGHT_UP, "named", (JoiningState.ENTERED,)),
    *(Row(state, "failed", (JoiningState.FAILED,)) for state in _ON_THE_WAY),
)


def shard_size(state_bytes: int, rates: Sequence[float | None]) -> int:
    """Return the size of a shard in bytes, a multiple of `ALIGNMENT_BYTES`.

    It gives each source about `SHARDS_PER_SOURCE` shards of a state of `state_bytes`, but is small
    enough for the slowest source (`SHARD_SECONDS`) and within the limits above. `rates` are those
    of the sources in bytes/s, None where a rate is not known.
    """
    wanted = state_bytes // (SHARDS_PER_SOURCE * max(1, len(rates)))
    least = max(SMALLEST_SHARD_BYTES, -(-state_bytes // limits.MAX_SHARDS))
    most = float(USUAL_SHARD_BYTES)
    if known := [rate for rate in rates if rate]:
        most = max(min(known) * SHARD_SECONDS, sum(known) / SHARDS_PER_SECOND)
    size = max(min(wanted, int(min(most, LARGEST_SHARD_BYTES))), least)
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def shard_count(state_bytes: int, shard_bytes: int) -> int:
    """Return how many shards a state has."""
    return -(-state_bytes // shard_bytes)


class Joining:
    """The joiner's side of one join."""

    def __init__(self, context: Context, cycle: Cycle, sponsor: Member) -> None:
        self.state = JOINING_TABLE.initial
        self.number = 0
        self.pull: Pull | None = None
        self.shard_bytes = 0
        self.sources: tuple[bytes, ...] = ()
        self._context = context
        self._cycle = cycle
        self._sponsor = sponsor
        self._wanted: dict[bytes, bool | None] = {}  # neighbour -> link open; None: not known yet
        self._rates: dict[bytes, float] = {}  # source -> bytes/s at which its shards came last
        self._owed: dict[bytes, tuple[int, float]] = {}  # source -> (received, unchanged since)
        self._received: dict[bytes, int] = {}  # neighbour -> payload bytes it has sent us so far
        self._hosts: dict[bytes, None] = {sponsor.node: None}  # members of the cluster we join
        self._attach_by: float | None = None  # when the sponsor must have sent its `Welcome`
        self._answer_by = 0.0  # when a scheduler must have said which links to open
        self._early: dict[bytes, PullBegins] = {}  # source -> its message, before the pull began
        self._repeat_at = 0.0
        self._pull_began = 0.0
        self._pulled_at = 0  # the iteration with which the pull began
        self._fetching_since: float | None = None  # since when a policy's body is missing
        self._measure_by: float | None = None  # when to wait for the rates of the links no longer
        context.do(Dial(sponsor))

    @property
    def on_the_way(self) -> bool:
        """Whether this node is still trying to get in."""
        return self.state in _ON_THE_WAY

    @property
    def has_pulled(self) -> bool:
        """Whether the whole training state is here, and this node is no member yet."""
        return self.state in (JoiningState.FOLLOWING, JoiningState.CAUGHT_UP)

    @property
    def may_enter(self) -> bool:
        """Whether the round that is complete here may have named a policy with this node, so that
        it may be a member as soon as the update is applied."""
        return self.state is JoiningState.CAUGHT_UP and self._cycle.round_is_here

    @property
    def _is_alone(self) -> bool:
        """Whether no link to a member is left."""
        return not any(n in self._context.links for n in self._hosts)

    @property
    def deadline(self) -> float | None:
        """When `tick` has something to do although nothing has happened."""
        if not self.on_the_way:
            return None
        waits = self.state is JoiningState.LINKING and self._measure_by is not None
        return min(self._repeat_at, self._measure_by or 0.0) if waits else self._repeat_at

    def expects(self, source: bytes, shard: int) -> bool:
        """Whether `source` may send `shard` now."""
        return self.pull is not None and self.pull.expects(source, shard)

    def welcome(self, now: float, sender: bytes, message: Welcome) -> None:
        """Act on a member's `Welcome`. A second one of another lineage ends this join, because the
        cluster has forked meanwhile."""
        context = self._context
        attaching = self.state is JoiningState.ATTACHING
        if not attaching and message.policy.view.lineage != context.lineage:
            self.fail("the cluster that was to be joined has parted")
            return
        check_welcome(context, message.policy, is_first=attaching)
        self._hosts[sender] = None
        if message.policy.term >= context.election.term:
            context.election.follow(message.policy.term, message.scheduler)
        context.store(message.policy)
        if attaching:
            context.lineage = message.policy.view.lineage
            context.steps = message.steps
            self.state = JOINING_TABLE.step(self.state, "welcome", JoiningState.REQUESTED)
            self._answer_by = now + limits.JOIN_ANSWER_SECONDS
            self.repeat(now)

    def open_links(self, now: float, message: OpenLinks) -> None:
        """Dial the neighbours that the scheduler has chosen for this node."""
        if not JOINING_TABLE.allows(self.state, "open links"):
            return
        self.number = message.join
        self.state = JOINING_TABLE.step(self.state, "open links", JoiningState.LINKING)
        for member in message.neighbours:
            linked = member.node in self._context.links
            self._wanted[member.node] = True if linked else None
            if not linked:
                self._context.do(Dial(member))
        self._settle_links(now)

    def link_settled(self, now: float, node: bytes, *, is_open: bool) -> None:
        """Note whether the link to `node`, which was dialled, could be opened."""
        if self._wanted.get(node, False) is None:
            self._wanted[node] = is_open
            self._settle_links(now)
        elif node == self._sponsor.node and not is_open:
            self.fail(f"no link to {self._sponsor.name} could be opened")

    def link_down(self, node: bytes) -> None:
        """Act on the end of a link: without its parent, or without any link, the join fails, unless
        this node may be a member already."""
        policy = self._context.policy
        pull = policy.pull_of(self._context.node) if policy else None
        parent = pull is not None and pull.parent == node
        if (self._is_alone or parent) and not self.may_enter:
            self.fail(f"the link to {self._context.name(node)} broke")
        elif self.pull is not None:
            self._follow(self.pull.lost(node))

    def pull_begins(self, now: float, source: bytes, message: PullBegins) -> None:
        """Act on the message of `source` that it holds the state for this join."""
        if message.join != self.number or source not in self._context.links:
            return
        # All sources must hold the same state, or the shards would not fit together.
        known = next(iter(self._early.values()), message)
        if (known.iteration, known.commit) != (message.iteration, message.commit):
            self.fail("its sources hold different states")
            return
        if JOINING_TABLE.allows(self.state, "pull begins"):
            self._early[source] = message
            self._begin_pull(now)
        elif self.pull is not None:
            self._follow(self.pull.began(source))

    def stored(self, now: float) -> None:
        """Begin the pull, if it has waited for the body of a policy that has come in."""
        if self._early and JOINING_TABLE.allows(self.state, "pull begins"):
            self._begin_pull(now)

    def manifest(self, source: bytes, message: Manifest) -> None:
        """Take the digests of all shards from `source`."""
        if self.pull is not None and message.join == self.number:
            self._follow(self.pull.manifest(source, message.leaves))

    def shard(self, event: ShardArrived) -> None:
        """Take a shard that has arrived. Raises `RemoteProtocolError` if it was not asked for."""
        if self.pull is None or not self.pull.expects(event.source, event.shard):
            raise RemoteProtocolError("a shard that was not asked for")
        if event.rate is not None:
            self._rates[event.source] = event.rate
        self._follow(self.pull.shard(event.source, event.shard, event.digest))

    def own_shards(self, digests: tuple[bytes, ...]) -> None:
        """Take the digests of those shards of this device's own state that may be right already."""
        if self.pull is not None:
            self._follow(self.pull.own_shards(digests))

    def applied(self, now: float) -> None:
        """Ask to be let in, once the first update on the pulled state is applied."""
        if JOINING_TABLE.allows(self.state, "applied"):
            self.state = JOINING_TABLE.step(self.state, "applied", JoiningState.CAUGHT_UP)
            self.repeat(now)

    def entered(self) -> None:
        """End the join, because the policy in force has this node in its view."""
        self.state = JOINING_TABLE.step(self.state, "named", JoiningState.ENTERED)

    def fail(self, reason: str, pause_s: float = 0.0) -> None:
        """Give this join up, and ask for no other before `pause_s`."""
        if self.on_the_way:
            self.state = JOINING_TABLE.step(self.state, "failed", JoiningState.FAILED)
            self._context.do(JoinFailed(reason, pause_s))

    def tick(self, now: float) -> None:
        """Repeat requests that were not answered, and end waits that took too long."""
        if self.state is JoiningState.LINKING:
            self._settle_links(now)
        if self.state is JoiningState.ATTACHING:
            if self._attach_by is None:
                self._attach_by = now + limits.LINK_OPEN_SECONDS
            elif now >= self._attach_by:
                self.fail(f"{self._sponsor.name} does not say how things stand")
        if self.state is JoiningState.REQUESTED and now >= self._answer_by:
            self.fail(f"no scheduler has answered for {limits.JOIN_ANSWER_SECONDS:.0f} s")
        if self.state is JoiningState.CAUGHT_UP and self._is_alone and not self.may_enter:
            self.fail("the round that was here did not name this device, and every link broke")
        self._look_at_fetching(now)
        if self.on_the_way and now >= self._repeat_at:
            self._give_up_stalled(now)
            self.repeat(now)

    def _look_at_fetching(self, now: float) -> None:
        """Give up if a policy's body has been missing for too long. Members keep only their last
        policies, so a joiner whose trainer hung in its first update, while the members went on, may
        need one that nobody has any more."""
        if self._cycle.state is not CycleState.FETCHING:
            self._fetching_since = None
            return
        self._fetching_since = now if self._fetching_since is None else self._fetching_since
        if now - self._fetching_since >= limits.FETCH_PATIENCE_SECONDS:
            self.fail("the others are too far ahead to be followed")

    def _give_up_stalled(self, now: float) -> None:
        """Replace a source that owes an answer and has sent nothing at all, shards or chunks, for
        `PULL_STALL_SECONDS`: the other sources are asked for what it owes."""
        if self.pull is None or self.state is not JoiningState.PULLING:
            return
        before, self._owed = self._owed, {}
        for source, answers in self.pull.awaited.items():
            count = answers + self._received.get(source, 0)  # both only grow
            known = before.get(source)
            since = known[1] if known is not None and known[0] == count else now
            self._owed[source] = (count, since)
            if now - since >= limits.PULL_STALL_SECONDS:
                self._context.do(CloseLink(source))
                self._follow(self.pull.lost(source))

    def repeat(self, now: float) -> None:
        """Send what this node waits for to the present scheduler, which may be a new one."""
        context, to = self._context, self._context.election.scheduler
        self._repeat_at = now + limits.RETRY_SECONDS
        if self.state is JoiningState.REQUESTED:
            config = context.config
            context.send(to, JoinRequest(config.me, config.wanted_neighbours))
        elif self.state is JoiningState.WAITING:
            rates = tuple(self._rate_of(node) for node in self._open_links)
            own = context.config.constants
            context.send(to, LinksOpen(self.number, self._open_links, rates, own))
        elif self.state is JoiningState.PULLING:
            context.send(to, self.progress(now))
        elif self.has_pulled:
            # Members hold the state until they hear this, and it may have been lost with a link.
            context.send(EVERYONE, Pulled(self.number, self._pulled_at))
            if self.state is JoiningState.CAUGHT_UP:
                context.send(to, CaughtUp(self.number))

    def progress(self, now: float) -> JoinProgress:
        """Return how far the pull is: the scheduler keeps the join alive by it, and shows it."""
        total = self._context.config.state_bytes
        pulled = dict.fromkeys(self.sources, 0)
        for shard, source in self.pull.verified.items() if self.pull else ():
            size = min(self.shard_bytes, total - shard * self.shard_bytes)
            pulled[source] = pulled.get(source, 0) + size
        sources = tuple(
            PulledFrom(source, size, min(int(self._rates.get(source, 0.0)), limits.MAX_INTEGER))
            for source, size in pulled.items()
        )
        micro = min(int((now - self._pull_began) * 1e6), limits.MAX_INTEGER)
        return JoinProgress(self.number, total - self._spared_bytes, micro, sources)

    @property
    def _spared_bytes(self) -> int:
        """How many bytes need not be copied, as far as is known, because they are here."""
        return self.pull.spared * self.shard_bytes if self.pull is not None else 0

    @property
    def _open_links(self) -> tuple[bytes, ...]:
        return tuple(n for n, is_open in self._wanted.items() if is_open)

    def _rate_of(self, node: bytes) -> int:
        known = self._context.incoming(node)
        return min(int(known.rate), limits.MAX_INTEGER) if known is not None else 0

    def measured(self, now: float, links: tuple[Incoming, ...]) -> None:
        """Take new measurements; the join may have waited for the rates of its links."""
        self._received = {link.node: link.received_bytes for link in links}
        self._settle_links(now)

    def _settle_links(self, now: float) -> None:
        """Tell the scheduler which links are open, once each is open or has failed. It waits for up
        to `PROBE_WAIT_SECONDS` for their rates, so that the pull is divided well from the start."""
        if any(state is None for state in self._wanted.values()):
            return
        if self.state is not JoiningState.LINKING:
            return
        if not self._open_links:
            self.fail("no link to any chosen neighbour could be opened")
            return
        if self._measure_by is None:
            self._measure_by = now + limits.PROBE_WAIT_SECONDS
        measured = all(self._context.incoming(n) is not None for n in self._open_links)
        if not measured and now < self._measure_by:
            return
        self.state = JOINING_TABLE.step(self.state, "links settled", JoiningState.WAITING)
        self.repeat(now)

    def _begin_pull(self, now: float) -> None:
        """Start to pull the state and to follow the rounds, once the policy that names the pull is
        stored here; otherwise ask for that policy."""
        if self._cycle.over:
            return  # the user wanted this device to leave before its pull began
        context = self._context
        first = next(iter(self._early.values()))
        key = (first.policy_term, first.version)
        policy = context.policies.get(key)
        if policy is None:
            context.fetch(key)
            return
        plan = policy.pull_of(context.node)
        if plan is None or plan.join != self.number:
            raise RemoteProtocolError("a pull began that the policy does not name")
        self.state = JOINING_TABLE.step(self.state, "pull begins", JoiningState.PULLING)
        context.policy = policy
        context.iteration = first.iteration
        context.commit, context.samples, context.meta = first.commit, first.samples, first.meta
        context.ancestors, context.constants = first.ancestors, first.constants
        size = context.config.state_bytes
        rates = [self._offer(source, 0).rate for source in plan.sources]
        self.shard_bytes = shard_size(size, rates)
        self.sources = plan.sources
        shards = shard_count(size, self.shard_bytes)
        assign = context.planner.assign
        # The rest always comes from the others, so that whoever copies knows that the state is new.
        own = max(0, min(context.config.constant_bytes // self.shard_bytes, shards - 1))
        self.pull = Pull(shards, self.shard_bytes, plan.sources, self._offer, assign, own)
        if own:
            context.do(HashOwnShards(self.number, self.shard_bytes, own))
        context.report("pull_begins", total_bytes=size)
        self._cycle.start(state_ready=False)
        self._repeat_at = now + limits.RETRY_SECONDS
        self._pull_began = now
        for source in self._early:
            self._follow(self.pull.began(source))
        for lost in plan.sources:
            if lost not in context.links:
                self._follow(self.pull.lost(lost))

    def _offer(self, source: bytes, busy_bytes: int) -> Offer:
        """Return what is known of a source that still has `busy_bytes` to send: its rate while it
        sent shards, or else that of its link."""
        known = self._context.incoming(source)
        rate = self._rates.get(source, known.rate if known is not None else None)
        delay = known.delay_s if known is not None else 0.0
        return Offer(source, self._context.name(source), rate, delay, busy_bytes)

    def _follow(self, effects: list[PullEffect]) -> None:
        if self.state is not JoiningState.PULLING:
            return  # the join has been given up, or the pull is done
        context = self._context
        for effect in effects:
            match effect:
                case AskManifest(source):
                    context.send(source, ManifestRequest(self.number, self.shard_bytes))
                case AskShards(source, shards):
                    context.send(source, ShardRequest(self.number, self.shard_bytes, shards))
                case Spared():
                    context.report("pull_spares", spared_bytes=self._spared_bytes)
                case PullDone():
                    self._pulled()
                case PullFailed(reason):
                    self.fail(reason)
                case _:
                    assert_never(effect)

    def _pulled(self) -> None:
        context = self._context
        self.state = JOINING_TABLE.step(self.state, "pulled", JoiningState.FOLLOWING)
        self._pulled_at = context.iteration
        context.send(EVERYONE, Pulled(self.number, self._pulled_at))
        self._cycle.adopted()


class Entry:
    """This node's join, None for a founder; the parts of a node share it."""

    def __init__(self) -> None:
        self.joining: Joining | None = None

    @property
    def under_way(self) -> Joining | None:
        """The join, as long as this node is still trying to get in."""
        joining = self.joining
        return joining if joining is not None and joining.on_the_way else None
