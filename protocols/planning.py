"""What the scheduler asks a planner, and what it gets back.

Law: the protocols decide *when* to plan and check the answer; *how* to plan is the planner's. A
planner is a pure function, given to the node when it is built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from protocols.view import View


@dataclass(frozen=True, slots=True)
class Plan:
    """`parents` and `shares` in the order of the view's members (see `policy.Policy`)."""

    parents: tuple[bytes, ...]
    shares: tuple[int, ...]
    reason: str


class Planner(Protocol):
    """Pure: equal arguments give equal answers."""

    def plan(self, view: View, micro_batches: int, away: tuple[bytes, ...]) -> Plan:
        """Return the tree and the shares for `view`; members in `away` get no micro-batch unless
        all are away."""

    def neighbours(self, view: View, wanted: tuple[str, ...]) -> tuple[bytes, ...]:
        """Return the members that a joiner shall link to, `wanted` (names) first if given."""

    def assign(
        self, shards: tuple[int, ...], sources: tuple[bytes, ...]
    ) -> dict[bytes, tuple[int, ...]]:
        """Divide equal `shards` among `sources`."""
