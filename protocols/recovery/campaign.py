"""When and how this member gets to be the scheduler after a loss (protocol.md, 7.3).

It stands for election if the scheduler is lost, and in two cases in which that one lives but can
decide nothing: members of a fork wait for this member, or two members lead in the same term.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import limits
from protocols.cluster.view import is_quorum
from protocols.recovery.candidacy import Candidacy

if TYPE_CHECKING:
    from protocols.cluster.policy import Policy
    from protocols.member.context import Context
    from protocols.recovery.fenced import Fenced
    from protocols.recovery.missing_parts import MissingParts
    from protocols.scheduler.fence import Lost
    from protocols.scheduler.succession import Succession
    from protocols.wire.messages import Letter


class Campaign:
    """The part of one node that stands for election because of a loss."""

    def __init__(
        self,
        context: Context,
        succession: Succession,
        fenced: Fenced,
        missing_parts: MissingParts,
    ) -> None:
        self._context = context
        self._succession = succession
        self._fenced = fenced
        self._missing_parts = missing_parts
        self._candidacy = Candidacy(context.election, pauses=context.config.pauses)
        self._led_since = 0.0  # since when there has been the present scheduler

    @property
    def deadline(self) -> float | None:
        """When to stand, None if there is no reason to."""
        return self._candidacy.deadline

    @property
    def lost_since(self) -> float | None:
        """Since when the scheduler has been lost, None if it is not."""
        return self._candidacy.lost_since

    def led(self) -> None:
        """There is a new scheduler, perhaps this node."""
        self._candidacy.over()
        self._led_since = self._context.now

    def hopeless(self, now: float) -> None:
        """This member was let go: it never stands."""
        self._candidacy.hopeless(now)

    def leave_time(self, now: float) -> None:
        """This member has voted for another one, which needs time to win."""
        self._candidacy.leave_time(now)

    def gives_way(self, now: float) -> bool:
        """Whether this scheduler, which cannot decide its fence, gives the role up to stand in a
        later term, because others obey somebody else in this one. That is so if another member in
        reach leads in the same term: each of the two has followers who do not obey the other one,
        so if each side lacks parts of the training state or a quorum, neither fence is ever
        decided. Of the two the one with the smaller id stands."""
        context, fenced = self._context, self._fenced
        if not context.election.leads or not self._is_stuck(now):
            return False
        rival = fenced.rival
        return fenced.is_awaited_by_fork or (rival is not None and context.node < rival)

    def watch(self, now: float, policy: Policy, lost: Lost) -> None:
        """Stand for election once the scheduler is lost. The heirs stand in the order of their ids,
        a step of time apart, so that they seldom compete."""
        context = self._context
        gone, missed = lost.all, self._fenced.missed_fork
        if self._is_led(now, policy, lost):
            self._candidacy.over()
            return
        heirs = [n for n in policy.view.nodes if n not in gone]
        rank = heirs.index(context.node) if context.node in heirs else len(heirs)
        has_all = missed or self._missing_parts.suffices(now, policy, heirs, lost)
        known = {"has_all": has_all, "missed_fork": missed, "at_end": context.is_at_end}
        self._candidacy.lost(now, rank, len(heirs), **known)
        if not has_all and not all(is_quorum(e.nodes, heirs) for e in context.electorates):
            # It could win no election, and would only void the votes for a member that can.
            self._candidacy.hopeless(now)
            return
        self._send(now, policy, context.election.voters_lost(lost.dead))
        stand_at = self._candidacy.deadline
        if context.election.leads or stand_at is None or now < stand_at:
            return
        electorates = context.electorates
        excused = lost.dead
        if self._candidacy.has_waited(now):
            voters = dict.fromkeys(n for e in electorates for n in e.nodes)
            excused = tuple(n for n in voters if missed or n in gone or n not in policy.view.nodes)
        mail = context.election.scheduler_lost(electorates, context.newest_key, excused)
        self._candidacy.leave_time(now)
        self._send(now, policy, mail)

    def _is_stuck(self, now: float) -> bool:
        """Whether this member has been frozen for long, and the present scheduler had as long to
        decide."""
        return self._fenced.is_stuck and now >= self._led_since + limits.PARTITION_WAIT_SECONDS

    def _is_led(self, now: float, policy: Policy, lost: Lost) -> bool:
        """Whether there is a scheduler in reach that may decide."""
        context, fenced = self._context, self._fenced
        scheduler = context.election.scheduler
        if scheduler in lost.all or scheduler not in policy.view.nodes:
            return False
        if scheduler == context.node:  # it has given the role up, because another one leads, too
            return context.election.leads
        # Members of a fork wait for this member, which has reported to a later fence, until that is
        # decided. If it is not, they obey this member once it stands.
        return not (fenced.missed_fork and self._is_stuck(now))

    def _send(self, now: float, policy: Policy, mail: list[Letter]) -> None:
        """Send the messages of this follower or candidate; take the role over if it has won."""
        for to, body in mail:
            self._context.send(to, body)
        if self._context.election.leads:
            self._succession.won(now, policy)
