"""The interface to the planner: what the scheduler asks it, and what it answers.

The protocols decide *when* to plan, and check the answer; *how* to plan is the planner's business,
so that policies of users can take its place. A planner is a pure function, which the node is given
when it is built; `Informed` adds what has been measured to each question.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from protocols.network.measures import NOTHING_KNOWN, Measures

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from protocols.cluster.policy import Policy
    from protocols.cluster.standby import Costly
    from protocols.cluster.view import Edge, View
    from protocols.cluster.ways import Way
    from protocols.network.measures import Times


@dataclass(frozen=True, slots=True)
class Plan:
    """A tree, shares and ways for a view: `parents` and `shares` in the order of its members (see
    `policy.Policy`), and the `reason` for this choice, for people."""

    parents: tuple[bytes, ...]
    shares: tuple[int, ...]
    reason: str
    ways: tuple[Way, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """Ways that a planner has searched for, and the `reason` for them, for people.

    `over_floor`: the predicted time of a round along them, as a multiple of the time that no ways
    can go below. `room`: of how many parts each member could be the root, by what it holds of a
    divided optimizer; empty if it is not divided.
    """

    ways: tuple[Way, ...]
    reason: str
    over_floor: float = 1.0
    room: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Offer:
    """A source of a pull. `rate`: bytes/s, None if it is not known. `delay_s`: one way.
    `busy_bytes`: how much was asked of it and has not arrived. `link_rate`: bytes/s that its link
    can carry at most, as far as that is known."""

    node: bytes
    name: str
    rate: float | None
    delay_s: float
    busy_bytes: int
    link_rate: float | None = None


class Planner(Protocol):
    """A planner; pure, so that equal arguments give equal answers.

    A plan is wanted at once, since messages and chunks wait for it; good ways take long to find.
    So `plan` only chooses among the ways in force and those that `search` has found, and `search`
    runs beside everything else (`effects.SearchWays`).
    """

    @property
    def searches(self) -> bool:
        """Whether `search` can find anything; if not, it is never called."""

    def plan(
        self,
        view: View,
        micro_batches: int,
        away: tuple[bytes, ...],
        present: Policy | None = None,
        measures: Measures = NOTHING_KNOWN,
        found: Found | None = None,
    ) -> Plan:
        """Return the tree, the shares and the ways for `view`, quickly. Members in `away` get no
        micro-batch, unless all are away. What `present` says is kept unless a change is worth it.
        `found` is what the last search found, perhaps for another view. Without `present` a tree
        has to do."""

    def search(
        self, policy: Policy, measures: Measures = NOTHING_KNOWN, before: Found | None = None
    ) -> Found:
        """Return the best ways over the links of `policy`, which is in force; this may take
        seconds. `before` is what the last search found, and is returned again, soon, if another
        search is not worth its time."""

    def neighbours(
        self,
        view: View,
        wanted: tuple[str, ...],
        most: int = 0,
        measures: Measures = NOTHING_KNOWN,
    ) -> tuple[bytes, ...]:
        """Return the members that a joiner is to link to: those with the names `wanted`, if any,
        otherwise at most `most` (0: as many as is usual)."""

    def links(self, view: View, measures: Measures = NOTHING_KNOWN) -> tuple[Edge, ...]:
        """Return the links that should be opened in addition to those of `view`."""

    def rate(
        self, sender: bytes, receiver: bytes, measures: Measures = NOTHING_KNOWN
    ) -> float | None:
        """Return how many bytes/s the link between two members carries, None if that is not
        known."""

    def step_s(
        self, view: View, micro_batches: int, measures: Measures = NOTHING_KNOWN
    ) -> float | None:
        """Return how long the members of `view` need at least to compute and sum one step, in
        seconds; None if too little is known. A member whose speed is not known counts as a usual
        one."""

    def costly(
        self,
        view: View,
        micro_batches: int,
        times: Mapping[bytes, Times],
        step_s: float,
        measures: Measures = NOTHING_KNOWN,
    ) -> Costly | None:
        """Return which members cost the others more than they give, None if none is known to.
        `times` are those of the last step of each member, `step_s` what a step takes at present, in
        seconds."""

    def assign(
        self, shards: tuple[int, ...], shard_bytes: int, offers: tuple[Offer, ...]
    ) -> dict[bytes, tuple[int, ...]]:
        """Return source -> its shards: `shards`, of `shard_bytes` each, divided among `offers`."""


class Informed:
    """A `Planner` that hands each question to another one, with all that has been measured."""

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
        found: Found | None = None,
    ) -> Plan:
        """As `Planner.plan`."""
        return self._planner.plan(view, micro_batches, away, present, self._known(), found)

    @property
    def searches(self) -> bool:
        """As `Planner.searches`."""
        return self._planner.searches

    def search(
        self, policy: Policy, measures: Measures = NOTHING_KNOWN, before: Found | None = None
    ) -> Found:
        """As `Planner.search`."""
        return self._planner.search(policy, self._known(), before)

    def neighbours(
        self,
        view: View,
        wanted: tuple[str, ...],
        most: int = 0,
        measures: Measures = NOTHING_KNOWN,
    ) -> tuple[bytes, ...]:
        """As `Planner.neighbours`."""
        return self._planner.neighbours(view, wanted, most, self._known())

    def links(self, view: View, measures: Measures = NOTHING_KNOWN) -> tuple[Edge, ...]:
        """As `Planner.links`."""
        return self._planner.links(view, self._known())

    def rate(
        self, sender: bytes, receiver: bytes, measures: Measures = NOTHING_KNOWN
    ) -> float | None:
        """As `Planner.rate`."""
        return self._planner.rate(sender, receiver, self._known())

    def step_s(
        self, view: View, micro_batches: int, measures: Measures = NOTHING_KNOWN
    ) -> float | None:
        """As `Planner.step_s`."""
        return self._planner.step_s(view, micro_batches, self._known())

    def costly(
        self,
        view: View,
        micro_batches: int,
        times: Mapping[bytes, Times],
        step_s: float,
        measures: Measures = NOTHING_KNOWN,
    ) -> Costly | None:
        """As `Planner.costly`."""
        return self._planner.costly(view, micro_batches, times, step_s, self._known())

    def assign(
        self, shards: tuple[int, ...], shard_bytes: int, offers: tuple[Offer, ...]
    ) -> dict[bytes, tuple[int, ...]]:
        """As `Planner.assign`."""
        return self._planner.assign(shards, shard_bytes, offers)
