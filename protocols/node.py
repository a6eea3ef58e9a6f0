"""One node: `handle(now, event)` returns the effects that the event has.

Law: this file only sorts events to the parts (election, negotiator, joining, cycle) and couples
them; what each part decides stands in its own file. Messages that do not fit the moment are
dropped: whoever still needs an answer asks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from protocols import limits
from protocols import messages as m
from protocols.context import Context, NodeConfig
from protocols.cycle import Cycle, CycleState
from protocols.effects import (
    Applied,
    AwayWanted,
    CloseLink,
    Contributed,
    Dial,
    DialFailed,
    Distrust,
    Effect,
    Event,
    ExpelWanted,
    Frozen,
    LeaveWanted,
    LinkDown,
    LinkUp,
    LinkWanted,
    ManifestReady,
    Measured,
    Received,
    RoundReduced,
    SendManifest,
    SendShards,
    ShardArrived,
    Silent,
    Tick,
    TokenWanted,
    Trust,
    YieldWanted,
)
from protocols.election import Election
from protocols.errors import RemoteProtocolError
from protocols.joining import Joining, JoiningState, shard_count
from protocols.monitor import Monitor
from protocols.planning import Informed
from protocols.policy import Policy
from protocols.recovery import Recovery
from protocols.routing import Router
from protocols.succession import Succession
from protocols.view import make_view
from protocols.wishes import Wishes

if TYPE_CHECKING:
    from protocols.negotiator import Negotiator
    from protocols.planning import Planner
    from protocols.view import Member, View


class Node:
    """The whole control plane of one agent in one incarnation."""

    def __init__(self, config: NodeConfig, planner: Planner, router: Router | None = None) -> None:
        """`router`: that of this incarnation's node before, whose numbers must not come again."""
        me = config.me
        router = router or Router(me.node, me.incarnation)
        informed = Informed(planner, lambda: self.monitor.measures)
        self.context = Context(config, informed, router, Election(me.node), steps=config.steps)
        self.monitor = Monitor(self.context)
        self.context.incoming = self.monitor.incoming
        self.cycle = Cycle(self.context, self._offered, self._switched)
        self.joining: Joining | None = None
        self.negotiator: Negotiator | None = None
        self.recovery = Recovery(self)
        self.succession = Succession(self)
        self.wishes = Wishes(self)
        self._leave_again_at = 0.0
        self._yield_by = 0.0  # when to go without having been let go
        self._fetch_at = 0.0
        self._away = False
        self.now = 0.0
        self.reason = "leave"  # why members leave with the policy that comes into force
        self._connecting: dict[bytes, bytes] = {}  # member being dialled -> who asked for it
        self._introduced: dict[int, Member] = {}  # join -> whose link is expected
        self._begun_anew: dict[int, None] = {}  # joins whose link here is gone

    # --- beginnings -------------------------------------------------------------------------------

    def found(self, now: float, lineage: bytes, iteration: int, meta: bytes) -> list[Effect]:
        """Found a cluster of one; `lineage` is a new random id of `limits.LINEAGE_BYTES`."""
        context = self.context
        view = make_view(lineage, 1, [context.config.me], [])
        plan = context.planner.plan(view, context.config.micro_batches, ())
        policy = Policy(1, 1, view, plan.parents, plan.shares, (), plan.reason)
        context.lineage = lineage
        context.iteration, context.meta = iteration, meta
        context.samples = iteration * context.config.samples_per_iteration
        context.store(policy)
        context.policy = policy
        context.election.found()
        self.succession.lead(now, policy)
        me = context.config.me.name
        context.report("scheduler", node=me, term=1, why="founded")
        context.report("joined", term=1, members=[me])
        self.cycle.start(state_ready=True)
        return self._flush(now)

    def join(self, now: float, sponsor: Member) -> list[Effect]:
        """Join the cluster of which `sponsor`, whose key is trusted, is a member."""
        self.joining = Joining(self.context, self.cycle, sponsor)
        return self._flush(now)

    # --- events -----------------------------------------------------------------------------------

    def handle(self, now: float, event: Event) -> list[Effect]:
        """Take one event; raises `RemoteProtocolError` if a peer broke the protocol with it."""
        self.now = now
        match event:
            case Received(via, envelope):
                self._received(now, via, envelope)
            case RoundReduced():
                self.cycle.reduced(event)
            case Contributed():
                self.cycle.contributed(event)
            case Frozen(have):
                self.recovery.frozen(now, have)
            case Applied():
                self.wishes.applied()
                self.cycle.applied(event)
                if self.cycle.frozen and self.cycle.state is CycleState.FROZEN:
                    self.recovery.frozen(now, b"")
                if self.joining is not None:
                    self.joining.applied(now)
            case LinkUp(peer):
                self._link_up(now, peer)
            case LinkDown():
                self._link_down(now, event)
            case Silent(node):
                self._silent(now, node)
            case DialFailed(node):
                self._connected(node, is_open=False)
                name = self.context.name(node)
                self.wishes.unreachable(node, f"no connection to {name} could be opened")
                if self.joining is not None:
                    self.joining.link_settled(now, node, is_open=False)
            case ShardArrived():
                if self.joining is not None:
                    self.joining.shard(event)
            case ManifestReady(joiner, join, leaves):
                if join in self.cycle.holding_for:
                    self.context.send(joiner, m.Manifest(join, leaves))
            case LeaveWanted():
                self.context.leaving = True
                self._leave_again_at = now
            case YieldWanted():
                self.context.yielding = True
                self._yield_by = now + limits.YIELD_SECONDS
                self._leave_again_at = now
            case AwayWanted(away):
                self._away = away
                self.post(now, self.context.election.scheduler, m.ShareWish(away))
            case Measured():
                if self.monitor.measured(now, event) and self.negotiator is not None:
                    self.negotiator.measured()
                if self.joining is not None:
                    self.joining.measured(now)
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
        return self._flush(now)

    def ping(self, now: float) -> list[Effect]:
        """Measure the delay of every link; the answers come as reports."""
        for neighbour in sorted(self.context.links):
            self.context.send(neighbour, m.Ping(now))
        return self._flush(now)

    @property
    def deadline(self) -> float | None:
        """When a `Tick` is due at the latest."""
        times = [
            self.joining.deadline if self.joining else None,
            self.negotiator.deadline
            if self.negotiator and not self.recovery.fence and not self.over
            else None,
            self._leave_again_at if self.context.departs and not self.over else None,
            *self.recovery.deadlines,
            self.wishes.deadline if not self.over else None,
            self.succession.deadline if self.negotiator and not self.over else None,
            self._fetch_at if self.cycle.state is CycleState.FETCHING else None,
        ]
        return min((t for t in times if t is not None), default=None)

    @property
    def over(self) -> bool:
        return self.cycle.state is CycleState.OVER

    def _flush(self, now: float) -> list[Effect]:
        """Let the scheduler and a wish to leave act on what has changed; hand out the effects."""
        context = self.context
        if not self.over:
            self.recovery.watch(now)
        if context.departs and not self.over and now >= self._leave_again_at:
            self._pursue_leave(now)
        if self.negotiator is not None and not self.over and self.recovery.fence is None:
            for to, message in self.negotiator.tick(now):
                self.post(now, to, message)
            self.succession.rotate(now)
            switch = self.negotiator.switch
            if switch is not None and switch.policy.key not in context.policies:
                self._keep(switch.policy)
        self._fetch(now)
        effects, context.effects = context.effects, []
        return effects

    def _fetch(self, now: float) -> None:
        """Ask for a policy's body as long as it is missing: not every neighbour has it."""
        if self.cycle.state is not CycleState.FETCHING:
            self._fetch_at = now
        elif now >= self._fetch_at:
            self._fetch_at = now + limits.RETRY_SECONDS
            self.cycle.fetch()

    def post(self, now: float, to: bytes, message: m.Message) -> None:
        """Send, also to ourselves."""
        if to in (self.context.node, m.EVERYONE):
            self._deliver(now, self.context.node, message)
        if to != self.context.node:
            self.context.send(to, message)

    # --- links ------------------------------------------------------------------------------------

    def _link_up(self, now: float, peer: Member) -> None:
        context = self.context
        context.links[peer.node] = peer
        self.recovery.link_up(now, peer)
        context.report("link_up", node=peer.name)
        self.welcome(peer.node)
        self._connected(peer.node, is_open=True)
        self.monitor.link_up(peer.node)
        if self.joining is not None:
            self.joining.link_settled(now, peer.node, is_open=True)

    def welcome(self, node: bytes) -> None:
        """Tell a neighbour how things stand."""
        context = self.context
        if context.is_member and context.policy is not None:
            scheduler = context.election.scheduler
            context.send(node, m.Welcome(scheduler, context.policy, context.steps))

    def _connected(self, node: bytes, *, is_open: bool) -> None:
        """Answer the scheduler that asked a member for a link."""
        asker = self._connecting.pop(node, None)
        if asker is not None and is_open:
            self.post(self.now, asker, m.LinksOpen(0, (node,)))

    def _link_down(self, now: float, event: LinkDown) -> None:
        context, node = self.context, event.node
        if node not in context.links:
            return
        name = context.name(node)
        peer = context.links.pop(node)
        self.recovery.link_gone(now, event)
        self.wishes.link_gone(node)
        self._begun_anew |= {n: None for n, j in self._introduced.items() if j.node == node}
        context.report("link_down", node=name)
        policy = context.policy
        if self.joining is not None and self.joining.on_the_way:
            self.joining.link_down(node)
        elif self.over or policy is None or (event.clean and self.is_leaving(node)):
            return
        elif context.is_member and not self._is_spare(peer, policy.view):
            self.recovery.say_lost(now, event)

    def _is_spare(self, peer: Member, view: View) -> bool:
        """Whether a link to `peer` is none of the view's: not yet, or no more."""
        if peer.node in view.nodes:
            return peer.node not in self.context.neighbours
        known = [p.view.member(peer.node) for p in self.context.policies.values()]
        return any(m is not None and m.incarnation == peer.incarnation for m in known)

    def _silent(self, now: float, node: bytes) -> None:
        """A neighbour is out of reach: tell it, in case it hears us later, and close the link."""
        context = self.context
        if node in context.links:
            context.send(node, m.Dropped())
            context.do(CloseLink(node))
            self._link_down(now, LinkDown(node, clean=False, reset=False))

    def _dropped_by(self, now: float, sender: bytes) -> None:
        """A neighbour did not hear us for too long. If all of them say so, we were away and the
        others went on without us."""
        context = self.context
        if self.joining is not None and self.joining.on_the_way:
            context.do(CloseLink(sender))  # nothing of what it still sends may reach the state
        self._link_down(now, LinkDown(sender, clean=False, reset=False))
        if not context.links and context.is_member and not self.over:
            self.cycle.leave("expelled", "")

    def is_leaving(self, node: bytes) -> bool:
        """Whether a policy that is stored here leaves a member of the present view out."""
        context, policy = self.context, self.context.policy
        if policy is None or node not in policy.view.nodes:
            return False
        newest = max(k for k in context.policies if k != context.prepared)
        return node not in context.policies[newest].view.nodes

    # --- messages ---------------------------------------------------------------------------------

    def _received(self, now: float, via: bytes, envelope: m.Envelope) -> None:
        tags = envelope.tags
        policy = self.context.policy
        outlaws = policy.view.expelled if policy is not None else ()
        if via not in self.context.links:
            return
        if (via in outlaws or tags.origin in outlaws) and not isinstance(
            envelope.message, m.JoinRequest
        ):
            return  # who was expelled hears at most that it was
        if isinstance(envelope.message, m.DIRECT_MESSAGES) and tags.origin != via:
            return  # nobody passes these on
        deliver, onward = self.context.router.receive(envelope)
        if onward is not None:
            self.context.relay(onward, via)
        strange = tags.lineage not in (self.context.lineage, bytes(limits.LINEAGE_BYTES))
        attaching = self.joining is not None and self.joining.state is JoiningState.ATTACHING
        leads = (*m.FENCE_MESSAGES, m.Welcome)  # they lead into a new lineage
        if deliver and (attaching or not strange or isinstance(envelope.message, leads)):
            self._deliver(now, tags.origin, envelope.message)

    def _deliver(self, now: float, sender: bytes, message: m.Message) -> None:
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
                    self.post(now, sender, m.PolicyBody(body))
            case m.Introduce(number, joiner):
                if sender == self.context.election.scheduler:
                    self._expect(number, joiner)
                    self.post(now, sender, m.Introduced(number))
            case m.Pulled(number):
                self.cycle.released(number)
            case m.JoinAborted(number, joiner_node, reason):
                self.cycle.released(number)
                ours = joiner_node == self.context.node
                if self.joining is not None and ours and number == self.joining.number:
                    self.joining.fail(reason)
                self._expect_no_more(number)
            case m.ManifestRequest(number, shard_bytes):
                if self._serves(number, shard_bytes):
                    self.context.do(SendManifest(sender, number, shard_bytes))
            case m.ShardRequest(number, shard_bytes, shards):
                self._shards_wanted(sender, number, shard_bytes, shards)
            case m.Dropped():
                self._dropped_by(now, sender)
            case m.Measured():
                if self.monitor.heard(sender, message) and self.negotiator is not None:
                    self.negotiator.measured()
            case m.LinkLost(peer, reset):
                self.recovery.link_lost(now, sender, peer, reset)
            case m.Fence(term, number):
                self.recovery.fenced(now, sender, (term, number))
            case m.Prepare(term, number, restart):
                self.recovery.prepare(now, sender, (term, number), restart)
            case m.Commit(term, number, restart):
                self.recovery.commit(now, sender, (term, number), restart)
            case m.PassRole() | m.VoteRequest() | m.Vote() | m.Lead():
                self.succession.take(now, sender, message)
            case m.Refused():
                self.wishes.refused(sender, message)
            case m.NewToken():
                self.wishes.heard_token(sender, message)
            case _:
                if not self._to_scheduler(now, sender, message):
                    self._to_joiner(now, sender, message)

    def _to_scheduler(self, now: float, sender: bytes, message: m.Message) -> bool:
        """Hand a request to the negotiator; return whether it was one."""
        negotiator = self.negotiator
        if negotiator is None:
            return False
        mail: list[tuple[bytes, m.Message]] = []
        match message:
            case m.JoinRequest():
                mail = negotiator.join_request(now, message)
            case m.Introduced(number):
                mail = negotiator.introduced(sender, number)
            case m.LinksOpen(number, links):
                mail = negotiator.links_open(now, sender, number, links)
            case m.JoinProgress():
                negotiator.progress(now, sender, message)
            case m.CaughtUp(number):
                negotiator.caught_up(now, sender, number)
            case m.LeaveRequest():
                negotiator.leave_request(sender)
                if negotiator.passing:
                    self._leave_again_at = now
            case m.ShareWish(away):
                negotiator.share_wish(sender, away)
            case m.PolicyStored(term, version):
                negotiator.stored(sender, (term, version))
            case m.Prepared(term, number):
                self.recovery.prepared(now, sender, (term, number))
            case m.Committed(term, number):
                self.recovery.committed(sender, (term, number))
            case m.FenceReport():
                self.recovery.reported(now, sender, message)
            case m.Outside(term, number):
                self.recovery.outside(now, sender, (term, number))
            case m.LinkWish(peer, wanted):
                mail = negotiator.link_wish(sender, peer, wanted=wanted)
            case m.Expel(node):
                mail = self._expel(now, sender, node)
            case _:
                return False
        for to, body in mail:
            self.post(now, to, body)
        return True

    def _expel(self, now: float, sender: bytes, node: bytes) -> list[tuple[bytes, m.Message]]:
        """A scheduler that is to go hands its role over first; its successor is asked again."""
        if node == self.context.node:
            self.succession.make_way(now)
            return []
        views = [p.view for p in self.context.policies.values()]
        known = any(view.member(node) is not None for view in views)
        negotiator = self.negotiator
        return negotiator.expel(sender, node, known=known) if negotiator is not None else []

    def _to_joiner(self, now: float, sender: bytes, message: m.Message) -> None:
        joining = self.joining
        match message:
            case m.OpenLinks() if sender != self.context.election.scheduler:
                pass  # a new one is not known here yet; whoever needs the links asks again
            case m.OpenLinks(0, members):
                for member in members:
                    self._connecting[member.node] = sender
                    if member.node in self.context.links:
                        self._connected(member.node, is_open=True)
                    else:
                        self.context.do(Dial(member))
            case m.OpenLinks() if joining is not None:
                for member in message.neighbours:
                    self.context.do(Trust(member))
                joining.open_links(now, message)
            case m.Welcome() if joining is not None and joining.on_the_way:
                joining.welcome(now, sender, message)
            case m.PullBegins() if joining is not None:
                joining.pull_begins(now, sender, message)
            case m.Manifest() if joining is not None:
                joining.manifest(sender, message)

    def _expect(self, number: int, joiner: Member) -> None:
        """A joiner will open a link."""
        self.context.do(Trust(joiner))
        self._introduced[number] = joiner
        for old in list(self._introduced)[: -limits.MAX_OPEN_JOINS]:
            del self._introduced[old]
        self._begun_anew = {n: None for n in self._begun_anew if n in self._introduced}

    def _expect_no_more(self, number: int) -> None:
        """A join was given up: its joiner, unless it is a member or has begun anew, has to go."""
        context, joiner = self.context, self._introduced.pop(number, None)
        if joiner is None or any(j.node == joiner.node for j in self._introduced.values()):
            return
        if any(p.view.member(joiner.node) is not None for p in context.policies.values()):
            return
        if joiner.node not in context.links:
            context.do(Distrust(joiner.node))
        elif number not in self._begun_anew:
            context.do(Distrust(joiner.node))
            context.do(CloseLink(joiner.node))

    def _store(self, now: float, sender: bytes, policy: Policy) -> None:
        context = self.context
        if policy.view.lineage != context.lineage or policy.term < context.election.term:
            return
        if context.policy is not None and policy.key < context.policy.key:
            return
        self._keep(policy)
        self.post(now, sender, m.PolicyStored(*policy.key))
        self.cycle.stored()
        if self.joining is not None:
            self.joining.stored(now)

    def _keep(self, policy: Policy) -> None:
        """Store a policy's body and expect links from everybody whom it names."""
        context = self.context
        outlaws = context.policy.view.expelled if context.policy is not None else ()
        for member in (*policy.view.members, *(p.joiner for p in policy.pulls)):
            if member.node != context.node and member.node not in outlaws:
                context.do(Trust(member))
        context.store(policy)

    def _serves(self, number: int, shard_bytes: int) -> bool:
        whole = shard_bytes > 0 and shard_bytes % 64 == 0
        size = self.context.config.state_bytes
        if not whole or shard_count(size, shard_bytes) > limits.MAX_SHARDS:
            raise RemoteProtocolError("shards of a size that cannot be")
        return number in self.cycle.holding_for

    def _shards_wanted(
        self, joiner: bytes, number: int, shard_bytes: int, shards: tuple[int, ...]
    ) -> None:
        if not self._serves(number, shard_bytes) or joiner not in self.context.links:
            return
        count = shard_count(self.context.config.state_bytes, shard_bytes)
        if any(k >= count for k in shards) or len(dict.fromkeys(shards)) != len(shards):
            raise RemoteProtocolError("a request for shards that do not exist")
        at = self.context.iteration
        self.context.do(SendShards(joiner, number, at, shard_bytes, shards))

    # --- scheduler --------------------------------------------------------------------------------

    def _offered(self) -> tuple[int, int]:
        if self.negotiator is not None:
            return self.negotiator.offered
        return self.context.policy.key if self.context.policy else (0, 0)

    def ask_again(self, now: float) -> None:
        """There is a new scheduler: repeat to it what the old one had not done."""
        self._leave_again_at = now
        if self.joining is not None and self.joining.on_the_way:
            self.joining.repeat(now)
        if self._away:
            self.post(now, self.context.election.scheduler, m.ShareWish(True))
        self.wishes.say(now)

    # --- changes ----------------------------------------------------------------------------------

    def _switched(self, old: Policy, new: Policy) -> None:
        """A policy came into force."""
        context = self.context
        before, after = dict.fromkeys(old.view.nodes), dict.fromkeys(new.view.nodes)
        for member in new.view.members:
            if member.node not in before and member.node != context.node:
                context.report("member_joined", node=member.name)
        for member in old.view.members:
            if member.node not in after and member.node != context.node:
                expelled = member.node in new.view.expelled
                reason = "expelled" if expelled else self.reason
                context.report("member_left", node=member.name, reason=reason, stall_s=0.0)
                context.do(Distrust(member.node))
        if context.node in after and context.node not in before and self.joining is not None:
            self.joining.entered()
            context.report(
                "joined", term=context.election.term, members=[x.name for x in new.view.members]
            )
        if self.negotiator is not None:
            self.negotiator.in_force(self.now, new)
        self.recovery.switched(old.view, new.view)
        self.wishes.switched(self.now, old, new)

    def _pursue_leave(self, now: float) -> None:
        """Hand over the role if we hold it, then ask to leave; again until it has happened."""
        context, policy = self.context, self.context.policy
        self._leave_again_at = now + limits.RETRY_SECONDS
        if self.joining is not None and self.joining.state is JoiningState.CAUGHT_UP:
            return  # a policy with this node may be on its way: enter first, then leave
        idle = self.cycle.state is not CycleState.APPLYING
        if not context.is_member or policy is None:
            self.cycle.leave(context.departs, "")
            return
        if policy.view.nodes == (context.node,):
            if idle and context.leaving:  # who yields ends its iteration first
                self.cycle.leave("left", "")
            return
        if context.yielding and (context.is_isolated or now >= self._yield_by) and idle:
            self.cycle.leave(context.departs, "")
            return
        if self.negotiator is None:
            message = m.LeaveRequest(context.config.me.incarnation)
            context.send(context.election.scheduler, message)
            return
        if self.negotiator.switch is None:
            self.succession.pass_role(policy, self.negotiator)
