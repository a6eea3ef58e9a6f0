"""NetStorm's multi-root trees together with its auxiliary paths, as ways.

The paper's Algorithm 3 finds auxiliary paths: shortest paths over those links that no path found
before uses, again and again until all links are used. There a sender puts a chunk onto an auxiliary
path while the queue of its primary path is full, and the devices between only forward it.

Here each of these layers of paths is a tree for each root, with some of the root's chunks. Two
things differ from the paper, because a chunk has to be counted exactly once even if devices and
links fail under way, and a tree says who waits for whom. A device on an auxiliary path adds its own
part to what it passes on, where it would send that part by itself otherwise. And the queues are
those of the plan: one part of a root's chunks after the other goes to that of its trees on which it
would be through first, behind all parts that were placed before.

A member that no unused link leads to takes a path with as few used links as it can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeagent.planner.ways.fapt import PARTS, shares, shortest_paths
from edgeagent.planner.ways.shaped import ALONE, Shaped, not_both_ways
from edgeagent.planner.ways.single import widest
from edgeagent.planner.ways.way import ROOT, Way, merged
from protocols.cluster.ways import turns

if TYPE_CHECKING:
    from edgeagent.planner.ways.network import Network

Parents = tuple[int, ...]
Edge = tuple[int, int]  # the lower member first


def fapt_with_auxiliary(network: Network) -> Shaped:
    """Return the trees of all roots, of shortest paths and of auxiliary paths."""
    if network.count == 1:
        return ALONE
    if widest(network) == float("inf"):
        return not_both_ways(network)
    layers = _layers(network)
    qualities = [1 / delay for delay, _ in layers[0]]
    waits: dict[Edge, float] = {}  # seconds, of a byte of each part, that a link has before it
    placed: list[Way] = []
    for root in turns(shares(qualities, PARTS)):
        trees = [layer[root][1] for layer in layers]
        through = [_through(network, tree, waits) for tree in trees]
        # Of trees that end with the same link, the one that leaves the other links less to do.
        ends = [(max(times.values()), sum(times.values())) for times in through]
        first = ends.index(min(ends))
        waits.update(through[first])
        placed.append(Way(trees[first], trees[first]))
    ways = merged(placed)
    best = network.name(max(range(network.count), key=qualities.__getitem__))
    return Shaped(
        ways,
        f"fastest aggregation paths from {network.count} roots with auxiliary paths, "
        f"{len(ways)} trees in {len(layers)} layers, the best root {best}",
    )


def _layers(network: Network) -> list[list[tuple[float, Parents]]]:
    """Return (longest path, tree) of each layer by root: first those of shortest paths, then those
    over links that no layer before uses (Algorithm 3)."""
    members = range(network.count)
    lengths = {
        (u, v): 1 / float(network.slower[u, v])
        for u in members
        for v in members
        if u < v and network.slower[u, v]
    }
    longer = 1.0 + sum(lengths.values())  # than any path: a used link is worse than all unused ones
    used: set[Edge] = set()
    layers: list[list[tuple[float, Parents]]] = []
    while len(used) < len(lengths):
        near: list[list[tuple[int, float]]] = [[] for _ in members]
        for (u, v), length in lengths.items():
            weight = length + longer * ((u, v) in used)
            near[u].append((v, weight))
            near[v].append((u, weight))
        layers.append([shortest_paths(near, root) for root in members])
        for _, tree in layers[-1]:
            used.update(_edges(tree))
    return layers


def _edges(tree: Parents) -> list[Edge]:
    return [(min(v, p), max(v, p)) for v, p in enumerate(tree) if p != ROOT]


def _through(network: Network, tree: Parents, waits: dict[Edge, float]) -> dict[Edge, float]:
    """Return when each link of a tree would be through with one more part."""
    return {edge: waits.get(edge, 0.0) + 1 / float(network.slower[edge]) for edge in _edges(tree)}
