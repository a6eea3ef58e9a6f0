"""How the parts of one node send messages, to other nodes and to this node itself.

A part that asks the scheduler for something need not know whether this node is the scheduler,
because a message that is addressed to this node is delivered to it like one from elsewhere. It
waits in a queue until the part that has sent it is done, so no part is entered in the middle of
what another one decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols.wire import messages as m

if TYPE_CHECKING:
    from collections.abc import Iterable

    from protocols.member.context import Context


class Mail:
    """The outgoing messages of one node."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def post(self, to: bytes, message: m.Message) -> None:
        """Send `message` to a node or to everyone in reach, this node included."""
        if to in (self._context.node, m.EVERYONE):
            self._context.inbox.append(message)
        if to != self._context.node:
            self._context.send(to, message)

    def post_all(self, mail: Iterable[tuple[bytes, m.Message]]) -> None:
        """Send each pair (destination, message) of `mail`."""
        for to, message in mail:
            self.post(to, message)

    def welcome(self, node: bytes) -> None:
        """Tell a neighbour who is the scheduler, which policy is in force, and when training ends.
        Nothing is sent unless this node is a member, since only members know that."""
        context = self._context
        if context.is_member and context.policy is not None:
            scheduler = context.election.scheduler
            context.send(node, m.Welcome(scheduler, context.policy, context.steps))
