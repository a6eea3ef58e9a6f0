"""What a member does in a fence: freeze, report, store a decision, act on one.

A member that has frozen for a fence goes on only by the decision of that fence or of a newer one,
because otherwise its report would no longer be true (protocol.md, I6). Until then it repeats its
report to whoever is the scheduler. If the fence is not decided for long, although a quorum is in
reach, it accuses the scheduler.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from protocols import limits
from protocols.cluster.stripes import orphans, renumbered
from protocols.cluster.view import is_quorum
from protocols.effects import FreezeRound
from protocols.member.cycle_table import CycleState
from protocols.member.orders import check_restart, may_lead, may_order
from protocols.wire import messages as m

if TYPE_CHECKING:
    from protocols.cluster.policy import Policy
    from protocols.member.context import Context
    from protocols.member.cycle import Cycle
    from protocols.member.entry import Entry
    from protocols.member.mail import Mail
    from protocols.recovery.standstill import Standstill
    from protocols.scheduler.fence import Epoch
    from protocols.scheduler.succession import Succession
    from protocols.wire.envelope import Tags

LOST_MEANWHILE = "a device was lost meanwhile"
# A scheduler repeats its question for a report every `limits.FENCE_REPEAT_SECONDS`, so one that has
# not asked for so long leads no more, or is out of reach.
RIVAL_SECONDS = 3.0


class Fenced:
    """The part of one node that takes part in fences, its own or another scheduler's."""

    def __init__(
        self,
        context: Context,
        mail: Mail,
        cycle: Cycle,
        entry: Entry,
        succession: Succession,
        standstill: Standstill,
    ) -> None:
        self._context = context
        self._mail = mail
        self._cycle = cycle
        self._entry = entry
        self._succession = succession
        self._standstill = standstill
        self._epoch: Epoch = (0, 0)  # of the newest fence seen
        self._leader = b""  # the scheduler that leads that fence
        self._blamed = b""  # the last scheduler that we have blamed for a fence without decision
        self._patient_from = 0.0  # since when the leader has kept us frozen
        self._fetching_since: float | None = None  # since when a policy's body is missing
        self._report: m.FenceReport | None = None  # our report to that fence
        self._acted: Epoch = (0, 0)  # of the newest decision acted on
        # The decision that was stored last: its scheduler, its epoch, and itself.
        self._stored: tuple[bytes, Epoch, m.Restart] | None = None
        # Whether others act on a decision that is stored here, and this member must not, because it
        # has reported to a later fence. They wait for it, so it has to stand for election.
        self.missed_fork = False
        # The last other one that has opened a fence, in which term, and when that was heard.
        self._rival = (b"", 0, 0.0)
        self._fork_term = 0  # the term in which a member of the fork has spoken that we have missed
        self._frozen_since: float | None = None
        self._plead_at = 0.0  # when to tell a new scheduler again that we are frozen,
        self._plead_later_at = 0.0  # and when to tell that one again to which we have reported

    @property
    def deadlines(self) -> tuple[float | None, ...]:
        """The times at which there is something to do although nothing has happened."""
        until = self._patient_until
        return (
            self._plead_due,
            until if until is not None and until > self._context.now else None,
        )

    @property
    def frozen_since(self) -> float | None:
        """Since when this member has been frozen, None if it is not."""
        return self._frozen_since if self._context.freeze.holds else None

    @property
    def is_stuck(self) -> bool:
        """Whether this member has been frozen for so long that its scheduler does not seem able to
        decide: a member in reach may obey another one, and then reports to none of its fences."""
        since = self.frozen_since
        return since is not None and self._context.now >= since + limits.PARTITION_WAIT_SECONDS

    @property
    def rival(self) -> bytes | None:
        """Another one that asks for reports to its fence in the present term; None if there is
        none, or if it is the scheduler."""
        (node, term, heard_at), election = self._rival, self._context.election
        asks = self._context.now < heard_at + RIVAL_SECONDS
        return node if asks and term == election.term and node != election.scheduler else None

    @property
    def is_awaited_by_fork(self) -> bool:
        """Whether members of a fork that this member has missed wait for it, and obey nobody in its
        term, as theirs is not earlier."""
        return self.missed_fork and self._fork_term >= self._context.election.term

    def links_changed(self) -> None:
        """Another link is open: send a report again that names the open links."""
        if self._report is not None and self._context.freeze.holds:
            self._report = replace(self._report, links=self._standstill.near)
            self._mail.post(self._context.election.scheduler, self._report)

    def plead(self, now: float) -> None:
        """Tell the scheduler again that this member is frozen. One of a newer term may not know of
        the older fence, and then opens one of its own. The decision of a fence is told only once to
        a member that it leaves out, which may not have heard it."""
        due = self._plead_due
        if due is not None and now >= due and self._report is not None:
            self._plead_at = now + limits.RETRY_SECONDS
            self._plead_later_at = now + limits.FENCE_AGAIN_SECONDS
            self._mail.post(self._context.election.scheduler, self._report)

    def asked(self, now: float, sender: bytes, epoch: Epoch) -> None:
        """Freeze for the fence `epoch` of `sender`, or report to it again."""
        context = self._context
        term = context.election.term
        if sender != context.node and epoch[0] == term and may_lead(context, sender):
            self._rival = (sender, term, now)
        if epoch < self._epoch or self._cycle.over:
            return
        if epoch <= self._acted:
            return  # the message comes late: that fence is decided
        if not may_order(context, sender, epoch[0]):
            return
        may_enter = self._entry.under_way is not None and self._entry.under_way.may_enter
        if epoch[0] > context.election.term and (context.is_member or may_enter):
            # Two members may have been elected in one term if one of them was without a quorum. Who
            # may report obeys only one of them.
            self._succession.take(now, sender, m.Lead(epoch[0], "failed over"))
        if not context.is_member:
            self._asked_joiner(sender, epoch)
            return
        if epoch == self._epoch and self._report is not None:
            self._mail.post(sender, self._report)  # the first copy may have been lost with a link
            return
        first, freeze = epoch > self._epoch, context.freeze
        if sender != self._leader or not freeze.holds:
            self._patient_from = now
        self._epoch, self._leader, self._report = epoch, sender, None
        # `Frozen` is still to come for this fence. For a newer one it has to come again, since the
        # report names the epoch.
        if freeze.holds and not first:
            return
        if not freeze.holds:
            self._frozen_since = now
        freeze.asked()
        # An update that is being applied ends first; `Node._applied` then reports for this fence.
        if self._cycle.state is not CycleState.APPLYING:
            context.do(FreezeRound())

    def _asked_joiner(self, sender: bytes, epoch: Epoch) -> None:
        """Act on a fence as a joiner: give the join up and say `Outside`, unless the round that is
        complete here may have made this node a member. It finds out when the update is applied."""
        joining = self._entry.under_way
        if joining is None:
            return
        if joining.may_enter:
            self._epoch, self._leader, self._patient_from = epoch, sender, self._context.now
            self._context.freeze.asked()
            return
        self._mail.post(sender, m.Outside(*epoch))
        joining.fail(LOST_MEANWHILE)

    def frozen(self, have: bytes) -> None:
        """Report, now that the running round stands still; `have` are the chunks that it has."""
        context, policy = self._context, self._context.policy
        if policy is None or not context.freeze.holds:
            return
        if not context.is_member:
            context.freeze.outside()
            self._asked_joiner(context.election.scheduler, self._epoch)
            return
        # Between two iterations there is no round, so `have` would be about the one before. Of a
        # farewell round there is nothing to be kept: it has no result that could be applied.
        none = (CycleState.FROZEN, CycleState.FETCHING, CycleState.FAREWELL)
        begun = self._cycle.state not in none
        running, before = self._cycle.attempt_ids
        context.freeze.stands_still()
        self._report = m.FenceReport(
            *self._epoch,
            context.iteration,
            context.attempt,
            running,
            before,
            have if begun else b"",
            self._cycle.working,
            policy,
            max(v for _, v in context.policies),
            self._standstill.near,
            context.electorates[1:],
            self._cycle.learning.known,
        )
        self._mail.post(context.election.scheduler, self._report)
        self._plead_later_at = context.now + limits.FENCE_AGAIN_SECONDS

    def prepare(self, sender: bytes, epoch: Epoch, restart: m.Restart) -> None:
        """Store a decision, unless this member has seen a newer fence or acted on this one. It may
        come into force elsewhere, even if its `Commit` never gets here."""
        context = self._context
        current = epoch > self._epoch or (epoch, sender) == (self._epoch, self._leader)
        current = current and epoch > self._acted and may_order(context, sender, epoch[0])
        if current and context.is_member:
            check_restart(context, restart)
            self._epoch, self._leader = epoch, sender
            self._stored = (sender, epoch, restart)
            context.prepared = restart.policy.key
            context.store(restart.policy)
            self._mail.post(sender, m.Prepared(*epoch))

    def chosen(self, via: bytes, tags: Tags) -> tuple[bytes, Epoch, m.Restart] | None:
        """Return the decision for a fork that is stored here, with its scheduler and epoch, if the
        neighbour `via`, a member of that fork, speaks in its lineage. Nobody does before the
        decision is chosen, so this is as good as its `Commit`, which nobody may be left to
        repeat."""
        if self._stored is None or tags.origin != via or tags.lineage == self._context.lineage:
            return None
        view = self._stored[2].policy.view
        if tags.lineage != view.lineage or via not in view.nodes:
            return None
        self.missed_fork = self._stored[1] < self._epoch
        self._fork_term = max(self._fork_term, tags.term)
        return self._stored

    def decided(self, sender: bytes, epoch: Epoch, restart: m.Restart) -> bool:
        """Take a chosen decision; return whether this member has to act on it now. A member that it
        leaves out ends its part here."""
        context = self._context
        if epoch < self._epoch or self._cycle.over or not context.is_member:
            return False
        if not self._follows(sender, epoch, restart):
            return False
        # A repetition is acknowledged, too, so that the scheduler stops repeating.
        self._mail.post(sender, m.Committed(*epoch))
        if epoch <= self._acted:
            return False
        self._epoch = self._acted = epoch
        if context.node not in restart.policy.view.nodes:
            self._cycle.leave("expelled", "")
            return False
        self._report = self._stored = None
        self.missed_fork = False
        context.prepared = None
        return True

    def _follows(self, sender: bytes, epoch: Epoch, restart: m.Restart) -> bool:
        """Whether to follow a decision: it is that of the fence to which this member has reported,
        or that of a scheduler it has to obey, which leaves it out."""
        context = self._context
        if (epoch, sender) == (self._epoch, self._leader):
            if epoch > self._acted:  # otherwise it is a repetition, which is only acknowledged
                check_restart(context, restart)
            return True
        stays = context.node in restart.policy.view.nodes
        return not stays and may_order(context, sender, epoch[0])

    @property
    def _plead_due(self) -> float | None:
        """When to send the report to the scheduler again, None if this member is not frozen. A
        fence of a term that is over is not decided any more, so that is urgent."""
        if self._report is None or not self._context.freeze.holds or self._cycle.over:
            return None
        is_over = self._epoch[0] < self._context.election.term
        return self._plead_at if is_over else max(self._plead_at, self._plead_later_at)

    @property
    def _patient_until(self) -> float | None:
        """When another node is to blame for this member's standing still, None if none is."""
        if self._cycle.over or not self._context.is_member:
            return None
        if self._context.freeze.holds:
            waits = self._leader not in (self._context.node, self._blamed)
            return self._patient_from + limits.FENCE_PATIENCE_SECONDS if waits else None
        if self._cycle.state is CycleState.FETCHING and self._fetching_since is not None:
            return self._fetching_since + limits.FETCH_PATIENCE_SECONDS
        return None

    def lose_patience(
        self, now: float, policy: Policy, here: tuple[bytes, ...]
    ) -> tuple[bytes, str] | None:
        """Return the node to blame for this node's standing still, and why, or None. The scheduler
        is to blame for a fence that it could have decided long ago, and the root of the last round
        for naming a policy that nobody has, since the reduced word comes from there. `here`: the
        members in reach."""
        fetching = self._cycle.state is CycleState.FETCHING
        self._fetching_since = (self._fetching_since or now) if fetching else None
        if (until := self._patient_until) is None or now < until:
            return None
        if not self._context.freeze.holds:
            self._fetching_since = now
            return policy.tree.root, "it has named a policy that nobody has"
        could = not orphans(renumbered(policy.stripes, policy.view.nodes, here))
        if could and is_quorum(policy.view.nodes, here) and self._leader in here:
            self._blamed = self._leader
            return self._leader, "its fence is never decided"
        self._patient_from = now
        return None
