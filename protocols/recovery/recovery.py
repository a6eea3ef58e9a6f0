"""What this node does about losses: it reports them, and leads fences if it is the scheduler.

When links are reported broken, one of three things follows: the scheduler opens a fence, an heir of
a lost scheduler stands for election (`campaign.py`), or nothing happens yet. What a member does in
a fence is in `fenced.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from protocols import limits
from protocols.cluster.stripes import OnLost
from protocols.cluster.view import edge
from protocols.events import LinkDown, Located
from protocols.member.cycle_table import CycleState
from protocols.network.link_end import LinkEnd
from protocols.recovery.campaign import Campaign
from protocols.recovery.elsewhere import Elsewhere
from protocols.recovery.fenced import LOST_MEANWHILE, Fenced
from protocols.recovery.losses import Losses
from protocols.recovery.missing_parts import MissingParts
from protocols.recovery.relinking import Relinking
from protocols.recovery.standstill import Standstill
from protocols.recovery.stragglers import Stragglers
from protocols.recovery.suspicion import Suspicions
from protocols.recovery.unsteady import Unsteady
from protocols.scheduler.fence import Epoch, FenceLeader, FenceState, Lost
from protocols.wire import messages as m

# A member that has been frozen, or without a scheduler, for so long counts as cut off: fences and
# elections take far less time if a quorum is in reach.
CUT_OFF_SECONDS = 1.5

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.cluster.policy import Policy
    from protocols.cluster.view import Member, View
    from protocols.member.context import Context
    from protocols.member.cycle import Cycle
    from protocols.member.entry import Entry
    from protocols.member.mail import Mail
    from protocols.scheduler.succession import Succession
    from protocols.wire.envelope import Envelope, Tags
    from protocols.wire.messages import Letter


class Recovery:
    """The part of one node that deals with lost nodes and links."""

    def __init__(
        self,
        context: Context,
        mail: Mail,
        cycle: Cycle,
        entry: Entry,
        succession: Succession,
        blame: Callable[[float, bytes, str], None],
    ) -> None:
        """`blame(now, node, reason)` closes the link to a node and tells the others why."""
        self._context = context
        self._mail = mail
        self._cycle = cycle
        self._entry = entry
        self._succession = succession
        self._blame = blame
        self.losses = Losses()
        self.elsewhere = Elsewhere(context)
        self._unsteady = Unsteady()
        self.relinking = Relinking(context)
        self.suspicions = Suspicions()
        self.fence: FenceLeader | None = None
        self._fences = 0  # number of fences that this node has opened in this term
        self._handled = Lost()  # the losses that the open or last fence was opened for
        self._gone: dict[bytes, LinkEnd] = {}  # node whose link here has ended -> why
        self._anew: dict[bytes, int] = {}  # member found in a later incarnation -> which
        self._standstill = Standstill(context)
        self._missing_parts = MissingParts(context)
        self.fenced = Fenced(context, mail, cycle, entry, succession, self._standstill)
        self._campaign = Campaign(context, succession, self.fenced, self._missing_parts)
        # Node whose link ended cleanly, so that it probably leaves -> when it is missed all the
        # same.
        self._missed_from: dict[bytes, float] = {}
        self._remind_at = 0.0  # when to report missing links again
        self._behind = False  # a member stands still for a reason that only a fence can end
        # Key of the policy with which the last fence of this node ended, on which all members act.
        self._acted_on = (0, 0)
        self._decision: m.Restart | None = None  # the last one on which this member has acted
        self._stragglers = Stragglers(context, mail)

    @property
    def has_fence(self) -> bool:
        """Whether this node leads a fence that is not done."""
        return self.fence is not None

    @property
    def deadlines(self) -> tuple[float | None, ...]:
        """The times at which there is something to do although nothing has happened."""
        if self._cycle.over:
            return ()
        return (
            self.fence.deadline if self.fence else None,
            self._campaign.deadline,
            self._remind_at
            if self._missing_links or self._reopened or self._parted
            else self._leaver_missed_at,
            self.losses.deadline(self._context.now) if self._wants_fence else None,
            self.relinking.deadline,
            self.elsewhere.deadline,
            self._missing_parts.deadline,
            *self.fenced.deadlines,
        )

    @property
    def unheard(self) -> tuple[bytes, ...]:
        """Members to which no path of open links is known any more."""
        policy = self._context.policy
        lost = self._lost(self._context.now, policy.view) if policy is not None else Lost()
        return (*lost.nodes, *lost.dead)

    @property
    def is_cut_off(self) -> bool:
        """Whether this member can only wait, for a quorum or for a scheduler."""
        if self.fence is not None:
            return self.fence.state is FenceState.WAITING
        frozen = self.fenced.frozen_since
        since = self._campaign.lost_since if frozen is None else frozen
        return since is not None and self._context.now - since >= CUT_OFF_SECONDS

    def link_up(self, now: float, peer: Member) -> None:
        """A link to `peer` is open. If that is another incarnation than the member of the view, the
        member is dead, and that is reported instead."""
        context = self._context
        member = context.policy.view.member(peer.node) if context.policy else None
        if member is not None and member.incarnation != peer.incarnation:
            self._started_anew(now, peer.node)
            return
        if self.gives_up(peer.node):
            return  # given up here, though its other end may not know that it stood still
        self.losses.renewed(context.node, peer.node)
        self._gone.pop(peer.node, None)
        self._missed_from.pop(peer.node, None)
        self.fenced.links_changed()

    def located(self, now: float, event: Located) -> None:
        """A node has answered at some address. If a member has started again since the view was
        made, no link may ever show that, because this node lets nobody in while it waits. But one
        that is in our lineage again shows that the others have gone on without this node."""
        policy, node = self._context.policy, event.node
        member = policy.view.member(node) if policy is not None else None
        anew = member is not None and member.incarnation < event.incarnation
        if anew and event.lineage != self._context.lineage and node not in self._anew:
            self._anew[node] = event.incarnation
            self._started_anew(now, node)
        self.relinking.located(now, node, event.addresses)

    def _started_anew(self, now: float, node: bytes) -> None:
        """The member `node` is dead: its agent is in another incarnation than the view names."""
        self._gone[node] = LinkEnd.STARTED_ANEW
        if self._context.is_member:
            self.say_lost(now, LinkDown(node, LinkEnd.STARTED_ANEW))

    def link_gone(self, now: float, event: LinkDown) -> None:
        """The link to a node has ended."""
        self._gone[event.node] = event.why
        if event.why is LinkEnd.STALLED:
            self._standstill.stalled(event.node)
        if event.why is LinkEnd.PROTOCOL_ERROR:
            self.relinking.broke_protocol(now, event.node)
        if event.why.is_clean:
            self._missed_from[event.node] = now + limits.LEAVER_GONE_SECONDS

    def say_lost(self, now: float, event: LinkDown) -> None:
        """Tell everybody that this node's link to a member is lost."""
        lost = m.LinkLost(event.node, event.why.proves_departure)
        self._mail.post(m.EVERYONE, lost)
        self._remind_at = now + limits.RETRY_SECONDS

    def _has_departed(self, node: bytes) -> bool:
        """Whether the end of this node's link to `node` proves that `node` takes no more part."""
        return node in self._gone and self._gone[node].proves_departure

    def gives_up(self, node: bytes) -> bool:
        """Whether the link to `node` has stood still so often that this node does without it."""
        return node in self._standstill

    def _may_come_back(self, node: bytes) -> bool:
        """Whether to open a link to `node` again. That is useless if `node` has departed, or if its
        links stand still again and again: the policy after the next fence does without them. With
        one that was accused of what it has sent there is to be no link (`suspicion.py`)."""
        if self.gives_up(node) or self._has_departed(node):
            return False
        accused = edge(self._context.node, node) in self.suspicions.pairs
        return not accused or self._gone.get(node) is not LinkEnd.PROTOCOL_ERROR

    def switched(self, old: View, view: View) -> None:
        """A policy with `view` came into force. Reports about links that were not in the `old` view
        are forgotten: new links have been opened since, or will be reported as missing again."""
        links = self._context.links
        self.losses.forget_all_but(old)
        self.suspicions.switched(self._context.now, view)
        self._remind_at = self._context.now
        self._gone = {n: r for n, r in self._gone.items() if n in view.nodes or n in links}
        self._missed_from = {n: t for n, t in self._missed_from.items() if n in self._gone}
        named = {member.node: member.incarnation for member in view.members}
        self._anew = {n: life for n, life in self._anew.items() if named.get(n, life) < life}
        self._standstill.switched()
        self._stragglers.switched()
        self._missing_parts.switched()

    def led(self) -> None:
        """Another node is the scheduler now."""
        self.fence = None
        self._campaign.led()

    def won(self) -> None:
        """This node is the scheduler now."""
        self._campaign.led()
        self._fences, self._acted_on = 0, (0, 0)

    def voted(self, now: float) -> None:
        """This node has voted for another one: give that one time before standing for election."""
        self._campaign.leave_time(now)

    def committed(self, sender: bytes, epoch: Epoch) -> None:
        """A member acts on the decision of the fence that this node leads."""
        if self.fence is not None and self.fence.epoch == epoch:
            self.fence.committed(sender)
            self._close_fence()

    def went_on_without_us(self, policy: Policy) -> bool:
        """Whether `policy`, which a neighbour has in force, shows that the others have gone on in
        this lineage without this member, which was away when that was decided."""
        context = self._context
        if context.policy is None or not context.is_member or self._cycle.over:
            return False
        ours = policy.view.lineage == context.lineage and policy.key > context.policy.key
        return ours and context.node not in policy.view.nodes

    @property
    def has_lost_a_link(self) -> bool:
        """Whether a link is not open any more with which the running round began, so that a part of
        its result may never come."""
        return bool(self._missing_links or self.losses.reopened(self._context.node))

    def content(self, candidate: bytes) -> bool:
        """Whether the scheduler is in reach of this member, is not the candidate itself, and does
        not keep this member frozen for long."""
        context, policy = self._context, self._context.policy
        scheduler = context.election.scheduler
        stuck = self.fenced.is_stuck
        if policy is None or candidate == scheduler or stuck or not context.is_member:
            return False
        lost = self._lost(context.now, policy.view)
        return scheduler in policy.view.nodes and scheduler not in lost.all

    def accused(self, accuser: bytes, accused: bytes, reason: str) -> None:
        """A member accuses another one, to which it has cut its link, of breaking the protocol."""
        context, policy = self._context, self._context.policy
        if policy is None or not context.is_member:
            return
        if self.suspicions.accuse(policy.view, accuser, accused, reason):
            names = context.name(accuser), context.name(accused)
            context.report("accused", by=names[0], node=names[1], reason=reason)
            self._part_pairs()

    def bars(self, now: float, joiner: bytes) -> list[Letter]:
        """Return a refusal for `joiner` if it was let go a short while ago, otherwise nothing."""
        if not self.suspicions.bars(now, joiner):
            return []
        return [(joiner, m.JoinAborted(0, joiner, "it has sent what cannot be"))]

    def brief(self) -> None:
        """This node begins to negotiate as the scheduler: keep what the one before it knew of pairs
        that are not to be linked."""
        self._part_pairs()
        self._spare_links()

    def _part_pairs(self) -> None:
        """If this node is the scheduler: keep accused and accuser from being linked again."""
        if self._succession.negotiator is not None:
            for pair in self.suspicions.pairs:
                self._succession.negotiator.part(pair)

    def _spare_links(self) -> None:
        """If this node is the scheduler: ask for no links that break again and again."""
        if self._succession.negotiator is not None:
            for pair, (until, joins_until) in self._unsteady.until.items():
                self._succession.negotiator.asked_links.spare(pair, until, joins_until)

    def _lose_patience(self, now: float, policy: Policy, lost: Lost) -> None:
        """Accuse the node that is to blame for this node's standing still, if there is one."""
        here = tuple(n for n in policy.view.nodes if n not in lost.all)
        if (culprit := self.fenced.lose_patience(now, policy, here)) is not None:
            self._blame(now, *culprit)

    def _lost(self, now: float, view: View) -> Lost:
        """Return what is lost, with the members that are let go because of accusations, and those
        that have gone on in another lineage."""
        parted, out = self.elsewhere.gone(now, view), self.suspicions.let_go
        if not (parted or out or self.losses):
            return Lost()  # nearly always, and this is asked at each event
        near = self._standstill.near
        if parted:
            near = tuple(n for n in near if n not in parted)
        lost = self.losses.lost(now, view, self._context.node, near)
        known = (*lost.nodes, *lost.dead)
        nodes = (*lost.nodes, *(n for n in parted if n not in known))
        # One that was found to have started again is dead, though it may be no neighbour.
        anew = tuple(n for n in nodes if n in self._anew)
        nodes = tuple(n for n in nodes if n not in anew)
        return replace(lost, nodes=nodes, dead=(*lost.dead, *anew), out=out)

    def link_lost(self, now: float, reporter: bytes, peer: bytes, reset: bool) -> None:
        """Take a report that a link is broken."""
        context, policy = self._context, self._context.policy
        if policy is None or not context.is_member:
            return
        nodes = policy.view.nodes
        if reporter == peer:
            return
        if reporter in nodes and peer in nodes:
            if self.losses.note(now, reporter, peer, reset=reset) and not reset:
                self._unsteady.lost(now, reporter, peer)
                self._spare_links()
        else:
            if reporter in nodes:
                self._lost_before(now, reporter, peer)
            else:
                self._stragglers.stranger(now, reporter)
            if (negotiator := self._succession.negotiator) is not None:
                if not reset and negotiator.joins.has_link(reporter, peer):
                    self._unsteady.lost(now, reporter, peer)
                    self._spare_links()
                self._mail.post_all(negotiator.joins.link_lost(reporter, peer))

    def _lost_before(self, now: float, reporter: bytes, peer: bytes) -> None:
        """Act on a member's report that it misses a link to a node that our view no longer has. The
        member may be behind: it waits for the node, which a fence can end."""
        departed = self._has_departed(peer)
        was_one = self._stragglers.misses(now, reporter, peer, departed=departed)
        negotiator = self._succession.negotiator
        joins = negotiator.joins.open.values() if negotiator is not None else ()
        # A fence ends only when all members act on its decision, so nobody stays behind then.
        counts = negotiator is not None and self.fence is None
        if counts and not any(j.joiner.node == peer for j in joins):
            self._behind |= was_one

    @property
    def _missing_links(self) -> list[bytes]:
        """Neighbours in the view in force, or in one that may be in force, to which no link is
        open; so a joiner counts those of a policy that names it. A neighbour that leaves does not
        count, unless this node is frozen, or still waits long after it has gone, and may need
        it."""
        context, missed = self._context, self._missed_from
        if context.policy is None or self._cycle.over:
            return []
        cycle, now = self._cycle, self._context.now
        learns = bool(cycle.learning.coming)  # from a neighbour that may have gone meanwhile
        waits = learns or cycle.state not in (CycleState.HOLDING, CycleState.APPLYING)
        return [
            n
            for n in self._standstill.unlinked
            if context.freeze.holds
            or not context.is_leaving(n)
            or (waits and now >= missed.get(n, 0.0))
        ]

    @property
    def _reopened(self) -> list[bytes]:
        """Neighbours to which another link is open than the one with which the round began. That
        has to be reported until there is a fence, since the scheduler may not know it: if it is
        such a neighbour itself, this node may have become a member for it only after the link
        broke."""
        waits = self._context.is_member and not self._context.freeze.holds and not self._wants_fence
        return self.losses.reopened(self._context.node) if waits else []

    @property
    def _parted(self) -> tuple[bytes, ...]:
        """Neighbours that are lost because they have gone on in another lineage. Nobody here
        believes what they say of their links, so who has no link to them would take them, and whom
        they have lost, for members in reach."""
        context, policy = self._context, self._context.policy
        if policy is None or self._cycle.over or not context.is_member:
            return ()
        return self.elsewhere.gone(context.now, policy.view)

    @property
    def _leaver_missed_at(self) -> float | None:
        """When the next neighbour that has left will count as missing."""
        unlinked, now = self._context.unlinked, self._context.now
        times = [t for n, t in self._missed_from.items() if n in unlinked and t > now]
        return min(times, default=None)

    @property
    def _wants_fence(self) -> bool:
        return self._succession.negotiator is not None and self._context.is_member

    def watch(self, now: float) -> None:
        """Report missing links and dial them; open a fence or stand for election if needed."""
        context, policy = self._context, self._context.policy
        if policy is None:
            return
        missing = self._missing_links
        told, parted = [*missing, *self._reopened], self._parted
        if (told or parted) and now >= self._remind_at:
            self._remind_at = now + limits.RETRY_SECONDS
            for node in told:
                self._mail.post(m.EVERYONE, m.LinkLost(node, self._has_departed(node)))
            for node in parted:  # only the others: the link is open here, and may be of use again
                context.send(m.EVERYONE, m.LinkLost(node, False))
        self._dial(now, missing if context.is_member else [])
        if not context.is_member:
            self._missing_parts.forget()
            return
        self.fenced.plead(now)
        if self.fence is not None:
            self._mail.post_all(self.fence.tick(now))
            self._close_fence()
        lost = self._lost(now, policy.view)
        self._missing_parts.tell(now, lost)
        self._dial(now, missing)
        gives_up = self._missing_parts.given_up(now, lost)
        if gives_up and context.config.on_lost is OnLost.STOP and not context.is_at_end:
            self._cycle.leave("parts lost", self._missing_parts.words)
            return
        if context.node in lost.out:
            self.fence = None
            self._campaign.hopeless(now)
            if now - (self._campaign.lost_since or now) >= limits.LEAVE_SECONDS:
                self._cycle.leave("expelled", "")  # nobody in reach is left who would tell us
            return  # two members have accused us, so the others will go on without us
        self._lose_patience(now, policy, lost)
        waiting = self.fence is not None and self.fence.state is FenceState.WAITING
        if waiting and self._campaign.gives_way(now):
            self.fence = None
            self._succession.resign()
        if self._succession.negotiator is not None:
            overdue = self.fence is not None and self.fence.is_overdue(now)
            if overdue or (self._behind and self.fence is None):
                self.open_fence(now, policy)
            elif lost != self._handled and lost != Lost():
                if self.fence is not None and self.fence.state in (
                    FenceState.REPORTING,
                    FenceState.WAITING,
                ):
                    self._handled = lost
                    self._mail.post_all(self.fence.lose(now, lost))
                else:
                    self.open_fence(now, policy)
            return
        self._campaign.watch(now, policy, lost)

    def _dial(self, now: float, missing: list[bytes]) -> None:
        """Dial the `missing` neighbours, and others without which this member cannot go on."""
        sought = self._missing_parts.sought if self._context.is_member else ()
        wanted = dict.fromkeys((*missing, *sought))
        self.relinking.watch(now, [n for n in wanted if self._may_come_back(n)])

    @property
    def missing_holders(self) -> tuple[bytes, ...]:
        """The lost members that alone had some stripe, so that the others cannot go on."""
        policy = self._context.policy
        if policy is None:
            return ()
        return self._missing_parts.holders(self._lost(self._context.now, policy.view))

    @property
    def smallest_losses(self) -> tuple[tuple[bytes, ...], ...]:
        """The smallest sets of members with which a part of a divided optimizer state would be
        lost; none if it is not divided."""
        policy = self._context.policy
        if policy is None or not policy.stripes:
            return ()
        lost = self._lost(self._context.now, policy.view)
        return self._missing_parts.smallest_losses(policy, lost)

    def learned(self, sender: bytes, stripes: tuple[int, ...]) -> None:
        """A member has learned these stripes."""
        self._missing_parts.learned(sender, stripes)
        if (negotiator := self._succession.negotiator) is not None:
            negotiator.learned(sender, stripes)

    def open_fence(self, now: float, policy: Policy) -> None:
        """Open a fence: freeze all members and find out how they go on. It ends changes under
        way."""
        context = self._context
        self._behind = False
        self._handled = lost = self._lost(now, policy.view)
        negotiator = self._succession.negotiator
        switch = negotiator.switch if negotiator is not None else None
        self._end_changes(policy, switch.policy if switch and switch.offered else policy)
        self._fences += 1
        self.fence = FenceLeader(
            context.node,
            (context.election.term, self._fences),
            policy,
            context.electorates,
            lost,
            context.config.chunks,
            context.config.micro_batches,
            context.steps,
            context.planner,
            now,
            at=(context.iteration, context.attempt),
            known=tuple(p.electorate for p in context.policies.values()),
            pauses=context.config.pauses,
            waited=self._fences == 1 and not context.election.by_quorum,
            parts=self._missing_parts.lost,
        )
        self._mail.post_all(self.fence.tick(now))

    def _end_changes(self, *policies: Policy) -> None:
        """End the switch, and all joins under way that need not be ended under `policies`, one of
        which is or may be in force. Their joiners ask again after the fence."""
        if (negotiator := self._succession.negotiator) is not None:
            self._mail.post_all(negotiator.fenced(policies, LOST_MEANWHILE))

    def _close_fence(self) -> None:
        fence = self.fence
        if fence is not None and fence.restart is not None and fence.state is FenceState.DONE:
            self._acted_on = fence.restart.policy.key
            self.fence = None

    def weigh_report(self, now: float, tags: Tags) -> bool:
        """Look at where the sender of a report of a missing link stands; tell one that is no member
        if it is far behind. Return whether the report counts. It does not if a member sent it
        before it acted on the decision of the last fence, which has dealt with that: it reports
        again what it still misses. Such a report is late if it has waited behind other messages or
        taken another path than later ones."""
        policy = self._context.policy
        if policy is None:
            return True
        if tags.origin in policy.view.nodes:
            self._stragglers.stands_at(tags.origin, tags.view)
            return (tags.term, tags.policy) >= self._acted_on
        self._stragglers.far_behind(now, tags.origin, tags.view)
        return True

    def reported(self, now: float, sender: bytes, message: m.FenceReport) -> None:
        """Take a report: to the open fence, or of a member frozen by one that is over. The latter
        needs a new fence, unless the last decision has left it out and it has not heard that."""
        epoch, context, fence = (message.fence_term, message.number), self._context, self.fence
        if fence is not None:
            if fence.epoch == epoch and self.elsewhere.is_ours(message.policy.view.lineage):
                self._mail.post_all(fence.report(now, sender, message))
            return
        term, decision = context.election.term, self._decision
        if context.policy is None or sender in context.policy.view.nodes:
            self._behind |= message.fence_term < term
        elif decision is not None and sender not in decision.policy.view.nodes:
            context.send(sender, m.Commit(term, self._fences, decision))

    def outside(self, now: float, sender: bytes, epoch: Epoch) -> None:
        """Take the answer of a joiner to the open fence: it has given its join up."""
        if self.fence is not None and self.fence.epoch == epoch:
            self._mail.post_all(self.fence.outside(now, sender))

    def prepared(self, now: float, sender: bytes, epoch: Epoch) -> None:
        """Take a member's acknowledgement that it has stored the decision of the open fence."""
        if self.fence is not None and self.fence.epoch == epoch:
            self._mail.post_all(self.fence.prepared(now, sender))

    def heard(self, now: float, via: bytes, envelope: Envelope) -> bool:
        """Take note of a message that came over the link to `via`; return whether it is of another
        lineage. If that is the one of a fork which is stored here, this member follows; a `Commit`
        says that itself."""
        fork = self.fenced.chosen(via, envelope.tags)
        if fork is not None and not isinstance(envelope.message, m.Commit):
            self.commit(now, *fork)
        return self.elsewhere.heard(now, via, envelope.tags)

    def commit(self, now: float, sender: bytes, epoch: Epoch, restart: m.Restart) -> None:
        """Go on as the scheduler of a fence has decided."""
        context = self._context
        if not self.fenced.decided(sender, epoch, restart):
            return
        self._decision = restart
        self.losses = Losses()  # the decision's links were open; a missing one is reported again
        self._handled = Lost()
        self._end_changes(restart.policy)
        self._missing_parts.begun_anew(restart)
        self._cycle.restart(restart)
        # A joiner learns from this who the scheduler is, and whether it has to begin again, because
        # the others have forked.
        for node in sorted(n for n in context.links if n not in restart.policy.view.nodes):
            self._mail.welcome(node)
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
