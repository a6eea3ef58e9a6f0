"""The join of this node, which the parts of a node share, and what is heard of others' joins."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protocols.member.context import Context
    from protocols.member.joining import Joining
    from protocols.wire.messages import JoinAborted, StaysOutside


class Entry:
    """This node's join, None for a founder."""

    def __init__(self, context: Context) -> None:
        self.joining: Joining | None = None
        self._context = context

    @property
    def under_way(self) -> Joining | None:
        """The join, as long as this node is still trying to get in."""
        joining = self.joining
        return joining if joining is not None and joining.on_the_way else None

    def ended(self, message: JoinAborted) -> None:
        """The scheduler has given a join up: this node's own, or that of another device."""
        if self.joining is not None and self._is_ours(message):
            pause_s = message.pause_ms / 1000
            self.joining.fail(message.reason, pause_s, stands_by=message.stands_by)
        elif message.stands_by:
            self._report(message)

    def stays_outside(self, message: StaysOutside) -> None:
        """A device, perhaps this one, follows from outside for now."""
        if self.joining is not None and self._is_ours(message):
            self.joining.stay_outside(message.reason)
        elif message.joiner != self._context.node:
            self._report(message)

    def _is_ours(self, message: JoinAborted | StaysOutside) -> bool:
        is_ours = message.joiner == self._context.node
        return is_ours and self.joining is not None and message.join == self.joining.number

    def _report(self, message: JoinAborted | StaysOutside) -> None:
        name = self._context.name(message.joiner)
        self._context.report("member_standby", node=name, reason=message.reason)
