"""The join of this node, which the parts of a node share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protocols.member.joining import Joining


class Entry:
    """This node's join, None for a founder."""

    def __init__(self) -> None:
        self.joining: Joining | None = None

    @property
    def under_way(self) -> Joining | None:
        """The join, as long as this node is still trying to get in."""
        joining = self.joining
        return joining if joining is not None and joining.on_the_way else None
