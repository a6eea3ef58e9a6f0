"""What this node does about losses: remind, stand for election, lead a fence, take part in one.

Law: reports of broken links come in, and with them only three things can follow: the scheduler
opens a fence, an heir of a lost scheduler stands for election, or nothing yet. A member that has
frozen for a fence goes on only by the decision of that fence or of a newer one (protocol.md, I6).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from protocols import limits
from protocols.cluster.view import is_quorum
from protocols.effects import FreezeRound
from protocols.events import LinkDown
from protocols.member.cycle import CycleState
from protocols.member.orders import check_restart, may_order
from protocols.network.link_end import LinkEnd
from protocols.recovery.losses import Losses
from protocols.recovery.relinking import Relinking
from protocols.recovery.standstill import Standstill
from protocols.recovery.stragglers import Stragglers
from protocols.recovery.suspicion import Suspicions
from protocols.scheduler.fence import Epoch, FenceLeader, FenceState, Lost
from protocols.wire import messages as m

LOST_MEANWHILE = "a device was lost meanwhile"
CUT_OFF_SECONDS = 1.5  # a fence, or the election of a scheduler, that takes so long waits in vain

if TYPE_CHECKING:
    from protocols.cluster.election import Mail
    from protocols.cluster.policy import Policy
    from protocols.cluster.view import Member, View
    from protocols.member.context import Context
    from protocols.member.node import Node


class Recovery:
    """The part of one node that deals with losses."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.losses = Losses()
        self.relinking = Relinking(node.context)
        self.suspicions = Suspicions()
        self.fence: FenceLeader | None = None
        self._fences = 0  # opened in this term
        self._epoch: Epoch = (0, 0)  # of the newest fence seen
        self._leader = b""  # whose fence that is
        self._blamed = b""  # whom we have blamed for a fence
        self._patient_from = 0.0  # since when it has had us frozen
        self._fetching_since: float | None = None
        self._report: m.FenceReport | None = None  # our answer to it
        self._acted: Epoch = (0, 0)  # of the newest decision acted on
        self._stand_at: float | None = None  # when to stand for election
        self._lost_since: float | None = None  # how long the scheduler has been lost
        self._handled = Lost()  # what the open or last fence was about
        self._gone: dict[bytes, LinkEnd] = {}  # whose link ended here -> why
        self._standstill = Standstill(self._context)
        self._missed_from: dict[bytes, float] = {}  # those of them that said goodbye: since when
        self._remind_at = 0.0  # when to say again which links are missing
        self._frozen_since: float | None = None
        self._plead_at = 0.0  # when to say again to a new scheduler that we are frozen
        self._behind = False  # a member waits for one that our view has no more
        self._stragglers = Stragglers(node)

    @property
    def _context(self) -> Context:
        return self._node.context

    @property
    def deadlines(self) -> tuple[float | None, ...]:
        """When there is something to do by time alone."""
        if self._node.over:
            return ()
        until = self._patient_until
        return (
            self.fence.deadline if self.fence else None,
            self._stand_at,
            self._remind_at if self._missing_links or self._reopened else self._leaver_missed_at,
            self._plead_at if self._pleads else None,
            self.losses.deadline(self._node.now) if self._wants_fence else None,
            self.relinking.deadline,
            until if until is not None and until > self._node.now else None,
        )

    @property
    def unheard(self) -> tuple[bytes, ...]:
        """Members to which no way is known any more."""
        policy = self._context.policy
        lost = self._lost(self._node.now, policy.view) if policy is not None else Lost()
        return (*lost.nodes, *lost.dead)

    @property
    def is_cut_off(self) -> bool:
        """Whether this member can do nothing but wait: for a quorum, or for a scheduler."""
        if self.fence is not None:
            return self.fence.state is FenceState.WAITING
        frozen = self._frozen_since if self._node.cycle.frozen else None
        since = self._lost_since if frozen is None else frozen
        return since is not None and self._node.now - since >= CUT_OFF_SECONDS

    def link_up(self, now: float, peer: Member) -> None:
        """A link to `peer` is open. If it has begun anew, the member that it was is dead."""
        context = self._context
        member = context.policy.view.member(peer.node) if context.policy else None
        if member is not None and member.incarnation != peer.incarnation:
            self._gone[peer.node] = LinkEnd.STARTED_ANEW
            if context.is_member:
                self.say_lost(now, LinkDown(peer.node, LinkEnd.STARTED_ANEW))
            return
        if peer.node in self._standstill:
            return  # its other end does not know how often it stood still
        self.losses.renewed(context.node, peer.node)
        self._gone.pop(peer.node, None)
        self._missed_from.pop(peer.node, None)
        if self._report is not None and self._node.cycle.frozen:
            self._report = replace(self._report, links=self._standstill.near)
            self._node.post(now, context.election.scheduler, self._report)

    def link_gone(self, now: float, event: LinkDown) -> None:
        """The link to a node ended."""
        self._gone[event.node] = event.why
        if event.why is LinkEnd.STALLED:
            self._standstill.stalled(event.node)
        if event.why.is_clean:
            self._missed_from[event.node] = now + limits.LEAVER_GONE_SECONDS

    def say_lost(self, now: float, event: LinkDown) -> None:
        """Tell everybody that our link to a member is lost."""
        lost = m.LinkLost(event.node, event.why.proves_departure)
        self._node.post(now, m.EVERYONE, lost)
        self._remind_at = now + limits.RETRY_SECONDS

    def _has_departed(self, node: bytes) -> bool:
        """Whether the end of our link to `node` proves that it takes no more part."""
        return node in self._gone and self._gone[node].proves_departure

    def _may_come_back(self, node: bytes) -> bool:
        """Whether to open a link to `node` again: not if it has departed, nor if it sent what
        cannot be (then it has to join anew), nor if links to it stand still again and again."""
        if node in self._standstill:
            return False  # another way takes its place
        return not self._has_departed(node) and self._gone.get(node) is not LinkEnd.PROTOCOL_ERROR

    def switched(self, old: View, view: View) -> None:
        """A policy with `view` came into force. What was said of links that were not in the view is
        forgotten: those that are in it now have been opened since, or will be missed again."""
        links = self._context.links
        self.losses.forget_all_but(old)
        self.suspicions.switched(self._node.now, view)
        self._remind_at = self._node.now
        self._gone = {n: r for n, r in self._gone.items() if n in view.nodes or n in links}
        self._missed_from = {n: t for n, t in self._missed_from.items() if n in self._gone}
        self._standstill.switched()
        self._stragglers.switched()

    def led(self) -> None:
        """Another node is the scheduler now."""
        self.fence = None
        self._stand_at = self._lost_since = None

    def won(self) -> None:
        """This node is the scheduler now."""
        self._stand_at = self._lost_since = None
        self._fences = 0

    def voted(self, now: float, members: int) -> None:
        """This node voted for another: give that one time before standing ourselves."""
        if self._stand_at is not None:
            self._stand_at = now + members * limits.ELECTION_STEP_SECONDS

    def prepare(self, now: float, sender: bytes, epoch: Epoch, restart: m.Restart) -> None:
        """A decision is to be stored: it may come into force elsewhere, even if not here."""
        context = self._context
        current = epoch >= self._epoch and epoch > self._acted
        current = current and may_order(context, sender, epoch[0])
        if current and context.is_member:
            check_restart(context, restart)
            self._epoch, self._leader = epoch, sender
            context.prepared = restart.policy.key
            context.store(restart.policy)
            self._node.post(now, sender, m.Prepared(*epoch))

    def committed(self, sender: bytes, epoch: Epoch) -> None:
        """A member acts on our decision."""
        if self.fence is not None and self.fence.epoch == epoch:
            self.fence.committed(sender)
            self._close_fence()

    def went_on_without_us(self, policy: Policy) -> bool:
        """Whether `policy`, which a neighbour has in force, shows that our lineage has gone on and
        this member is no part of it: we were away when that was decided."""
        context = self._context
        if context.policy is None or not context.is_member or self._node.over:
            return False
        ours = policy.view.lineage == context.lineage and policy.key > context.policy.key
        return ours and context.node not in policy.view.nodes and not context.departs

    def content(self, candidate: bytes) -> bool:
        """Whether the scheduler is in reach of this member and is not the candidate itself."""
        context, policy = self._context, self._context.policy
        scheduler = context.election.scheduler
        if policy is None or candidate == scheduler or not context.is_member:
            return False
        lost = self._lost(self._node.now, policy.view)
        gone = (*lost.nodes, *lost.dead, *lost.out)
        return scheduler in policy.view.nodes and scheduler not in gone

    def accused(self, accuser: bytes, accused: bytes, reason: str) -> None:
        """A member has cut its link to another, which sent it what cannot be."""
        context, policy = self._context, self._context.policy
        if policy is None or not context.is_member:
            return
        if self.suspicions.accuse(policy.view, accuser, accused, reason):
            names = context.name(accuser), context.name(accused)
            context.report("accused", by=names[0], node=names[1], reason=reason)
            self.part_pairs()

    def bars(self, now: float, joiner: bytes) -> list[Mail]:
        """Return what to answer to one that was let go a short while ago."""
        if not self.suspicions.bars(now, joiner):
            return []
        return [(joiner, m.JoinAborted(0, joiner, "it has sent what cannot be"))]

    def part_pairs(self) -> None:
        """Have the scheduler keep pairs of which one is broken from being linked again."""
        if self._node.negotiator is not None:
            for pair in self.suspicions.pairs:
                self._node.negotiator.part(pair)

    @property
    def _patient_until(self) -> float | None:
        """When somebody else is to blame for that we stand still."""
        if self._node.over or not self._context.is_member:
            return None
        if self._node.cycle.frozen:
            waits = self._leader not in (self._context.node, self._blamed)
            return self._patient_from + limits.FENCE_PATIENCE_SECONDS if waits else None
        if self._node.cycle.state is CycleState.FETCHING and self._fetching_since is not None:
            return self._fetching_since + limits.FETCH_PATIENCE_SECONDS
        return None

    def _lose_patience(self, now: float, policy: Policy, lost: Lost) -> None:
        """Blame the scheduler for a fence that it could have decided long ago; the root of the last
        round for naming a policy that nobody has: who sums only passes on what it has itself."""
        fetching = self._node.cycle.state is CycleState.FETCHING
        self._fetching_since = (self._fetching_since or now) if fetching else None
        if (until := self._patient_until) is None or now < until:
            return
        gone = (*lost.nodes, *lost.dead, *lost.out)
        here = [n for n in policy.view.nodes if n not in gone]
        if not self._node.cycle.frozen:
            self._fetching_since = now
            self._node.blame(now, policy.root, "it has named a policy that nobody has")
        elif is_quorum(policy.view.nodes, here) and self._leader in here:
            self._blamed = self._leader
            self._node.blame(now, self._leader, "its fence is never decided")
        else:
            self._patient_from = now

    def _lost(self, now: float, view: View) -> Lost:
        """What is lost, and who is let go."""
        lost = self.losses.lost(now, view, self._context.node, self._standstill.near)
        return replace(lost, out=self.suspicions.let_go)

    def link_lost(self, now: float, reporter: bytes, peer: bytes, reset: bool) -> None:
        """A link is reported broken."""
        context, policy = self._context, self._context.policy
        if policy is None or not context.is_member:
            return
        nodes = policy.view.nodes
        if reporter == peer:
            return
        if reporter in nodes and peer in nodes:
            self.losses.note(now, reporter, peer, reset=reset)
        else:
            if reporter in nodes:
                self._lost_before(now, reporter, peer)
            else:
                self._stragglers.stranger(now, reporter)
            if self._node.negotiator is not None:
                for to, body in self._node.negotiator.link_lost(reporter, peer):
                    self._node.post(now, to, body)

    def _lost_before(self, now: float, reporter: bytes, peer: bytes) -> None:
        """A member misses a link to a node that our view has no more: it may be behind."""
        departed = self._has_departed(peer)
        was_one = self._stragglers.misses(now, reporter, peer, departed=departed)
        negotiator = self._node.negotiator
        joins = negotiator.joins.values() if negotiator is not None else ()
        if negotiator is not None and not any(j.joiner.node == peer for j in joins):
            self._behind |= was_one

    @property
    def _missing_links(self) -> list[bytes]:
        """Neighbours in the view in force, or in one that may be, to which no link is open; so a
        joiner misses those of a policy that names it. One that leaves may go, unless we stand still
        or wait for long, and may need it."""
        context, missed = self._context, self._missed_from
        if context.policy is None or self._node.over:
            return []
        cycle, now = self._node.cycle, self._node.now
        waits = cycle.state not in (CycleState.HOLDING, CycleState.APPLYING)
        return [
            n
            for n in self._standstill.unlinked
            if cycle.frozen or not self._node.is_leaving(n) or (waits and now >= missed.get(n, 0.0))
        ]

    @property
    def _reopened(self) -> list[bytes]:
        """Neighbours to whom another link is open than the round began with. The scheduler may not
        know that: where it is one of them, it may have counted us as a member only since."""
        waits = self._context.is_member and not self._node.cycle.frozen and not self._wants_fence
        return self.losses.reopened(self._context.node) if waits else []

    @property
    def _leaver_missed_at(self) -> float | None:
        """When a leaver that has gone will be missed."""
        unlinked, now = self._context.unlinked, self._node.now
        times = [t for n, t in self._missed_from.items() if n in unlinked and t > now]
        return min(times, default=None)

    @property
    def _pleads(self) -> bool:
        """Whether we stand still for a fence of a term that is over."""
        if self._report is None or not self._node.cycle.frozen or self._node.over:
            return False
        return self._epoch[0] < self._context.election.term

    @property
    def _wants_fence(self) -> bool:
        return self._node.negotiator is not None and self._context.is_member

    def watch(self, now: float) -> None:
        """Open a fence or stand for election if what is lost asks for it."""
        context, policy = self._context, self._context.policy
        if policy is None:
            return
        missing = self._missing_links
        told = [*missing, *self._reopened]
        if told and now >= self._remind_at:
            self._remind_at = now + limits.RETRY_SECONDS
            for node in told:
                self._node.post(now, m.EVERYONE, m.LinkLost(node, self._has_departed(node)))
        wanted = [n for n in missing if self._may_come_back(n)]
        self.relinking.watch(now, wanted if context.is_member else [])
        if not context.is_member:
            return
        if self._pleads and now >= self._plead_at and self._report is not None:
            self._plead_at = now + limits.RETRY_SECONDS
            self._node.post(now, context.election.scheduler, self._report)
        if self.fence is not None:
            for to, body in self.fence.tick(now):
                self._node.post(now, to, body)
            self._close_fence()
        lost = self._lost(now, policy.view)
        if context.node in lost.out:
            self.fence = self._stand_at = None
            self._lost_since = now if self._lost_since is None else self._lost_since
            if now - self._lost_since >= limits.LEAVE_SECONDS:
                self._node.cycle.leave("expelled", "")  # nobody is left who would say so
            return  # the others go on without us
        self._lose_patience(now, policy, lost)
        if self._node.negotiator is not None:
            overdue = self.fence is not None and self.fence.is_overdue(now)
            if overdue or (self._behind and self.fence is None):
                self.open_fence(now, policy)
            elif lost != self._handled and lost != Lost():
                if self.fence is not None and self.fence.state in (
                    FenceState.REPORTING,
                    FenceState.WAITING,
                ):
                    self._handled = lost
                    for to, body in self.fence.lose(now, lost):
                        self._node.post(now, to, body)
                else:
                    self.open_fence(now, policy)
            return
        self._watch_scheduler(now, policy, lost)

    def _watch_scheduler(self, now: float, policy: Policy, lost: Lost) -> None:
        """Stand for election in the order of ids once the scheduler is lost."""
        context = self._context
        gone = (*lost.nodes, *lost.dead, *lost.out)
        scheduler = context.election.scheduler
        if scheduler not in gone and scheduler in policy.view.nodes:
            self._stand_at = self._lost_since = None
            return
        heirs = [n for n in policy.view.nodes if n not in gone]
        rank = heirs.index(context.node) if context.node in heirs else len(heirs)
        if self._lost_since is None:
            self._lost_since = now
            self._stand_at = now + rank * limits.ELECTION_STEP_SECONDS
        self._campaign(now, policy, context.election.voters_lost(lost.dead))
        if context.election.leads or self._stand_at is None or now < self._stand_at:
            return
        self._stand_at = now + (len(heirs) + 1 + rank) * limits.ELECTION_STEP_SECONDS
        waited = now - self._lost_since >= limits.PARTITION_WAIT_SECONDS
        electorates = context.electorates
        excused = lost.dead
        if waited and not context.config.pauses:
            voters = dict.fromkeys(n for e in electorates for n in e.nodes)
            excused = tuple(n for n in voters if n in gone or n not in policy.view.nodes)
        mail = context.election.scheduler_lost(electorates, context.newest_key, excused)
        self._campaign(now, policy, mail)

    def _campaign(self, now: float, policy: Policy, mail: list[Mail]) -> None:
        """Send what a follower or candidate has to say; take the role over if it has won."""
        for to, body in mail:
            self._context.send(to, body)
        if self._context.election.leads:
            self._node.succession.won(now, policy)

    def open_fence(self, now: float, policy: Policy) -> None:
        """Freeze everybody and find out how to go on."""
        context = self._context
        self._behind = False
        self._handled = lost = self._lost(now, policy.view)
        negotiator = self._node.negotiator
        switch = negotiator.switch if negotiator is not None else None
        self._end_changes(now, switch.policy.view if switch and switch.offered else policy.view)
        self._fences += 1
        self.fence = FenceLeader(
            context.node,
            (context.election.term, self._fences),
            policy,
            context.electorates,
            lost,
            context.config.chunks,
            context.config.micro_batches,
            context.planner,
            now,
            at=(context.iteration, context.attempt),
            known=tuple(p.electorate for p in context.policies.values()),
            pauses=context.config.pauses,
            waited=self._fences == 1 and not context.election.by_quorum,
        )
        for to, body in self.fence.tick(now):
            self._node.post(now, to, body)

    def _end_changes(self, now: float, view: View) -> None:
        """A fence ends the switch and all joins under way, but those of who may be in `view`; the
        joiners ask again."""
        negotiator = self._node.negotiator
        if negotiator is None:
            return
        for join in list(negotiator.joins.values()):
            if join.joiner.node not in view.nodes:
                for to, body in negotiator.give_up(join.number, LOST_MEANWHILE):
                    self._node.post(now, to, body)
        negotiator.switch = None

    def _close_fence(self) -> None:
        if self.fence is not None and self.fence.state is FenceState.DONE:
            self.fence = None

    def fenced(self, now: float, sender: bytes, epoch: Epoch) -> None:
        """The scheduler of a term asks this member to freeze and report."""
        context = self._context
        if epoch < self._epoch or self._node.over:
            return
        if epoch <= self._acted:
            return  # it comes late: that fence is decided
        if not may_order(context, sender, epoch[0]):
            return
        if not context.is_member:
            self._fenced_joiner(now, sender, epoch)
            return
        if epoch[0] > context.election.term:
            self._node.succession.take(now, sender, m.Lead(epoch[0], "failed over"))
        if epoch == self._epoch and self._report is not None:
            self._node.post(now, sender, self._report)
            return
        first = epoch > self._epoch
        if sender != self._leader or not self._node.cycle.frozen:
            self._patient_from = now
        self._epoch, self._leader, self._report = epoch, sender, None
        if self._node.cycle.frozen and not first:
            return
        if not self._node.cycle.frozen:
            self._frozen_since = now
        self._node.cycle.frozen = True
        if self._node.cycle.state is not CycleState.APPLYING:
            context.do(FreezeRound())

    def _fenced_joiner(self, now: float, sender: bytes, epoch: Epoch) -> None:
        """Give the join up, unless the round that is here may have made us a member."""
        joining, cycle = self._node.joining, self._node.cycle
        if joining is None or not joining.on_the_way:
            return
        if joining.may_enter:
            self._epoch, self._leader, self._patient_from = epoch, sender, now
            self._context.election.scheduler = sender
            cycle.frozen = True
            return
        self._node.post(now, sender, m.Outside(*epoch))
        joining.fail(LOST_MEANWHILE)

    def frozen(self, now: float, have: bytes) -> None:
        """The running round stands still: report."""
        context, policy = self._context, self._context.policy
        if policy is None or not self._node.cycle.frozen:
            return
        if not context.is_member:
            self._node.cycle.frozen = False
            self._fenced_joiner(now, context.election.scheduler, self._epoch)
            return
        begun = self._node.cycle.state not in (CycleState.FROZEN, CycleState.FETCHING)
        running, before = self._node.cycle.attempt_ids
        self._report = m.FenceReport(
            *self._epoch,
            context.iteration,
            context.attempt,
            running,
            before,
            have if begun else b"",
            self._node.cycle.working,
            policy,
            max(v for _, v in context.policies),
            self._standstill.near,
            context.electorates[1:],
        )
        self._node.post(now, context.election.scheduler, self._report)

    def reported(self, now: float, sender: bytes, message: m.FenceReport) -> None:
        epoch = (message.fence_term, message.number)
        if self.fence is not None and self.fence.epoch == epoch:
            for to, body in self.fence.report(now, sender, message):
                self._node.post(now, to, body)
        elif self.fence is None and message.fence_term < self._context.election.term:
            self._behind = True  # frozen by a fence that nobody leads any more

    def outside(self, now: float, sender: bytes, epoch: Epoch) -> None:
        if self.fence is not None and self.fence.epoch == epoch:
            for to, body in self.fence.outside(now, sender):
                self._node.post(now, to, body)

    def prepared(self, now: float, sender: bytes, epoch: Epoch) -> None:
        if self.fence is not None and self.fence.epoch == epoch:
            for to, body in self.fence.prepared(now, sender):
                self._node.post(now, to, body)

    def _follows(self, sender: bytes, epoch: Epoch, restart: m.Restart) -> bool:
        """Whether the decision is that of the fence to which this member has reported, or that of a
        scheduler that does without it."""
        context = self._context
        if (epoch, sender) == (self._epoch, self._leader):
            if epoch > self._acted:  # else it comes late, and again
                check_restart(context, restart)
            return True
        stays = context.node in restart.policy.view.nodes
        return not stays and may_order(context, sender, epoch[0])

    def commit(self, now: float, sender: bytes, epoch: Epoch, restart: m.Restart) -> None:
        """A decision: act on it, once."""
        context = self._context
        if epoch < self._epoch or self._node.over or not context.is_member:
            return
        if not self._follows(sender, epoch, restart):
            return
        self._node.post(now, sender, m.Committed(*epoch))
        if epoch <= self._acted:
            return
        self._epoch = self._acted = epoch
        if context.node not in restart.policy.view.nodes:
            self._node.cycle.leave("expelled", "")
            return
        self._report = None
        self.losses = Losses()  # its links were open; who misses one says so again
        self._handled = Lost()
        context.prepared = None
        self._end_changes(now, restart.policy.view)
        forks = restart.policy.view.lineage != context.lineage
        self._node.reason = "failure"
        self._node.cycle.restart(restart)
        self._node.reason = "leave"
        if forks:
            for node in sorted(n for n in context.links if n not in restart.policy.view.nodes):
                self._node.welcome(node)  # who is joining has to begin again
        kept = 0
        for have in restart.have:
            kept |= int.from_bytes(have, "little")
        context.report(
            "restarted",
            iteration=context.iteration,
            attempt=context.attempt,
            kept_chunks=kept.bit_count(),
            members=[member.name for member in restart.policy.view.members],
        )
