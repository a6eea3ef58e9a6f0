"""The ways of a cluster: from a view and what is measured of it to ways as a policy holds them.

The planner's modules count members and give the root the parent -1; a policy has one byte for each
member, and at the root its own number. Nothing is planned before something is measured, since ways
over unknown links would be no better than the tree.
"""

from __future__ import annotations

import math
from functools import lru_cache
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
KEPT = "ways in force kept, others would not save 15%"  # `trees.LEAST_GAIN`
RATE_STEP = 1.05  # rates are rounded to powers of this, so that their noise makes no other plan


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
    links = tuple((ends, rate, network.delays[ends]) for ends, rate in network.rates.items())
    names = tuple(m.name for m in view.members)
    ways, why = _shape(name, links, names, payload_bytes, chunk_bytes)
    if ways is None:
        return (), why
    if present is not None and present.view.nodes == view.nodes:
        in_force = tuple(_counted(way) for way in present.ways)
        if not in_force and name == PACKED:
            in_force = (_tree_way(present),)
        if in_force and fits(network, in_force):
            sizes = (payload_bytes, chunk_bytes)
            times = [predicted_s(network, known, *sizes) for known in (in_force, ways)]
            if not significant(*times):
                return _for_policy(in_force, name), f"{len(in_force)} {KEPT}"
    return _for_policy(ways, name), why


@lru_cache(8)
def _shape(
    name: str,
    links: tuple[tuple[tuple[int, int], float, float], ...],
    names: tuple[str, ...],
    payload_bytes: float,
    chunk_bytes: float,
) -> tuple[tuple[Way, ...] | None, str]:
    """Return the ways called `name`, None if the links have no such shape; and why.

    `links` has both ends, bytes/s and seconds of each direction. The result is kept, because to
    pack ways takes 0.2 s for 12 members, and the scheduler's other work waits meanwhile; nearly
    always it asks again with equal numbers, as these are rounded.
    """
    free = (math.inf,) * len(names)
    rates = {ends: rate for ends, rate, _ in links}
    network = Network(rates, {ends: delay for ends, _, delay in links}, free, free, names)
    if name != PACKED:
        shaped = named(name, network, payload_bytes, chunk_bytes)
        return shaped.ways, shaped.reason
    plan = plan_ways(network, payload_bytes, chunk_bytes)
    return plan.ways, plan.reason


def network_of(view: View, measures: Measures) -> Network:
    """Return the links of `view` with their rates and delays, rounded; typical ones where not
    measured."""
    filled, nodes = Filled(measures), view.nodes
    numbers = {node: k for k, node in enumerate(nodes)}
    rates: dict[tuple[int, int], float] = {}
    delays: dict[tuple[int, int], float] = {}
    for e in view.edges:
        for a, b in ((e.low, e.high), (e.high, e.low)):
            steps = round(math.log(filled.rate(a, b), RATE_STEP))
            rates[numbers[a], numbers[b]] = RATE_STEP**steps
            milliseconds = round(1000 * filled.delay_s(a, b))
            delays[numbers[a], numbers[b]] = milliseconds / 1000
    free = (math.inf,) * len(nodes)
    return Network(rates, delays, free, free, tuple(m.name for m in view.members))


def _counted(way: PolicyWay) -> Way:
    up, down = (
        tuple(ROOT if parent == k else parent for k, parent in enumerate(parents))
        for parents in (way.up, way.down)
    )
    return Way(up, down, way.weight)


def _tree_way(policy: Policy) -> Way:
    """Return the tree of a policy without ways, as a way."""
    nodes = policy.view.nodes
    up = tuple(nodes.index(parent) if parent else ROOT for parent in policy.parents)
    return Way(up, up, 1)


def _for_policy(ways: tuple[Way, ...], name: str) -> tuple[PolicyWay, ...]:
    """Return the ways as a policy holds them: none if one tree was found to be as good as many,
    because the policy has a tree."""
    if name == PACKED and len(ways) == 1 and ways[0].up == ways[0].down:
        return ()

    def parents(tree: tuple[int, ...]) -> bytes:
        return bytes(k if parent == ROOT else parent for k, parent in enumerate(tree))

    return tuple(PolicyWay(parents(way.up), parents(way.down), way.weight) for way in ways)
