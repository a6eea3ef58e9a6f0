"""A joiner's way in: attach to a sponsor, ask the scheduler, link up, pull, follow, enter.

Every request is repeated until it is answered, each time to whoever is the scheduler by then, so a
change of scheduler loses nothing. Until a reduced control word names a policy with this node, no
round needs it, so its loss costs the members no step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from protocols import limits
from protocols.effects import CloseLink, Dial, DropUpdates, HashOwnShards, JoinFailed, StandsBy
from protocols.errors import RemoteProtocolError
from protocols.member.copies import update_part_bytes
from protocols.member.copying import Copying
from protocols.member.fellows import Fellows
from protocols.member.joining_table import (
    COPYING,
    JOINING_TABLE,
    MAY_STAY_OUTSIDE,
    ON_THE_WAY,
    JoiningState,
)
from protocols.member.opening_links import OpeningLinks
from protocols.member.orders import check_welcome
from protocols.member.patience import Patience
from protocols.member.pull import (
    MANIFESTS,
    WINDOW_SECONDS,
    AskManifest,
    AskShards,
    Pull,
    PullDone,
    PullEffect,
    PullFailed,
    Spared,
    WasWrong,
)
from protocols.member.shard_sizes import common_shard_size, shard_count, shard_size
from protocols.member.source_rates import SourceRates
from protocols.member.stalled import Stalled
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
    ShardRequest,
    UpdateRecord,
    Welcome,
)

if TYPE_CHECKING:
    from protocols.cluster.policy import Policy
    from protocols.cluster.policy import Pull as PullPlan
    from protocols.cluster.view import Member
    from protocols.events import Applied, Incoming, ShardArrived, UpdateArrived
    from protocols.member.context import Context
    from protocols.member.cycle import Cycle
    from protocols.wire.messages import ShardsHere


_ALONE = (JoiningState.COPYING, JoiningState.COPIED)  # no round needs this node


class Joining:
    """The joiner's side of one join."""

    def __init__(self, context: Context, cycle: Cycle, sponsor: Member) -> None:
        self.state = JOINING_TABLE.initial
        self.number = 0
        self.pull: Pull | None = None
        self.copy: Copying | None = None  # the updates since the snapshot, if it copies beside
        self.fellows = Fellows(context)  # joiners that copy the same state
        self.shard_bytes = 0
        self.sources: tuple[bytes, ...] = ()
        self.outside = ""  # why it only follows, as the scheduler has said, "" if it is to enter
        self._has_followed = False  # whether that was so at some time
        self._fails_later: JoinFailed | None = None  # how it ends once its trainer is idle
        self._context = context
        self._cycle = cycle
        self._sponsor = sponsor
        self._opening = OpeningLinks(context)
        self._rates = SourceRates(context, self._owes)
        self._stalled = Stalled()
        self._hosts: dict[bytes, None] = {sponsor.node: None}  # members of the cluster we join
        self._attach_by: float | None = None  # when the sponsor must have sent its `Welcome`
        self._answer_by = 0.0  # when a scheduler must have said which links to open
        self._early: dict[bytes, PullBegins] = {}  # source -> its message, before the pull began
        self._held: PullBegins | None = None  # what the first source said, once the pull began
        self._repeat_at = 0.0
        self._pull_began = 0.0
        self._state_at = -1  # the iteration at whose start the state is that is copied
        self._pulled_at = 0  # the iteration whose state is here, once it has been pulled
        self._patience = Patience(context)
        self._look_at = 0.0  # when to look again whether a source has become slow
        context.do(Dial(sponsor))

    @property
    def on_the_way(self) -> bool:
        """Whether this node is still trying to get in."""
        return self.state in ON_THE_WAY

    @property
    def has_pulled(self) -> bool:
        """Whether the whole training state is here, and this node is no member yet."""
        return self.state in (JoiningState.FOLLOWING, JoiningState.CAUGHT_UP)

    @property
    def stands_by(self) -> bool:
        """Whether this node follows from outside, or has done so in this join, which may have
        failed: it has a whole state, from which it may go on if all others are lost."""
        return self._has_followed and self.copy is not None and self.copy.has_state

    @property
    def is_refuted(self) -> bool:
        """Whether the state here was found to have another history than that of the others."""
        return self.copy is not None and self.copy.is_refuted

    @property
    def keeps_constants(self) -> bool:
        """Whether the constant part of the state that was here before is still as it was."""
        return self.pull is None or self.pull.keeps_own

    @property
    def copied_updates(self) -> int:
        """How many updates it has received beside the training and applied to its snapshot."""
        return self.copy.next - self.copy.begins.iteration if self.copy is not None else 0

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
        times = [self._repeat_at, self.fellows.deadline]
        if self.state is JoiningState.LINKING:
            times.append(self._opening.deadline)
        if self.pull is not None and self.pull.waits:
            times.append(self._look_at)
        return min(time for time in times if time is not None)

    def expects(self, source: bytes, shard: int, iteration: int) -> bool:
        """Whether `source` may send `shard` of the state at the start of `iteration` now."""
        here = self.pull is not None and iteration == self._state_at
        return here and self.pull is not None and self.pull.expects(source, shard)

    def expects_update(self, source: bytes, iteration: int, part: int) -> bool:
        """Whether `source` may send a part of the update of `iteration` now."""
        return self.copy is not None and self.copy.expects(source, iteration, part)

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
        self._opening.dial(message.neighbours)
        self._settle_links(now)

    def link_settled(self, now: float, node: bytes, *, is_open: bool) -> None:
        """Note whether the link to `node`, which was dialled, could be opened."""
        if is_open:
            self.fellows.linked(node)
        if self._opening.settled(node, is_open=is_open):
            self._settle_links(now)
        elif node == self._sponsor.node and not is_open:
            self.fail(f"no link to {self._sponsor.name} could be opened")

    def link_down(self, node: bytes, *, is_clean: bool) -> None:
        """Act on the end of a link. Without any link, or if one breaks that feeds this node, the
        join fails, unless this node may be a member already. Of a link that was closed on purpose
        everything has come, and it may be needed no more (`patience.py`)."""
        pull = self._context.pull_of(self._context.node)
        feeds = pull is not None and pull.is_fed_by(node) and not is_clean
        if (self._is_alone or feeds) and not self.may_enter:
            self.fail(f"the link to {self._context.name(node)} broke")
        else:
            self.source_lost(node)

    def source_lost(self, source: bytes) -> None:
        """Ask the other sources for what `source` owed, since it sends nothing any more."""
        if self.pull is not None:
            self._follow(self.pull.lost(source))
        if source in self.fellows:
            self.fellows.gone(source)
        elif self.copy is not None and self.on_the_way:
            self.copy.lost(source)

    def fellow_has(self, now: float, fellow: bytes, message: ShardsHere) -> None:
        """Take what another joiner says of its copy. Raises `RemoteProtocolError` if it has shards
        that do not exist."""
        has = self.fellows.here(now, fellow, message)
        if has and self.pull is not None:
            self._follow(self.pull.has(fellow, has))

    def pull_begins(self, now: float, source: bytes, message: PullBegins) -> None:
        """Act on the message of `source` that it holds the state for this join."""
        if message.join != self.number or source not in self._context.links:
            return
        if self.copy is not None and message.iteration == self.copy.begins.iteration:
            self._copy_begins_at(self.copy, source, message)
            return
        # All sources must hold the same state, or the shards would not fit together.
        known = next(iter(self._early.values()), self._held or message)
        if (known.iteration, known.commit) != (message.iteration, message.commit):
            self.fail("its sources hold different states")
            return
        if JOINING_TABLE.allows(self.state, "pull begins"):
            self._early[source] = message
            self._begin(now)
        elif self.pull is not None and self.copy is None:
            self._follow(self.pull.began(source))

    def _copy_begins_at(self, copy: Copying, source: bytes, message: PullBegins) -> None:
        """Copy from `source`, too, which keeps the same snapshot as the first source."""
        if message.commit != copy.begins.commit:
            self.fail("its sources hold different states")
            return
        copy.began(source)
        if self.state is JoiningState.COPYING and self.pull and source in self.sources:
            self._follow(self.pull.began(source))

    def stored(self, now: float) -> None:
        """Begin the pull, if it has waited for the body of a policy that has come in."""
        if self._early and JOINING_TABLE.allows(self.state, "pull begins"):
            self._begin(now)

    def manifest(self, source: bytes, message: Manifest) -> None:
        """Take the digests of all shards from `source`."""
        if self.pull is not None and message.join == self.number:
            self._follow(self.pull.manifest(source, message.leaves))

    def shard(self, event: ShardArrived) -> None:
        """Take a shard that has arrived. Raises `RemoteProtocolError` if it was not asked for."""
        if self.pull is None or not self.pull.expects(event.source, event.shard):
            raise RemoteProtocolError("a shard that was not asked for")
        self._rates.arrived(event.source, event.rate, self.shard_bytes)
        self._follow(self.pull.shard(event.source, event.shard, event.digest))
        self.fellows.tick(self._context.now)

    def update_record(self, source: bytes, message: UpdateRecord) -> None:
        """Take what `source` says of an update since the snapshot."""
        if self.copy is not None and message.join == self.number and self.on_the_way:
            self.copy.record(source, message)
            self._copied_on(self.copy)

    def update_arrived(self, event: UpdateArrived) -> None:
        """Take a part of an update. Raises `RemoteProtocolError` if it was not asked for."""
        if self.copy is None:
            raise RemoteProtocolError("a part of an update that was not asked for")
        part_bytes = update_part_bytes(self._context.config.update_bytes)
        self._rates.arrived(event.source, event.rate, part_bytes)
        self.copy.arrived(event)
        self._copied_on(self.copy)

    def update_applied(self, event: Applied) -> bool:
        """Take the trainer's answer to an update; return whether it is one since the snapshot, so
        that it belongs to no round that this node follows."""
        if self.copy is None or not self.copy.applied(event):
            return False
        self._copied_on(self.copy)
        if (later := self._fails_later) is not None and not self.copy.drains:
            self.fail(later.reason, later.pause_s, stands_by=later.stands_by)
        return True

    def _copied_on(self, copy: Copying) -> None:
        """Ask for the last part of the join once only few updates are missing, and end the copy
        once none is."""
        context = self._context
        if copy.has_state and copy.next >= context.steps and self.state is not JoiningState.PULLING:
            self._cycle.leave("steps", "")  # the others have ended with the state that is here
            return
        if self.state is JoiningState.COPYING and copy.is_close:
            self.state = JOINING_TABLE.step(self.state, "close", JoiningState.COPIED)
            self.repeat(context.now)
        elif self.state is JoiningState.PULLING and copy.is_done:
            if copy.commit != context.commit:
                self.fail("what was copied has another history than the others' state")
            else:
                self._pulled()

    def _owes(self, source: bytes) -> int:
        """How many pieces of the state and of updates `source` was asked for that have not come."""
        return sum(part.owes(source) for part in (self.pull, self.copy) if part is not None)

    def own_shards(self, digests: tuple[bytes, ...]) -> None:
        """Take the digests of those shards of this device's own state that may be right already."""
        if self.pull is not None:
            self._follow(self.pull.own_shards(digests))

    def applied(self, now: float) -> None:
        """Ask to be let in, once the first update on the pulled state is applied."""
        if JOINING_TABLE.allows(self.state, "applied"):
            self.state = JOINING_TABLE.step(self.state, "applied", JoiningState.CAUGHT_UP)
            self.repeat(now)
        elif (
            self.state is JoiningState.CAUGHT_UP and self._context.iteration == self._pulled_at + 1
        ):
            self.repeat(now)  # what `_pulled` has said may have come before the policy was in force

    def entered(self) -> None:
        """End the join, because the policy in force has this node in its view."""
        self.state = JOINING_TABLE.step(self.state, "named", JoiningState.ENTERED)

    def stay_outside(self, reason: str) -> None:
        """Go on to copy each update, but do not enter, for `reason`."""
        if self.state in MAY_STAY_OUTSIDE and reason != self.outside:
            self.outside, self._has_followed = reason, True
            self._context.do(StandsBy(reason))

    def fail(self, reason: str, pause_s: float = 0.0, *, stands_by: bool = False) -> None:
        """Give this join up, and ask for no other before `pause_s`; `stands_by`: because the others
        are faster without this device."""
        if self.state in _ALONE and self.stands_by and self.copy is not None and self.copy.drains:
            # First its trainer applies what is here. If that is the last update, it has ended.
            self._fails_later = JoinFailed(reason, pause_s, stands_by)
        elif self.on_the_way:
            self.state = JOINING_TABLE.step(self.state, "failed", JoiningState.FAILED)
            if self.copy is not None:
                self.copy.stop()
            self._context.do(JoinFailed(reason, pause_s, stands_by))

    def tick(self, now: float) -> None:
        """Repeat requests that were not answered, and end waits that took too long."""
        if self.state is JoiningState.LINKING:
            self._settle_links(now)
        if self.on_the_way:
            self.fellows.tick(now)
        if self.pull is not None and self.pull.waits and now >= self._look_at:
            self._look_at = now + WINDOW_SECONDS
            self._follow(self.pull.look())
        if self.state is JoiningState.ATTACHING:
            if self._attach_by is None:
                self._attach_by = now + limits.LINK_OPEN_SECONDS
            elif now >= self._attach_by:
                self.fail(f"{self._sponsor.name} does not say how things stand")
        if self.state is JoiningState.REQUESTED and now >= self._answer_by:
            self.fail(f"no scheduler has answered for {limits.JOIN_ANSWER_SECONDS:.0f} s")
        if self.state is JoiningState.CAUGHT_UP and self._is_alone and not self.may_enter:
            self.fail("the round that was here did not name this device, and every link broke")
        over = self._patience.ended(now, self._cycle.state, may_enter=self.may_enter)
        if over and self.on_the_way:
            self.fail(over)
        if self.on_the_way and now >= self._repeat_at:
            self._give_up_stalled(now)
            self.repeat(now)

    def _give_up_stalled(self, now: float) -> None:
        """Replace a source that owes an answer and has sent nothing at all, shards or chunks, for
        `PULL_STALL_SECONDS`: the other sources are asked for what it owes."""
        if self.pull is None or self.state not in COPYING:
            return
        owing = dict(self.pull.awaited)
        for source, answers in self.copy.awaited.items() if self.copy is not None else ():
            owing[source] = owing.get(source, 0) + answers
        fed = self._context.pull_of(self._context.node)
        for source in self._stalled.look(now, owing):
            if fed is None or not fed.is_fed_by(source):  # it may still send rounds
                self._context.do(CloseLink(source))
            self.source_lost(source)

    def repeat(self, now: float) -> None:
        """Send what this node waits for to the present scheduler, which may be a new one."""
        context, to = self._context, self._context.election.scheduler
        self._repeat_at = now + limits.RETRY_SECONDS
        if self.copy is not None and self.state in COPYING:
            self.copy.remind()
        if self.state is JoiningState.REQUESTED:
            config = context.config
            context.send(to, JoinRequest(config.me, config.wanted_neighbours))
        elif self.state in (JoiningState.WAITING, JoiningState.COPIED):
            links, copy, config = self._opening.open, self.copy, context.config
            rates = tuple(self._rates.of_link(node) for node in links)
            # Who stays outside may fall behind again, and is not to enter before it has caught up.
            copied = self.state is JoiningState.COPIED and copy is not None and copy.is_close
            opened = LinksOpen(self.number, links, rates, config.constants, copied, config.follows)
            context.send(to, opened)
        elif self.state in (JoiningState.COPYING, JoiningState.PULLING):
            context.send(to, self.progress(now))
        elif self.has_pulled:
            # Members hold the state until they hear this, and it may have been lost with a link.
            context.send(EVERYONE, Pulled(self.number, self._pulled_at))
            if self.state is JoiningState.CAUGHT_UP:
                context.send(to, CaughtUp(self.number))

    def progress(self, now: float) -> JoinProgress:
        """Return how far the pull is: the scheduler keeps the join alive by it, and shows it."""
        total = self._context.config.state_bytes
        sources = self._rates.pulled(self.sources, self.pull, self.shard_bytes)
        micro = min(int((now - self._pull_began) * 1e6), limits.MAX_INTEGER)
        return JoinProgress(self.number, total - self._spared_bytes, micro, sources)

    @property
    def _spared_bytes(self) -> int:
        """How many bytes need not be copied, as far as is known, because they are here."""
        return self.pull.spared * self.shard_bytes if self.pull is not None else 0

    def measured(self, now: float, links: tuple[Incoming, ...]) -> None:
        """Take new measurements; the join may have waited for the rates of its links."""
        self._stalled.measured(links)
        self._settle_links(now)

    def _settle_links(self, now: float) -> None:
        """Tell the scheduler which links are open, once each is open or has failed, and their rates
        are known as far as is to be waited for."""
        if self.state is not JoiningState.LINKING or not self._opening.are_settled:
            return
        if not self._opening.open:
            self.fail("no link to any chosen neighbour could be opened")
        elif self._opening.are_measured(now):
            self.state = JOINING_TABLE.step(self.state, "links settled", JoiningState.WAITING)
            self.repeat(now)

    def _begin(self, now: float) -> None:
        """Start to copy the state, once the policy that names the pull is stored here; otherwise
        ask for that policy."""
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
        early, self._early = self._early, {}
        if not plan.beside:
            self._begin_pull(now, policy, plan, early)
        elif JOINING_TABLE.allows(self.state, "copy begins"):
            self._begin_copy(now, policy, plan, early)

    def _begin_copy(
        self, now: float, policy: Policy, plan: PullPlan, early: dict[bytes, PullBegins]
    ) -> None:
        """Start to copy beside the training: a snapshot of the state, and each update since."""
        first = next(iter(early.values()))
        self.state = JOINING_TABLE.step(self.state, "copy begins", JoiningState.COPYING)
        self._begin_with(first)
        self.copy = Copying(self._context, first, plan.sources, self._rates.offer, self.fail)
        for source in early:
            self.copy.began(source)
        self._copy_shards(now, policy, plan, early)

    def _begin_pull(
        self, now: float, policy: Policy, plan: PullPlan, early: dict[bytes, PullBegins]
    ) -> None:
        """Start to follow the rounds, and to pull the state that the members hold; or only the last
        updates, if it was copied beside the training."""
        context, first = self._context, next(iter(early.values()))
        if lost := [n for n in (plan.parent, *plan.feeders) if n not in context.links]:
            self.fail(f"the link to {context.name(lost[0])} broke")  # before its feeders were known
            return
        self.state = JOINING_TABLE.step(self.state, "pull begins", JoiningState.PULLING)
        self.outside = ""
        context.policy = policy
        self._held = first
        self._begin_with(first)
        if self.copy is not None and self.copy.has_state and self.copy.next <= first.iteration:
            self.copy.stop_at(first.iteration)
            self._pull_began = now  # from here on the others wait
            self._cycle.start(state_ready=False)
            self._repeat_at = now + limits.RETRY_SECONDS
            self._copied_on(self.copy)
            return
        if self.copy is not None:  # what has come of it is of no use any more
            context.do(DropUpdates(first.iteration + limits.MOST_UPDATES_BEHIND))
            self.copy = None
        self._cycle.start(state_ready=False)
        self._copy_shards(now, policy, plan, early)

    def _begin_with(self, first: PullBegins) -> None:
        """Note which state the sources have; this device's own is about to be replaced by it."""
        context = self._context
        context.iteration = first.iteration
        context.commit, context.samples, context.meta = first.commit, first.samples, first.meta
        context.ancestors, context.constants = first.ancestors, first.constants

    def _copy_shards(
        self, now: float, policy: Policy, plan: PullPlan, early: dict[bytes, PullBegins]
    ) -> None:
        """Start to copy the shards of the state from all sources, and from fellows."""
        context = self._context
        self.fellows.meet(policy, plan)
        self._state_at = next(iter(early.values())).iteration
        size = context.config.state_bytes
        rates = [self._rates.offer(source, 0).rate for source in plan.sources]
        together = self.fellows.part[1] > 1
        self.shard_bytes = common_shard_size(size) if together else shard_size(size, rates)
        self.sources = plan.sources
        shards = shard_count(size, self.shard_bytes)
        assign = context.planner.assign
        # The rest always comes from the others, so that whoever copies knows that the state is new.
        own = max(0, min(context.config.constant_bytes // self.shard_bytes, shards - 1))
        part = self.fellows.part
        # `_begin_with` has noted the constant part of the sources.
        are_right = (
            bool(own and context.constants) and context.constants == context.config.constants
        )
        rate = self._rates.offer
        args = (shards, self.shard_bytes, plan.sources, rate, assign, own, part)
        manifests = MANIFESTS if plan.beside else 1  # the others would wait for the second one
        self.pull = Pull(*args, are_right=are_right, manifests=manifests)
        context.report("pull_begins", total_bytes=size)
        if are_right:
            context.report("pull_spares", spared_bytes=self._spared_bytes)
        elif own:
            context.do(HashOwnShards(self.number, self.shard_bytes, own))
        self._repeat_at = now + limits.RETRY_SECONDS
        self._pull_began = now
        for source in early:
            self._follow(self.pull.began(source))
        for lost in plan.sources:
            if lost not in context.links:
                self.source_lost(lost)
        self.fellows.begin(self.pull, self._state_at, self.shard_bytes)

    def _follow(self, effects: list[PullEffect]) -> None:
        if self.state not in COPYING:
            return  # the join has been given up, or the pull is done
        context = self._context
        for effect in effects:
            match effect:
                case AskManifest(source, shard):
                    context.send(source, ManifestRequest(self.number, self.shard_bytes, shard))
                case AskShards(source, shards):
                    context.send(source, ShardRequest(self.number, self.shard_bytes, shards))
                case Spared():
                    context.report("pull_spares", spared_bytes=self._spared_bytes)
                case WasWrong(source):
                    context.report("wrong_source", node=context.name(source))
                case PullDone():
                    self.fellows.end()
                    self._has_state()
                case PullFailed(reason):
                    self.fail(reason)
                case _:
                    assert_never(effect)

    def _has_state(self) -> None:
        """The whole state is here as it was when the copy began."""
        if self.copy is None:
            self._pulled()
            return
        self.copy.complete()
        self._copied_on(self.copy)

    def _pulled(self) -> None:
        context = self._context
        self.state = JOINING_TABLE.step(self.state, "pulled", JoiningState.FOLLOWING)
        self._pulled_at = context.iteration
        if self.copied_updates:  # its trainer has shown already that it can apply one
            self.state = JOINING_TABLE.step(self.state, "applied", JoiningState.CAUGHT_UP)
        self.repeat(context.now)
        self._cycle.adopted(has_begun=self.copy is not None)
