"""One node: `handle(now, event)` returns the effects that the event has.

This module only hands events to the parts of the node (election, negotiator, joining, cycle, ...)
and connects them; what each part decides is in its own module. A message that does not fit the
moment is dropped without harm, because whoever still needs an answer asks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from protocols import limits
from protocols.cluster.election import Election
from protocols.cluster.policy import Policy
from protocols.cluster.stripes import Stripe
from protocols.cluster.view import make_view
from protocols.effects import Distrust, Effect, Trust
from protocols.errors import RemoteProtocolError
from protocols.events import (
    Applied,
    AwayWanted,
    CopyEvent,
    DialFailed,
    Event,
    ExpelWanted,
    Faulty,
    Frozen,
    LeaveWanted,
    LinkDown,
    LinkUp,
    LinkWanted,
    Located,
    ManifestReady,
    Measured,
    OwnShardsHashed,
    Received,
    RoundDecided,
    RoundReduced,
    ShardArrived,
    Silent,
    SnapshotTaken,
    StandAside,
    StripeArrived,
    Tick,
    TokenWanted,
    TrainerEvent,
    UpdateArrived,
    UpdateCopied,
    UpdateLogged,
    WaysFound,
    YieldWanted,
    is_heartbeat,
)
from protocols.member.context import Context, NodeConfig
from protocols.member.copies import Copies
from protocols.member.cycle import Cycle
from protocols.member.cycle_table import CycleState
from protocols.member.departure import Departure
from protocols.member.entry import Entry
from protocols.member.followers import Followers
from protocols.member.introductions import Introductions
from protocols.member.joining import Joining
from protocols.member.joining_table import JoiningState
from protocols.member.mail import Mail
from protocols.member.naming import Naming
from protocols.member.neighbours import Neighbours
from protocols.member.orders import check_policy, may_store
from protocols.member.replicas import Replicas
from protocols.member.serving import Serving
from protocols.member.standing import Standing
from protocols.member.trainer_debt import TrainerDebt
from protocols.member.trainer_desk import TrainerDesk
from protocols.member.wishes import Wishes
from protocols.network.measures import KeepingUp
from protocols.network.monitor import Monitor
from protocols.network.routing import Router
from protocols.recovery.recovery import Recovery
from protocols.scheduler.desk import Desk
from protocols.scheduler.planning import Informed
from protocols.scheduler.succession import Succession
from protocols.wire import messages as m

if TYPE_CHECKING:
    from protocols.cluster.ancestry import Past
    from protocols.cluster.view import Member
    from protocols.scheduler.negotiator import Negotiator
    from protocols.scheduler.planning import Planner
    from protocols.wire.envelope import Envelope


class Node:
    """The whole control plane of one agent in one incarnation."""

    def __init__(self, config: NodeConfig, planner: Planner, router: Router | None = None) -> None:
        """`router`: that of the node before in the same incarnation, if there was one, because the
        sequence numbers of its messages must not be used again."""
        me = config.me
        router = router or Router(me.node, me.incarnation)
        informed = Informed(planner, lambda: self.monitor.measures)
        context = Context(config, informed, router, Election(me.node), steps=config.steps)
        context.constants = config.constants
        self.context = context
        self.mail = Mail(context)
        self.entry = Entry(context)
        self.debt = TrainerDebt(context, self._wish_away, lambda: self.cycle.hand_back())
        self.monitor = Monitor(context, lambda: self.debt.standing)
        context.incoming = self.monitor.incoming
        self.replicas = Replicas(context, self.debt, self.entry, self._blame)
        self.copies = copies = Copies(context, self.mail.post)
        differs = self.replicas.found
        parts_of = (self.debt, differs, copies, self.mail)
        self.succession = Succession(context, lambda: self.recovery, self._ask_again)
        self.naming = Naming(context, self.mail, self.succession)
        self.cycle = Cycle(context, self.naming.offered, self._switched, *parts_of)
        self.trainer_desk = TrainerDesk(context, self.debt, self.cycle, self.replicas)
        self.serving = Serving(context, self.cycle, copies)
        self.recovery = Recovery(
            context, self.mail, self.cycle, self.entry, self.succession, self._blame
        )
        self.wishes = Wishes(context, self.mail)
        self.departure = Departure(
            context,
            self.cycle,
            self.debt,
            self.entry,
            self.succession,
            lambda: bool(self.recovery.missing_holders),
            lambda: self.copies.lacking,
        )
        late = (KeepingUp.LATE, KeepingUp.AWAY)
        context.keeps_up = lambda node: self.monitor.waits_for(node)[0] not in late
        self.standing = Standing(
            context, self.monitor, self.departure, lambda: self.recovery.unheard
        )
        parts = (self.mail, self.recovery, self.succession, self.departure, self.monitor)
        self.desk = Desk(context, *parts)
        self.introductions = Introductions(context)
        self.followers = Followers(context)
        self.neighbours = Neighbours(
            context,
            self.mail,
            self.cycle,
            self.entry,
            self.copies,
            self.recovery,
            self.wishes,
            self.introductions,
            self.followers,
            self.monitor,
        )
        self._fetch_at = 0.0

    @property
    def joining(self) -> Joining | None:
        """This node's join, None for a founder."""
        return self.entry.joining

    @property
    def negotiator(self) -> Negotiator | None:
        """What this node negotiates as the scheduler, None while another node is that."""
        return self.succession.negotiator

    @property
    def over(self) -> bool:
        """Whether this node takes no more part."""
        return self.cycle.over

    @property
    def was_member(self) -> bool:
        """Whether this node is a member, or was one until its part was over."""
        joining = self.joining
        entered = joining is None or joining.state is JoiningState.ENTERED
        return entered and self.context.policy is not None

    # --- beginnings -------------------------------------------------------------------------------

    def found(
        self, now: float, lineage: bytes, past: Past, meta: bytes, commit: bytes = bytes(32)
    ) -> list[Effect]:
        """Found a cluster of one with a state of the history `past`, of which the last commit id is
        `commit`; `lineage` is a new random id of `limits.LINEAGE_BYTES`."""
        context = self.context
        context.now = now
        view = make_view(lineage, 1, [context.config.me], [])
        plan = context.planner.plan(view, context.config.micro_batches, ())
        whole = (plan.parents, plan.shares, (), plan.reason, ())
        policy = Policy(1, 1, view, *whole, (Stripe(bytes(1)),) * context.config.stripes)
        context.lineage = lineage
        context.iteration, context.meta, context.commit = past.iteration, meta, commit
        context.ancestors = past.in_lineage(lineage).ancestors
        context.samples = past.iteration * context.config.samples_per_iteration
        context.store(policy)
        context.policy = policy
        context.election.found()
        self.succession.lead(now, policy)
        me = context.config.me.name
        context.report("scheduler", node=me, term=1, why="founded")
        context.report("joined", term=1, members=[me], updates=0)
        self.cycle.start(state_ready=True)
        return self._flush(now)

    def join(self, now: float, sponsor: Member) -> list[Effect]:
        """Join the cluster of which `sponsor`, whose key is trusted, is a member."""
        self.entry.joining = Joining(self.context, self.cycle, sponsor)
        return self._flush(now)

    # --- events -----------------------------------------------------------------------------------

    def handle(self, now: float, event: Event) -> list[Effect]:
        """Take one event at the time `now` in seconds and return its effects, in order. Raises
        `RemoteProtocolError` if a peer broke the protocol with it."""
        self.context.now = now
        beats = is_heartbeat(event, self.context.lineage)
        self._take(now, event)
        return self.context.take_effects() if beats else self._flush(now)

    def _take(self, now: float, event: Event) -> None:
        if isinstance(event, CopyEvent):
            self._copies(event)
            return
        if isinstance(event, TrainerEvent):
            self.trainer_desk.take(event)
            return
        match event:
            case Received(via, envelope):
                self._received(now, via, envelope)
            case RoundReduced():
                self.cycle.reduced(event)
            case RoundDecided():
                self.cycle.decided(event)
            case Frozen(have):
                self.recovery.fenced.frozen(have)
            case Applied():
                copied = self.joining is not None and self.joining.update_applied(event)
                if not copied and self.debt.applied(event):
                    self._applied(now, event)
            case LinkUp(peer):
                self.neighbours.link_up(now, peer)
            case LinkDown():
                self.neighbours.link_down(now, event)
            case Silent(node):
                self.neighbours.part_from(now, node)
            case Faulty(node, reason):
                self.mail.post(m.EVERYONE, m.Accused(node, reason[: limits.MAX_NAME_BYTES]))
            case DialFailed(node):
                self.neighbours.dial_failed(now, node)
            case Located():
                self.recovery.located(now, event)
            case LeaveWanted():
                self.departure.leave(now)
            case YieldWanted():
                self.departure.give_way(now)
            case AwayWanted(away):
                self.debt.away(away)
                self._wish_away(away or self.debt.is_behind)
            case StandAside():
                self.context.stalled = True
            case Measured():
                if self.monitor.measured(now, event) and self.negotiator is not None:
                    self.negotiator.measured()
                if self.joining is not None:
                    self.joining.measured(now, event.incoming)
                self.standing.look(now)
            case WaysFound():
                if self.negotiator is not None:
                    self.negotiator.ways_found(now, event)
            case LinkWanted() | ExpelWanted():
                self.wishes.want(now, event)
            case TokenWanted(token):
                self.wishes.new_token(token)
            case Tick():
                self.wishes.tick(now)
                if self.joining is not None:
                    self.joining.tick(now)
            case _:
                assert_never(event)

    def _copies(self, event: CopyEvent) -> None:
        """Take what concerns copies of the state: those of this joiner, or those at this source."""
        joining = self.joining
        match event:
            case SnapshotTaken():
                self.copies.taken(event)
                self.cycle.was_read()
            case UpdateCopied():
                self.copies.copied(event)
                self.cycle.was_read()
            case UpdateLogged():
                self.copies.logged(event)
            case StripeArrived(iteration, stripe):
                self.cycle.learning.arrived(iteration, stripe)
            case ManifestReady(joiner, join, leaves):
                if join in self.cycle.holds.joins or join in self.copies:
                    self.context.send(joiner, m.Manifest(join, leaves))
            case ShardArrived() if joining is not None:
                joining.shard(event)
            case UpdateArrived() if joining is not None:
                joining.update_arrived(event)
            case OwnShardsHashed(join, digests) if joining is not None and join == joining.number:
                joining.own_shards(digests)
            case ShardArrived() | UpdateArrived() | OwnShardsHashed():
                pass  # a founder has no join, and an answer may be for the join before
            case _:
                assert_never(event)

    def _applied(self, now: float, event: Applied) -> None:
        """The update of the running iteration is in the state, or kept for a late trainer."""
        self.context.pace.applied(now)
        self.wishes.applied()
        self.cycle.applied(event)
        if self.context.freeze.holds and self.cycle.state is CycleState.FROZEN:
            self.recovery.fenced.frozen(b"")
        if self.joining is not None:
            self.joining.applied(now)

    def _blame(self, now: float, node: bytes, reason: str) -> None:
        self.neighbours.blame(now, node, reason)

    def _wish_away(self, away: bool) -> None:
        """Ask the scheduler for share 0, or for a share again."""
        if not self.over:
            self.mail.post(self.context.election.scheduler, m.ShareWish(away))

    def ping(self, now: float) -> list[Effect]:
        """Measure the delay of every link; the answers come as reports."""
        for neighbour in sorted(self.context.links):
            self.context.send(neighbour, m.Ping(now))
        return self.context.take_effects()

    @property
    def deadline(self) -> float | None:
        """When a `Tick` is due at the latest."""
        times = [
            self.joining.deadline if self.joining else None,
            self.negotiator.deadline
            if self.negotiator and not self.recovery.fence and not self.over
            else None,
            self.departure.deadline,
            self.serving.deadline if not self.over else None,
            self.copies.deadline if not self.over else None,
            self.debt.deadline if not self.over else None,
            self.cycle.learning.deadline if not self.over else None,
            self.cycle.holds.deadline if not self.over else None,
            *self.recovery.deadlines,
            self.wishes.deadline if not self.over else None,
            self.succession.deadline if self.negotiator and not self.over else None,
            self._fetch_at if self.cycle.lacks_policy else None,
        ]
        return min((t for t in times if t is not None), default=None)

    def _flush(self, now: float) -> list[Effect]:
        """Let all parts act on what has changed, and return the effects."""
        effects = self._settled(now)
        answers = self.trainer_desk.ended.answers
        while answers:
            self._take(now, answers.popleft())
            effects += self._settled(now)
        return self.departure.hold(now, effects)

    def _settled(self, now: float) -> list[Effect]:
        """Return the effects of what has happened so far."""
        context = self.context
        self._settle(now)
        while context.own:
            self._applied(now, context.own.popleft())
            self._settle(now)
        return self.trainer_desk.ended.stand_in(context.take_effects())

    def _settle(self, now: float) -> None:
        """Let deadlines, the scheduler's part and a wish to leave act on what has changed."""
        context = self.context
        self._read(now)
        if not self.over:
            self.debt.tick()
            self.cycle.learning.tick(now)
            self.cycle.holds.tick(is_whole=not self.debt.is_stale)
            self.departure.step_aside()
            self.recovery.watch(now)
            self.serving.tick(now)
            self.copies.tick(now)
        self.departure.pursue(now)
        if self.negotiator is not None and not self.over and self.recovery.fence is None:
            self.mail.post_all(self.negotiator.tick(now))
            self.succession.rotate(now)
            self.succession.search(now)
            for policy in self.negotiator.made:
                if policy.key not in context.policies:
                    self._keep(policy)
        if not self.over and self.recovery.fence is None:
            self.naming.look(self.cycle)
        self._fetch(now)
        self._read(now)

    def _read(self, now: float) -> None:
        """Take the messages that parts of this node have addressed to this node itself."""
        inbox = self.context.inbox
        while inbox:
            self._deliver(now, self.context.node, inbox.popleft())

    def _fetch(self, now: float) -> None:
        """Repeat the question for a missing policy, as not every neighbour has its body yet."""
        if not self.cycle.lacks_policy:
            self._fetch_at = now
        elif now >= self._fetch_at:
            self._fetch_at = now + limits.RETRY_SECONDS
            self.cycle.fetch()

    # --- messages ---------------------------------------------------------------------------------

    def _received(self, now: float, via: bytes, envelope: Envelope) -> None:
        tags = envelope.tags
        policy = self.context.policy
        outlaws = policy.view.expelled if policy is not None else ()
        if via not in self.context.links:
            return
        if (via in outlaws or tags.origin in outlaws) and not isinstance(
            envelope.message, m.JoinRequest
        ):
            return  # a node that was expelled is told that it was, and nothing else
        if isinstance(envelope.message, m.DIRECT_MESSAGES) and tags.origin != via:
            return  # these messages are for neighbours only, and nobody passes them on
        deliver, onward = self.context.router.receive(envelope)
        if onward is not None:
            self.context.relay(onward, via)
        strange = self.recovery.heard(now, via, envelope)
        attaching = self.joining is not None and self.joining.state is JoiningState.ATTACHING
        if tags.origin in self.recovery.suspicions.let_go and isinstance(
            envelope.message, m.ORDERS
        ):
            return
        stranger = strange and not attaching and not self.recovery.elsewhere.leads_here(envelope)
        if not deliver or stranger:
            return
        reports = isinstance(envelope.message, m.LinkLost)
        if reports and not self.recovery.weigh_report(now, tags):
            return
        try:
            self._deliver(now, tags.origin, envelope.message, tags.term)
        except RemoteProtocolError:
            if tags.origin == via:
                raise  # a relayed one was seen by its sender's neighbours, who know whom to blame

    def _let_go(self, join: int) -> None:
        """Keep nothing any more, and hold no update, for the join `join`."""
        self.copies.end(join)  # first, or the update that is let go were kept for it
        self.cycle.released(join)

    def _deliver(self, now: float, sender: bytes, message: m.Message, term: int = 0) -> None:
        match message:
            case m.Ping(sent_at):
                self.context.send(sender, m.Pong(sent_at))
            case m.Pong(sent_at):
                if 0.0 <= now - sent_at <= limits.MOST_DELAY_SECONDS:
                    self.context.report("delay", id=sender, seconds=now - sent_at)
            case m.PolicyBody(policy):
                self._store(now, sender, policy)
            case m.PolicyFetch(term, version):
                if (body := self.context.policies.get((term, version))) is not None:
                    self.mail.post(sender, m.PolicyBody(body))
            case m.PolicyComing():
                self.naming.told(sender, message)
            case m.Introduce(number, joiner):
                if sender == self.context.election.scheduler:
                    self.introductions.expect(number, joiner)
                    self.mail.post(sender, m.Introduced(number))
            case m.Pulled(number):
                self._let_go(number)
                self.desk.take(now, sender, message)
            case m.JoinAborted(number):
                self.followers.given_up(number)
                self._let_go(number)
                self.entry.ended(message)
                self.introductions.expect_no_more(number)
            case m.StaysOutside():
                self.entry.stays_outside(message)
            case m.ManifestRequest():
                self.serving.manifest_wanted(sender, message)
            case m.ShardRequest() if (joining := self.entry.under_way) is not None:
                joining.fellows.wanted(sender, message)
            case m.ShardRequest(number, shard_bytes, shards):
                self.serving.shards_wanted(sender, number, shard_bytes, shards)
            case m.UpdateRequest():
                self.copies.update_wanted(sender, message)
            case m.StripesWanted():
                self.cycle.learning.asked(sender, message)
            case m.Dropped():
                self.neighbours.dropped_by(now, sender)
            case m.Measured():
                if self.monitor.heard(sender, message) and self.negotiator is not None:
                    self.negotiator.measured()
            case m.StatePieces():
                self.replicas.heard(message)
            case m.Accused(peer, reason):
                self.recovery.accused(sender, peer, reason)
            case m.StripesLearned(stripes):
                self.recovery.learned(sender, stripes)
            case m.LinkLost(peer, reset):
                self.recovery.link_lost(now, sender, peer, reset)
            case m.Fence(term, number):
                self.recovery.fenced.asked(now, sender, (term, number))
            case m.Prepare(term, number, restart):
                self.recovery.fenced.prepare(sender, (term, number), restart)
            case m.Commit(term, number, restart):
                self.recovery.commit(now, sender, (term, number), restart)
            case m.PassRole() | m.VoteRequest() | m.Vote() | m.Lead():
                self.succession.take(now, sender, message, term)
            case m.Refused():
                self.wishes.refused(sender, message)
            case m.NewToken():
                self.wishes.heard_token(sender, message)
            case _:
                if not self.desk.take(now, sender, message):
                    self._to_joiner(now, sender, message)

    def _to_joiner(self, now: float, sender: bytes, message: m.Message) -> None:
        joining = self.joining
        match message:
            case m.OpenLinks() if sender != self.context.election.scheduler:
                pass  # it may be a scheduler not known here yet, which will ask again
            case m.OpenLinks(0, members):
                for member in members:
                    if self.introductions.dial(member, sender):
                        self.neighbours.connected(member.node, is_open=True)
            case m.OpenLinks() if joining is not None:
                for member in message.neighbours:
                    self.context.do(Trust(member))
                joining.open_links(now, message)
            case m.Welcome(_, policy, _) if self.recovery.went_on_without_us(policy):
                self.departure.passed_over(now, is_broken=self.recovery.has_lost_a_link)
            case m.Welcome() if joining is not None and joining.on_the_way:
                joining.welcome(now, sender, message)
            case m.PullBegins() if joining is not None:
                joining.pull_begins(now, sender, message)
            case m.Manifest() if joining is not None:
                joining.manifest(sender, message)
            case m.UpdateRecord() if joining is not None:
                joining.update_record(sender, message)
            case m.ShardsHere() if joining is not None and joining.on_the_way:
                joining.fellow_has(now, sender, message)
            case m.CopyEnded(number) if joining is not None and number == joining.number:
                joining.source_lost(sender)

    def _store(self, now: float, sender: bytes, policy: Policy) -> None:
        context = self.context
        if not may_store(context, sender, policy):
            return
        check_policy(context, policy)
        self._keep(policy)
        # This node may have told a fence that it lacks what it has asked a candidate for.
        if (sender, policy.key) != context.missed:
            self.mail.post(sender, m.PolicyStored(*policy.key))
        self.cycle.stored()
        if self.joining is not None:
            self.joining.stored(now)

    def _keep(self, policy: Policy) -> None:
        """Store a policy's body, and trust the keys of all members and joiners that it names."""
        context = self.context
        outlaws = context.policy.view.expelled if context.policy is not None else ()
        for member in (*policy.view.members, *(p.joiner for p in policy.pulls)):
            if member.node != context.node and member.node not in outlaws:
                context.do(Trust(member))
        context.store(policy)

    # --- scheduler --------------------------------------------------------------------------------

    def _ask_again(self, now: float) -> None:
        """Repeat to a new scheduler the requests that the old one had not fulfilled."""
        self.departure.hurry(now)
        if self.joining is not None and self.joining.on_the_way:
            self.joining.repeat(now)
        if self.debt.is_away or self.debt.is_behind:
            self.mail.post(self.context.election.scheduler, m.ShareWish(True))
        self.wishes.say(now)

    # --- changes ----------------------------------------------------------------------------------

    def _switched(self, old: Policy, new: Policy, why: str) -> None:
        """Act on a policy that came into force; members that it lacks left for the reason `why`."""
        context = self.context
        before, after = dict.fromkeys(old.view.nodes), dict.fromkeys(new.view.nodes)
        for member in new.view.members:
            if member.node not in before and member.node != context.node:
                context.report("member_joined", node=member.name)
        for member in old.view.members:
            if member.node not in after and member.node != context.node:
                expelled = member.node in new.view.expelled
                reason = "expelled" if expelled else why
                context.report("member_left", node=member.name, reason=reason, stall_s=0.0)
                context.do(Distrust(member.node))
        if context.node in after and context.node not in before and self.joining is not None:
            self.joining.entered()
            members, updates = [x.name for x in new.view.members], self.joining.copied_updates
            context.report("joined", term=context.election.term, members=members, updates=updates)
        if self.negotiator is not None:
            self.negotiator.in_force(self.context.now, new)
        self.recovery.switched(old.view, new.view)
        self.wishes.switched(self.context.now, old, new)
