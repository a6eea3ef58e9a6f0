"""What members and joiners ask of the scheduler: each message goes to the part that answers it.

A node that is not the scheduler takes none of these messages. Whoever has sent one repeats it to
the next scheduler, so nothing is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols.scheduler.joins import UNKNOWN
from protocols.wire import messages as m

if TYPE_CHECKING:
    from protocols.member.context import Context
    from protocols.member.departure import Departure
    from protocols.member.mail import Mail
    from protocols.network.monitor import Monitor
    from protocols.recovery.recovery import Recovery
    from protocols.scheduler.succession import Succession


class Desk:
    """The part of one node that takes messages to the scheduler."""

    def __init__(
        self,
        context: Context,
        mail: Mail,
        recovery: Recovery,
        succession: Succession,
        departure: Departure,
        monitor: Monitor,
    ) -> None:
        self._context = context
        self._mail = mail
        self._recovery = recovery
        self._succession = succession
        self._departure = departure
        self._monitor = monitor

    def take(self, now: float, sender: bytes, message: m.Message) -> bool:
        """Act on a message to the scheduler, if this node is that; return whether it was one."""
        negotiator = self._succession.negotiator
        if negotiator is None:
            return False
        joins = negotiator.joins
        mail: list[tuple[bytes, m.Message]] = []
        match message:
            case m.JoinRequest(joiner):
                mail = self._recovery.bars(now, joiner.node)
                mail = mail or joins.request(now, message)
            case m.Introduced(number):
                mail = joins.introduced(sender, number)
            case m.LinksOpen(0, links):
                negotiator.connected(sender, links)
            case m.LinksOpen(number, links, rates):
                self._note_rates(sender, number, dict(zip(links, rates, strict=False)))
                mail = joins.links_open(now, sender, message)
            case m.JoinProgress(n) | m.Pulled(n) | m.CaughtUp(n) if self._is_lost(sender, n):
                mail = [(sender, m.JoinAborted(n, sender, UNKNOWN))]
            case m.Pulled(number):
                joins.pulled(number)
            case m.JoinProgress(number):
                self._note_rates(sender, number, {s.source: s.rate for s in message.sources})
                mail = joins.progress(now, sender, message)
            case m.CaughtUp(number):
                joins.caught_up(now, sender, number)
            case m.NoSnapshot(number):
                joins.no_snapshot(sender, number)
            case m.LeaveRequest() if sender not in negotiator.policy.view.nodes:
                # It is out already, and learns that from here if it froze before its last round
                # ended: then it is in no decision about that round any more.
                if sender in self._context.links:
                    self._mail.welcome(sender)
            case m.LeaveRequest():
                negotiator.leave_request(sender)
                if negotiator.passing:
                    self._departure.hurry(now)
            case m.ShareWish(away):
                negotiator.share_wish(sender, away)
            case m.PolicyStored(term, version):
                negotiator.stored(sender, (term, version))
            case m.Prepared(term, number):
                self._recovery.prepared(now, sender, (term, number))
            case m.Committed(term, number):
                self._recovery.committed(sender, (term, number))
            case m.FenceReport():
                self._recovery.reported(now, sender, message)
            case m.Outside(term, number):
                self._recovery.outside(now, sender, (term, number))
            case m.LinkWish(peer, wanted):
                mail = negotiator.link_wish(sender, peer, wanted=wanted)
            case m.Expel(node):
                mail = self._expel(now, sender, node)
            case _:
                return False
        self._mail.post_all(mail)
        return True

    def _is_lost(self, sender: bytes, number: int) -> bool:
        """Whether no scheduler will end the join `number` of `sender`: this one took over from one
        that was lost before the policy which names the joiner was in force here, and that policy
        never will be, so the joiner has to ask again."""
        context, negotiator = self._context, self._succession.negotiator
        now = context.policy
        if negotiator is None or now is None or self._recovery.has_fence:
            return False
        # A newer policy that is stored here may be in force elsewhere already, and come here, too.
        counts = (p for p in context.policies.values() if p.key >= now.key)
        named = any(
            sender in p.view.nodes or any(pull.join == number for pull in p.pulls) for p in counts
        )
        return number not in negotiator.joins.open and not named

    def _note_rates(self, sender: bytes, number: int, rates: dict[bytes, int]) -> None:
        """Note how fast the links of a joiner are, if `number` is its own join."""
        negotiator = self._succession.negotiator
        join = negotiator.joins.open.get(number) if negotiator is not None else None
        if join is not None and join.joiner.node == sender:
            self._monitor.joiner_rates(sender, rates)

    def _expel(self, now: float, sender: bytes, node: bytes) -> list[tuple[bytes, m.Message]]:
        """Expel a member. A scheduler that is to be expelled itself hands its role over; whoever
        wants that repeats the request to its successor."""
        if node == self._context.node:
            self._succession.make_way(now)
            return []
        views = [p.view for p in self._context.policies.values()]
        known = any(view.member(node) is not None for view in views)
        negotiator = self._succession.negotiator
        return negotiator.expel(sender, node, known=known) if negotiator is not None else []
