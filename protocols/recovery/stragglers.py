"""What a member answers to one that is behind: that a node is gone, or that the others went on.

A member that stands still reports once a second which links it misses. Two answers help it on. If
it misses a link to a node that is no longer in the view in force, a former neighbour of that node
confirms that the node is not reached there either. If it is itself no longer in the view in force,
a neighbour tells it that the others went on without it, because the scheduler has sent that
decision only once, over paths that may not have reached it.
A trainer that does not answer for long may keep a device from entering until the views that named
it are forgotten here; then the number of its view shows that it is behind.
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
        # (reporter, missed node; b"": told of the policy) -> when to answer it again
        self._again_at: dict[tuple[bytes, bytes], float] = {}
        self._views: dict[bytes, int] = {}  # member that has reported -> its view's number then

    def switched(self) -> None:
        """Another policy is in force: answer everybody anew."""
        self._again_at, self._views = {}, {}

    def stands_at(self, reporter: bytes, view: int) -> None:
        """Note that a member reports while its view is number `view`."""
        self._views[reporter] = view

    @property
    def _before(self) -> list[View]:
        """The views of older policies that are still stored here."""
        context = self._context
        key = context.policy.key if context.policy is not None else (0, 0)
        return [p.view for k, p in context.policies.items() if k < key]

    def misses(self, now: float, reporter: bytes, peer: bytes, *, departed: bool) -> bool:
        """Answer a member that misses a link to `peer`, which the view no longer has; return
        whether the member is behind, in an earlier view that had it. One that has our view misses
        nobody: `peer` was about to join again. Each former neighbour of `peer` answers, because the
        member counts `peer` as in reach as long as one of them may have a link to it."""
        context, before = self._context, self._before
        ours_now = context.policy.view.number if context.policy is not None else 0
        ours = any(peer in view.neighbours(context.node) for view in before)
        if ours and peer not in context.links and self._may_tell(now, reporter, peer):
            self._mail.post(reporter, m.LinkLost(peer, departed))
        is_behind = self._views.get(reporter, ours_now) < ours_now
        return is_behind and any(view.member(peer) is not None for view in before)

    def stranger(self, now: float, reporter: bytes) -> None:
        """Answer a neighbour that misses a link and is no member; if it was one, it is behind."""
        peer = self._context.links.get(reporter)
        members = [view.member(reporter) for view in self._before]
        was = [who.incarnation for who in members if who is not None]
        if peer is not None and peer.incarnation in was and self._may_tell(now, reporter, b""):
            self._mail.welcome(reporter)

    def far_behind(self, now: float, reporter: bytes, view: int) -> None:
        """Answer a neighbour that misses a link under view number `view` and is no member, if that
        view is older than all that are stored here: it was a member, or about to become one, while
        its trainer did not answer for long, and nobody else remembers that."""
        oldest = min((v.number for v in self._before), default=0)
        known = 0 < view < oldest and reporter in self._context.links
        if known and self._may_tell(now, reporter, b""):
            self._mail.welcome(reporter)

    def _may_tell(self, now: float, reporter: bytes, peer: bytes) -> bool:
        """Whether the same answer was not given a moment ago; note that it is given now."""
        if now < self._again_at.get((reporter, peer), now):
            return False
        self._again_at[reporter, peer] = now + limits.RETRY_SECONDS
        return True
