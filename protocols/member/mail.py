"""What the parts of one node say: to other nodes, and to the node itself.

A part that asks the scheduler for something does not have to know whether this node is the
scheduler: what it says to this node is delivered to it like a message from elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols.wire import messages as m

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from protocols.member.context import Context


class Mail:
    """The outgoing messages of one node."""

    def __init__(self, context: Context, deliver: Callable[[m.Message], None]) -> None:
        """`deliver` takes what this node says to itself."""
        self._context = context
        self._deliver = deliver

    def post(self, to: bytes, message: m.Message) -> None:
        """Send `message` to a node or to everyone in reach, this node included."""
        if to in (self._context.node, m.EVERYONE):
            self._deliver(message)
        if to != self._context.node:
            self._context.send(to, message)

    def post_all(self, mail: Iterable[tuple[bytes, m.Message]]) -> None:
        """Send each of `mail`: to whom, and what."""
        for to, message in mail:
            self.post(to, message)

    def welcome(self, node: bytes) -> None:
        """Tell a neighbour how things stand."""
        context = self._context
        if context.is_member and context.policy is not None:
            scheduler = context.election.scheduler
            context.send(node, m.Welcome(scheduler, context.policy, context.steps))
