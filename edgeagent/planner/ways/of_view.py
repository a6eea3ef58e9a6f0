"""The ways of a cluster: from a view and what is measured of it to ways as a policy holds them.

The planner's modules count members and give the root the parent -1; a policy has one byte for each
member, and at the root its own number. Nothing is planned before something is measured, since ways
over unknown links would be no better than the tree.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from edgeagent.planner.measures import Filled
from edgeagent.planner.trees import significant
from edgeagent.planner.ways.choice import fits, plan_ways
from edgeagent.planner.ways.loads import predicted_s
from edgeagent.planner.ways.named import named
from edgeagent.planner.ways.network import Network
from edgeagent.planner.ways.way import ROOT, Way
from protocols.cluster.ways import Way as PolicyWay

if TYPE_CHECKING:
    from protocols.cluster.policy import Policy
    from protocols.cluster.view import View
    from protocols.network.measures import Measures

ONE = "one"  # no ways: every chunk takes the policy's tree
PACKED = "packed"
KEPT = "ways in force kept"


def ways_of(
    view: View,
    measures: Measures,
    payload_bytes: float,
    chunk_bytes: float,
    name: str,
    present: Policy | None,
) -> tuple[tuple[PolicyWay, ...], str]:
    """Return the ways of the shape called `name` over the members of `view`, and why these.

    There are none if one tree is as good, if nothing is measured yet, or if the links have no such
    shape. The ways of `present` stay if they still fit the view and others would not save 15 %.
    """
    if name == ONE or len(view.nodes) < 2 or not measures.links:
        return (), ""
    network = network_of(view, measures)
    same = present is not None and present.view.nodes == view.nodes
    in_force = tuple(_counted(way) for way in present.ways) if present is not None and same else ()
    if name == PACKED:
        plan = plan_ways(network, payload_bytes, chunk_bytes, in_force or None)
        is_tree = len(plan.ways) == 1 and plan.ways[0].up == plan.ways[0].down
        return ((), "") if is_tree else (_for_policy(plan.ways), plan.reason)
    shaped = named(name, network, payload_bytes, chunk_bytes)
    if shaped.ways is None:
        return (), shaped.reason
    if in_force and fits(network, in_force):
        times = [
            predicted_s(network, ways, payload_bytes, chunk_bytes)
            for ways in (in_force, shaped.ways)
        ]
        if not significant(*times):
            return _for_policy(in_force), KEPT
    return _for_policy(shaped.ways), shaped.reason


def network_of(view: View, measures: Measures) -> Network:
    """Return the links of `view` with their rates and delays; typical ones where not measured."""
    filled, nodes = Filled(measures), view.nodes
    numbers = {node: k for k, node in enumerate(nodes)}
    rates: dict[tuple[int, int], float] = {}
    delays: dict[tuple[int, int], float] = {}
    for e in view.edges:
        for a, b in ((e.low, e.high), (e.high, e.low)):
            rates[numbers[a], numbers[b]] = filled.rate(a, b)
            delays[numbers[a], numbers[b]] = filled.delay_s(a, b)
    free = (math.inf,) * len(nodes)
    return Network(rates, delays, free, free, tuple(m.name for m in view.members))


def _counted(way: PolicyWay) -> Way:
    up, down = (
        tuple(ROOT if parent == k else parent for k, parent in enumerate(parents))
        for parents in (way.up, way.down)
    )
    return Way(up, down, way.weight)


def _for_policy(ways: tuple[Way, ...]) -> tuple[PolicyWay, ...]:
    def parents(tree: tuple[int, ...]) -> bytes:
        return bytes(k if parent == ROOT else parent for k, parent in enumerate(tree))

    return tuple(PolicyWay(parents(way.up), parents(way.down), way.weight) for way in ways)
