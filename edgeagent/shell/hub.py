"""What the parts of one shell share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from edgeagent.planner.work_cost import WorkCost
    from protocols import events
    from protocols.member.node import Node


class Hub(Protocol):
    """Gives the parts of the shell access to the node, while there is one, and lets them send it
    events."""

    @property
    def node(self) -> Node | None:
        """The node that runs now."""

    def handle(self, event: events.Event) -> None:
        """Give the node an event once it has finished the one before."""

    def learned_cost(self, cost: WorkCost) -> None:
        """Use what the trainer has found that parts of the model cost."""
