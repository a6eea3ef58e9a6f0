"""What a member answers to one that is behind: that a node is gone, or that the others went on.

A member that stands still says once a second which links it misses. Two answers help it on. If it
misses a link to a node that is no longer in the view in force, a neighbour of that node confirms
that the node is not reached there either. If it is itself no longer in the view in force, a
neighbour tells it that the others went on without it. The scheduler has sent that decision only
once, over ways that may not have reached it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import limits
from protocols.wire import messages as m

if TYPE_CHECKING:
    from protocols.cluster.view import View
    from protocols.member.context import Context
    from protocols.member.mail import Mail


class Stragglers:
    """The part of one node that answers members that are behind."""

    def __init__(self, context: Context, mail: Mail) -> None:
        self._context = context
        self._mail = mail
        self._again_at: dict[tuple[bytes, bytes], float] = {}  # when to tell it so again

    def switched(self) -> None:
        """Another policy is in force."""
        self._again_at = {}

    @property
    def _before(self) -> list[View]:
        """The views that were in force before."""
        context = self._context
        key = context.policy.key if context.policy is not None else (0, 0)
        return [p.view for k, p in context.policies.items() if k < key]

    def misses(self, now: float, reporter: bytes, peer: bytes, *, departed: bool) -> bool:
        """A member misses a link to a node that the view has no more; return whether it was in one
        before. It must learn from that node's other neighbours, too, that they do not reach it."""
        context, before = self._context, self._before
        ours = any(peer in view.neighbours(context.node) for view in before)
        if ours and peer not in context.links and self._may_tell(now, reporter, peer):
            self._mail.post(reporter, m.LinkLost(peer, departed))
        return any(view.member(peer) is not None for view in before)

    def stranger(self, now: float, reporter: bytes) -> None:
        """A neighbour that is no member misses a link: if it was a member, it is behind."""
        peer = self._context.links.get(reporter)
        members = [view.member(reporter) for view in self._before]
        was = [who.incarnation for who in members if who is not None]
        if peer is not None and peer.incarnation in was and self._may_tell(now, reporter, b""):
            self._mail.welcome(reporter)

    def _may_tell(self, now: float, reporter: bytes, peer: bytes) -> bool:
        """Whether that has not been said a moment ago."""
        if now < self._again_at.get((reporter, peer), now):
            return False
        self._again_at[reporter, peer] = now + limits.RETRY_SECONDS
        return True
