"""The planner that the scheduler asks if nobody has installed another one.

It puts the algorithms of this package together: `StandardPlanner` implements
`protocols.scheduler.planning.Planner`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeagent.planner.neighbours import choose_neighbours, spare_links, usual_links
from edgeagent.planner.policies import custom_plan, request_of
from edgeagent.planner.shards import MAX_VALUE, Source, equal_shards, even_runs
from edgeagent.planner.shares import STEPS_OF_ALL, ShareRule, measured_shares
from edgeagent.planner.trees import plan_tree, word_tree
from edgeagent.planner.ways.of_view import ONE, PACKED, choose_ways, search_ways, ways_s
from edgeagent.planner.worth import least_step, predicted_step, worth
from protocols.cluster.standby import LEAST_OTHERS
from protocols.network.measures import NOTHING_KNOWN, Measures
from protocols.scheduler.planning import Found, Plan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgeagent.planner.policies import CustomPolicy
    from protocols.cluster.policy import Policy
    from protocols.cluster.standby import Costly
    from protocols.cluster.view import Edge, View
    from protocols.network.measures import Times
    from protocols.scheduler.planning import Offer

SHARD_OVERHEAD_S = 50e-6  # time per shard beside its bytes: a request, a header, a digest


class StandardPlanner:
    """Plans with what is measured: the fastest tree, shares by speed, a few good neighbours for a
    joiner, and shards divided so that all sources finish together.

    `payload_bytes` is what a round sums on each node, `chunk_bytes` the size of the pieces it
    travels in. `custom` is a user's own policy, which is asked for trees and shares before this
    planner's own algorithms are. `trees` names the shape along which chunks travel (`ways.SHAPES`).
    `rule`: what the job says about shares.
    """

    def __init__(
        self,
        payload_bytes: int = 1 << 20,
        chunk_bytes: int = 0,
        custom: CustomPolicy | None = None,
        trees: str = ONE,
        rule: ShareRule = STEPS_OF_ALL,
    ) -> None:
        self._payload_bytes = payload_bytes
        self._chunk_bytes = chunk_bytes
        self._custom = custom
        self._trees = trees
        self.rule = rule  # of which a step may show more than was known at first

    @property
    def inputs(self) -> dict[str, int | bool | str | float]:
        """The arguments this planner was made with, so that a replay can make an equal one. A
        user's policy cannot be written down; only whether there is one is told. What parts of a
        model cost is told as it is known now, so plans of the first round may not replay."""
        return {
            "payload_bytes": self._payload_bytes,
            "chunk_bytes": self._chunk_bytes,
            "custom": self._custom is not None,
            "trees": self._trees,
            "fixed": self.rule.cost.fixed,
            "square": self.rule.cost.square,
            "least": self.rule.least,
            "least_gain": self.rule.least_gain,
        }

    def plan(
        self,
        view: View,
        micro_batches: int,
        away: tuple[bytes, ...],
        present: Policy | None = None,
        measures: Measures = NOTHING_KNOWN,
        found: Found | None = None,
    ) -> Plan:
        """Return the tree, the shares and the ways for `view`, keeping those of `present` where
        possible."""

        def standard() -> Plan:
            return self._standard(view, micro_batches, away, present, measures, found)

        if self._custom is None:
            return standard()
        request = request_of(view, micro_batches, away, measures, self._payload_bytes)
        return custom_plan(self._custom, request, view, standard)

    def _standard(
        self,
        view: View,
        micro_batches: int,
        away: tuple[bytes, ...],
        present: Policy | None,
        measures: Measures,
        found: Found | None,
    ) -> Plan:
        same = present is not None and present.view.nodes == view.nodes
        parents = present.parents if present is not None and same else None
        shares = present.shares if present is not None and same else None
        tree = plan_tree(
            view, measures, self._payload_bytes, parents, chunk_bytes=self._chunk_bytes
        )
        names = {m.node: m.name for m in view.members}
        sizes = (self._payload_bytes, self._chunk_bytes)
        ways, why = choose_ways(view, measures, *sizes, self._trees, tree.parents, present, found)
        sums_s = tree.predicted_s or 0.0
        if ways and measures.links:
            sums_s = ways_s(view, measures, *sizes, ways, present)
        if ways and not (present and present.stripes):
            # With a divided optimizer results wait for the word, and some may take its tree.
            tree = word_tree(view, measures, parents, sums_s)
        split = measured_shares(
            view.nodes,
            micro_batches,
            away,
            measures.speeds,
            shares,
            names=names,
            rule=self.rule,
            beside_s=sums_s,
        )
        reason = "; ".join(part for part in (tree.reason, why, split.reason) if part)
        return Plan(tree.parents, split.shares, reason, ways)

    @property
    def searches(self) -> bool:
        """Whether there is anything to search for: one tree, and a user's own policy, are planned
        at once."""
        return self._trees != ONE and self._custom is None

    def search(
        self, policy: Policy, measures: Measures = NOTHING_KNOWN, before: Found | None = None
    ) -> Found:
        """Return the ways of the shape that was asked for over the links of `policy`."""
        sizes = (self._payload_bytes, self._chunk_bytes)
        return search_ways(policy, measures, *sizes, self._trees, before)

    def neighbours(
        self,
        view: View,
        wanted: tuple[str, ...],
        most: int = 0,
        measures: Measures = NOTHING_KNOWN,
    ) -> tuple[bytes, ...]:
        """Return the members that a joiner shall link to: those it wants, else the best ones."""
        return choose_neighbours(view, wanted, measures, most)

    def links(self, view: View, measures: Measures = NOTHING_KNOWN) -> tuple[Edge, ...]:
        """Return the links to open: the usual ones of each member, and those without which the loss
        of one link would divide the members."""
        return tuple(dict.fromkeys((*usual_links(view, measures), *spare_links(view, measures))))

    def rate(
        self, sender: bytes, receiver: bytes, measures: Measures = NOTHING_KNOWN
    ) -> float | None:
        """Return what was measured of a link, in bytes/s."""
        found = measures.links.get((sender, receiver))
        return found.rate if found is not None else None

    def step_s(
        self, view: View, micro_batches: int, measures: Measures = NOTHING_KNOWN
    ) -> float | None:
        """Return how long computing and summing take in a step of the members of `view`: at least,
        if there may be several ways."""
        predicted = least_step if self._trees == PACKED else predicted_step
        sizes = (self._payload_bytes, self._chunk_bytes)
        return predicted(view, micro_batches, measures, *sizes, self.rule)

    def costly(
        self,
        view: View,
        micro_batches: int,
        times: Mapping[bytes, Times],
        step_s: float,
        measures: Measures = NOTHING_KNOWN,
    ) -> Costly | None:
        """Return which members cost the others more than they give."""
        return worth(
            view,
            micro_batches,
            measures,
            times,
            self._payload_bytes,
            step_s=step_s,
            chunk_bytes=self._chunk_bytes,
            rule=self.rule,
            stay=LEAST_OTHERS,
        )

    def assign(
        self, shards: tuple[int, ...], shard_bytes: int, offers: tuple[Offer, ...]
    ) -> dict[bytes, tuple[int, ...]]:
        """Divide `shards` (all of `shard_bytes`) so that all sources finish together.

        While no rate is known all sources get equally many. A source whose own rate is not known
        counts as the slowest.
        """
        known = [o.rate for o in offers if o.rate]
        if not known:
            runs = even_runs(len(shards), len(offers))
            return {o.node: shards[r.start : r.stop] for o, r in zip(offers, runs, strict=True)}
        sources = []
        for offer in offers:
            rate = min(offer.rate or min(known), MAX_VALUE)
            late = min(offer.busy_bytes / rate, MAX_VALUE)
            sources.append(Source(min(offer.delay_s, MAX_VALUE), late, rate, offer.name))
        plan = equal_shards(len(shards), shard_bytes, sources, SHARD_OVERHEAD_S)
        return {
            offer.node: tuple(shards[k] for k in plan.shards(position))
            for position, offer in enumerate(offers)
        }
