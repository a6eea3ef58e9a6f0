"""What the scheduler asks a planner, and what it gets back.

Law: the protocols decide *when* to plan and check the answer; *how* to plan is the planner's. A
planner is a pure function, given to the node when it is built; `Informed` adds what has been
measured to each question.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from protocols.network.measures import NOTHING_KNOWN, Measures

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.cluster.policy import Policy
    from protocols.cluster.view import Edge, View


@dataclass(frozen=True, slots=True)
class Plan:
    """`parents` and `shares` in the order of the view's members (see `policy.Policy`)."""

    parents: tuple[bytes, ...]
    shares: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Offer:
    """A source of a pull: `rate` in bytes/s (None: not known), `delay_s` one way, `busy_bytes`
    that were asked of it and have not arrived."""

    node: bytes
    name: str
    rate: float | None
    delay_s: float
    busy_bytes: int


class Planner(Protocol):
    """Pure: equal arguments give equal answers."""

    def plan(
        self,
        view: View,
        micro_batches: int,
        away: tuple[bytes, ...],
        present: Policy | None = None,
        measures: Measures = NOTHING_KNOWN,
    ) -> Plan:
        """Return the tree and the shares for `view`; members in `away` get no micro-batch unless
        all are away. What `present` has is kept unless a change is worth it."""

    def neighbours(
        self, view: View, wanted: tuple[str, ...], measures: Measures = NOTHING_KNOWN
    ) -> tuple[bytes, ...]:
        """Return the members that a joiner shall link to, `wanted` (names) if given."""

    def links(self, view: View, measures: Measures = NOTHING_KNOWN) -> tuple[Edge, ...]:
        """Return the links to open beside those of `view`."""

    def assign(
        self, shards: tuple[int, ...], shard_bytes: int, offers: tuple[Offer, ...]
    ) -> dict[bytes, tuple[int, ...]]:
        """Divide equal `shards` among the sources of a pull."""


class Informed:
    """A planner that is told what has been measured; a `Planner` itself."""

    def __init__(self, planner: Planner, known: Callable[[], Measures]) -> None:
        self._planner = planner
        self._known = known

    def plan(
        self,
        view: View,
        micro_batches: int,
        away: tuple[bytes, ...],
        present: Policy | None = None,
        measures: Measures = NOTHING_KNOWN,
    ) -> Plan:
        """As `Planner.plan`."""
        return self._planner.plan(view, micro_batches, away, present, self._known())

    def neighbours(
        self, view: View, wanted: tuple[str, ...], measures: Measures = NOTHING_KNOWN
    ) -> tuple[bytes, ...]:
        """As `Planner.neighbours`."""
        return self._planner.neighbours(view, wanted, self._known())

    def links(self, view: View, measures: Measures = NOTHING_KNOWN) -> tuple[Edge, ...]:
        """As `Planner.links`."""
        return self._planner.links(view, self._known())

    def assign(
        self, shards: tuple[int, ...], shard_bytes: int, offers: tuple[Offer, ...]
    ) -> dict[bytes, tuple[int, ...]]:
        """As `Planner.assign`."""
        return self._planner.assign(shards, shard_bytes, offers)
