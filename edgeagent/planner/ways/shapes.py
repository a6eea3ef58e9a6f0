"""The shapes of other programs as ways: a star, a balanced k-ary tree, a maximum spanning tree.

They are there to be compared with, along the same data plane. Each is one tree whose links are used
in both directions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeagent.planner.measures import in_mbit
from edgeagent.planner.ways.loads import latency_s, peak
from edgeagent.planner.ways.shaped import ALONE, Shaped, not_both_ways
from edgeagent.planner.ways.way import ROOT, Way

if TYPE_CHECKING:
    from edgeagent.planner.ways.network import Network

Tree = tuple[int, ...]


def _best(network: Network, trees: list[Tree]) -> Way:
    """Return the tree with the least peak, and among equals with the least latency."""
    ways = [Way(tree, tree) for tree in trees]
    return min(ways, key=lambda way: (peak(network, [way]), latency_s(network, [way])))


def _told(network: Network, way: Way, what: str) -> Shaped:
    rate = in_mbit(1 / peak(network, [way]))
    return Shaped((way,), f"{what} {network.name(way.root)}, which sums {rate}")


def star(network: Network) -> Shaped:
    """Return the star around the member that makes the fastest one: a parameter server."""
    if network.count == 1:
        return ALONE
    hubs = np.flatnonzero((network.slower > 0).sum(axis=1) == network.count - 1).tolist()
    if not hubs:
        return Shaped(None, "no member has links both ways with all others, so there is no star")
    trees = [tuple(ROOT if v == hub else hub for v in range(network.count)) for hub in hubs]
    return _told(network, _best(network, trees), "a star around")


def kary(network: Network, arity: int = 2) -> Shaped:
    """Return a tree as shallow as one can be in which no member has more than `arity` children.

    From each root, members take the fastest of those links that lead to members not taken yet,
    first to members with the fewest such links, level by level. Where not all are connected with
    all, that may miss a tree which exists.
    """
    if arity < 1:
        raise ValueError(f"a member of a k-ary tree has at least one child, not {arity}")
    if network.count == 1:
        return ALONE
    depth, reach, level = 0, 1, 1
    while reach < network.count:
        depth, level = depth + 1, level * arity
        reach += level
    found = [
        tree for root in range(network.count) if (tree := _filled(network, root, arity, depth))
    ]
    if not found:
        words = f"no tree of depth {depth} with at most {arity} children each was found"
        return Shaped(None, words)
    return _told(network, _best(network, found), f"a {arity}-ary tree of depth {depth} from")


def _filled(network: Network, root: int, arity: int, depth: int) -> Tree | None:
    """Return the k-ary tree of at most this depth from one root, None if members are left over."""
    rate = network.slower
    parents = [ROOT] * network.count
    free = [v for v in range(network.count) if v != root]
    level = [root]
    for _ in range(depth):
        below: list[int] = []
        for at in level:
            near = [v for v in free if rate[at, v] > 0]
            choices = {v: sum(1 for w in free if rate[v, w] > 0) for v in near}
            near.sort(key=lambda v: (choices[v], -rate[at, v], v))
            for v in near[:arity]:
                parents[v] = at
                free.remove(v)
                below.append(v)
        level = below
    return None if free else tuple(parents)


def mst(network: Network) -> Shaped:
    """Return the maximum spanning tree by the slower direction of links, from the root with the
    least latency."""
    if network.count == 1:
        return ALONE
    near: list[list[int]] = [[] for _ in range(network.count)]
    reach = network.slower[0].copy()
    reach[0] = 0.0
    came, free = [0] * network.count, list(range(1, network.count))
    while free:
        new = max(free, key=lambda v: (reach[v], -v))
        if not reach[new] > 0:
            return not_both_ways(network)
        free.remove(new)
        near[new].append(came[new])
        near[came[new]].append(new)
        for v in free:
            if network.slower[new, v] > reach[v]:
                reach[v], came[v] = network.slower[new, v], new
    trees = [_hung(near, root) for root in range(network.count)]
    return _told(network, _best(network, trees), "the maximum spanning tree from")


def _hung(near: list[list[int]], root: int) -> Tree:
    """Return the parents in a tree that is given by each member's neighbours."""
    parents = [ROOT] * len(near)
    queue = [root]
    for at in queue:
        for v in near[at]:
            if v != parents[at]:
                parents[v] = at
                queue.append(v)
    return tuple(parents)
