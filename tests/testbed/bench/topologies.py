"""Random networks, and the trees and rings that the baselines of an all-reduce use on them.

The functions are pure: equal seeds and equal rates give equal results. Every pair of nodes is
connected, as on one switch; each direction has a rate of its own, and each node a limit. Rates are
in bytes/s. A tree maps every node to its parent, and its root to "".
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

from tests.bounds.packing import packing
from tests.bounds.summing import partition_bound
from tests.testbed.calibrate import TCP_SHARE
from tests.testbed.network import MBIT, Limit, Link, Network, Pair

Tree = dict[str, str]
MAX_NODES = 12  # as all partitions and rings are searched, and names are single letters


@dataclass(frozen=True, slots=True)
class Plan:
    """A network that was drawn: `rates` on the wire by (sender, receiver), `limit` of all that a
    node sends and of all that it receives (infinite for none), `delay_s` of every link, one way."""

    nodes: tuple[str, ...]
    rates: Mapping[Pair, float]
    limit: float
    delay_s: float

    def network(self) -> Network:
        """Return it as a network, not made yet."""
        links = {pair: Link(rate, self.delay_s) for pair, rate in self.rates.items()}
        bounded = self.limit < math.inf
        limits = {node: Limit(self.limit, self.limit) for node in self.nodes if bounded}
        return Network(self.nodes, links, limits=limits)

    def stretched(self, times: float) -> Plan:
        """Return the network on which everything takes so many times as long."""
        rates = {pair: rate / times for pair, rate in self.rates.items()}
        return Plan(self.nodes, rates, self.limit / times, self.delay_s * times)

    def slower(self, a: str, b: str) -> float:
        """Return the rate of the slower direction between two nodes."""
        return min(self.rates[a, b], self.rates[b, a])

    def goodput(self) -> list[list[float]]:
        """Return what TCP can carry from each node (row) to each other, limits left aside."""
        zero = 0.0
        return [
            [zero if a == b else self.rates[a, b] * TCP_SHARE for b in self.nodes]
            for a in self.nodes
        ]


def draw(
    count: int, seed: int, mbit: tuple[float, float], limit_mbit: float, delay_s: float
) -> Plan:
    """Return `count` nodes whose pairs have rates between the two in `mbit`, each way its own.

    limit_mbit: of each node, 0 for none. Raises ValueError for too few or too many nodes.
    """
    if not 2 <= count <= MAX_NODES:
        raise ValueError(f"2 to {MAX_NODES} nodes, not {count}")
    dice = random.Random(seed)
    nodes = tuple("abcdefghijkl"[:count])
    rates = {pair: dice.uniform(*mbit) * MBIT for pair in permutations(nodes, 2)}
    return Plan(nodes, rates, limit_mbit * MBIT or math.inf, delay_s)


def lower_bounds(plan: Plan, size: float) -> dict[str, float]:
    """Return lower bounds, in seconds, of the time of any all-reduce of `size` bytes per node.

    trees: the best packing of any trees, by a linear program that knows links and limits;
    partition: for any scheme that sends partial sums, limits left aside; delay: the longest.
    """
    rates = plan.goodput()
    limits = [plan.limit * TCP_SHARE] * len(plan.nodes) if plan.limit < math.inf else None
    return {
        "trees": size / packing(rates, up=limits, down=limits).rate,
        "partition": partition_bound(size, rates),
        "delay": plan.delay_s,
    }


# Trees


def star(plan: Plan) -> Tree:
    """Return the star whose slowest link is the fastest."""

    def slowest(hub: str) -> float:
        return min(plan.slower(hub, node) for node in plan.nodes if node != hub)

    hub = max(plan.nodes, key=slowest)
    return {node: "" if node == hub else hub for node in plan.nodes}


def balanced(nodes: Sequence[str], arity: int) -> Tree:
    """Return the balanced tree over the nodes in their order, whatever their links are."""
    return {node: nodes[(k - 1) // arity] if k else "" for k, node in enumerate(nodes)}


def widest(plan: Plan) -> Tree:
    """Return the maximum spanning tree by the slower direction, its root where it is shallowest."""
    pairs = combinations(plan.nodes, 2)
    edges = sorted(pairs, key=lambda pair: (-plan.slower(*pair), pair))
    group = {node: node for node in plan.nodes}
    near: dict[str, list[str]] = {node: [] for node in plan.nodes}
    for a, b in edges:
        if group[a] != group[b]:
            old = group[b]
            group = {node: group[a] if g == old else g for node, g in group.items()}
            near[a].append(b)
            near[b].append(a)
    return min((_rooted(near, node) for node in plan.nodes), key=lambda tree: len(levels(tree)))


def _rooted(near: Mapping[str, Sequence[str]], root: str) -> Tree:
    tree, queue = {root: ""}, [root]
    for at in queue:
        for other in near[at]:
            if other not in tree:
                tree[other] = at
                queue.append(other)
    return tree


def levels(tree: Tree) -> list[list[str]]:
    """Return the nodes of a tree by their distance from the root, the root first."""
    found = [[node for node, parent in tree.items() if not parent]]
    while below := [node for node, parent in tree.items() if parent in found[-1]]:
        found.append(below)
    return found


# Rings


def ring_order(plan: Plan) -> tuple[str, ...]:
    """Return the one-way ring whose slowest link is the fastest, from the first node on."""
    rates = sorted(set(plan.rates.values()), reverse=True)
    low, high = 0, len(rates) - 1  # a ring over all links exists
    while low < high:
        middle = (low + high) // 2
        if _ring(plan, rates[middle]):
            high = middle
        else:
            low = middle + 1
    return _ring(plan, rates[low])


def _ring(plan: Plan, least: float) -> tuple[str, ...]:
    """Return a ring over links of at least this rate, () if there is none."""
    first = plan.nodes[0]
    fast = {a: [b for b in plan.nodes if b != a and plan.rates[a, b] >= least] for a in plan.nodes}
    # For every set of nodes that a path from the first one can visit: its possible last nodes, each
    # with the node before it.
    number = {node: 1 << k for k, node in enumerate(plan.nodes)}
    before: dict[tuple[int, str], str] = {(number[first], first): ""}
    queue = [(number[first], first)]
    for used, at in queue:
        for to in fast[at]:
            step = (used | number[to], to)
            if not used & number[to] and step not in before:
                before[step] = at
                queue.append(step)
    everybody = (1 << len(plan.nodes)) - 1
    last = next((a for a in plan.nodes if (everybody, a) in before and first in fast[a]), "")
    ring: list[str] = []
    used = everybody
    while last:
        ring.insert(0, last)
        used, last = used & ~number[last], before[used, last]
    return tuple(ring)
