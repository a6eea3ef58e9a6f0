"""What the parts of one shell share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from protocols import events
    from protocols.member.node import Node


class Hub(Protocol):
    """The node, while there is one, and the way of an event to it."""

    @property
    def node(self) -> Node | None:
        """The node that runs now."""

    def handle(self, event: events.Event) -> None:
        """Give the node an event, as soon as it has done with the one before."""
