"""NetStorm's multi-root fastest-aggregation-path tree as ways, without its auxiliary paths.

Every root has the tree of its shortest paths, where a link is as long as a byte takes in its slower
direction. A tree's delay is its longest path (the paper's Theorem 1), a root's quality is
1 / delay, and each root gets a share of the vector in proportion to its quality. The paper's
auxiliary paths are in `auxiliary.py`.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from edgeagent.planner.ways.shaped import ALONE, Shaped, not_both_ways
from edgeagent.planner.ways.single import widest
from edgeagent.planner.ways.way import ROOT, Way

if TYPE_CHECKING:
    from edgeagent.planner.ways.network import Network

PARTS = 128  # to which roots' shares are rounded


def fapt(network: Network, roots: int | None = None) -> Shaped:
    """Return the trees of the `roots` members of the best quality, of all if None."""
    if roots is not None and roots < 1:
        raise ValueError(f"a multi-root tree has at least one root, not {roots}")
    if network.count == 1:
        return ALONE
    if widest(network) == float("inf"):
        return not_both_ways(network)
    near = [
        [(v, 1 / float(network.slower[u, v])) for v in range(network.count) if network.slower[u, v]]
        for u in range(network.count)
    ]
    trees = [shortest_paths(near, root) for root in range(network.count)]
    kept = sorted(range(network.count), key=lambda r: (trees[r][0], r))[:roots]
    weights = shares([1 / trees[r][0] for r in kept], PARTS)
    ways = tuple(
        Way(trees[r][1], trees[r][1], weight)
        for r, weight in sorted(zip(kept, weights, strict=True))
        if weight
    )
    return Shaped(
        ways, f"fastest aggregation paths from {len(ways)} roots, the best {network.name(kept[0])}"
    )


def shares(qualities: list[float], parts: int) -> list[int]:
    """Divide `parts` in proportion to `qualities`; what rounding leaves goes to those that it has
    cost the most, the first among equals."""
    total = sum(qualities)
    exact = [parts * quality / total for quality in qualities]
    found = [int(share) for share in exact]
    short = sorted(range(len(exact)), key=lambda k: found[k] - exact[k])
    for k in short[: parts - sum(found)]:
        found[k] += 1
    return found


def shortest_paths(near: list[list[tuple[int, float]]], root: int) -> tuple[float, tuple[int, ...]]:
    """Return (longest path, parents) of the tree of shortest paths from `root`; of equally long
    paths the one with fewer hops, then the one by the smaller parent."""
    parents = [ROOT] * len(near)
    done = [False] * len(near)
    queue = [(0.0, 0, ROOT, root)]
    farthest = 0.0
    while queue:
        length, hops, parent, at = heappop(queue)
        if done[at]:
            continue
        done[at], parents[at], farthest = True, parent, length
        for v, weight in near[at]:
            if not done[v]:
                heappush(queue, (length + weight, hops + 1, at, v))
    return farthest, tuple(parents)
