"""Ways for those who are left, quickly: after a loss, training waits for these.

What still works of each tree stays. Members that have lost their parent are hung on the nearest
others by load, with all that are below them. A better plan can follow at leisure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from edgeagent.planner.ways.growth import levelled
from edgeagent.planner.ways.way import ROOT, Way, merged

if TYPE_CHECKING:
    from edgeagent.planner.ways.network import Network

LOST = -2  # in the place of a parent that is gone, or to which there is no link any more
NEW = -1  # in `kept`, in the place of the former number of a member that is new


def repair(ways: Sequence[Way], kept: Sequence[int], network: Network) -> tuple[Way, ...]:
    """Return ways for the members of `network`, as like `ways` as the links allow.

    `kept[v]` is the number that member v had in `ways`, or -1 if it was not among them. Without
    ways, or if none of their members is left, there is a single shallow pair of trees. Raises
    ValueError if the links do not connect all members, or if `kept` does not fit.
    """
    if len(kept) != network.count:
        raise ValueError(f"{len(kept)} former numbers for {network.count} members")
    if ways and not all(NEW <= old < len(ways[0].up) for old in kept):
        raise ValueError(f"there were {len(ways[0].up)} members; kept names another")
    network.check_connected()
    if network.count == 1:
        return (Way((ROOT,), (ROOT,), sum(way.weight for way in ways) or 1),)
    if not ways or all(old == NEW for old in kept):
        return (_shallow(network),)
    return merged(_Repair(network, kept, len(ways[0].up)).run(ways))


def _shallow(network: Network) -> Way:
    """Return the trees in which all are as near to the root as can be, along the fastest links."""
    farthest = np.maximum(network.hops.max(axis=0), network.hops.max(axis=1))
    root = int(farthest.argmin())
    lengths = np.stack((network.per_byte, network.per_byte.T))
    away = np.stack((network.hops[root], network.hops.T[root]))
    roots, depth = np.full(2, root), np.full(2, network.count)
    down, up = levelled(lengths, away, roots, depth)[1].tolist()
    down[root] = up[root] = ROOT
    return Way(tuple(up), tuple(down))


class _Repair:
    """The loads so far, in plain lists, since most trees need a few steps only.

    `load[u][v]` is how many parts u sends to v. Parents are member numbers, `ROOT` or `LOST`.
    """

    def __init__(self, network: Network, kept: Sequence[int], former: int) -> None:
        self.count = network.count
        self.kept = kept
        self.place = [LOST] * former
        for new, old in enumerate(kept):
            if old != NEW:
                self.place[old] = new
        self.per_byte: list[list[float]] = network.per_byte.tolist()
        self.linked = [[cost < float("inf") for cost in row] for row in self.per_byte]
        self.up = [1 / limit for limit in network.up_limits]
        self.down = [1 / limit for limit in network.down_limits]
        rate = 1 / network.per_byte
        self.strength: list[float] = (rate.sum(axis=0) + rate.sum(axis=1)).tolist()
        self.rooted = [0] * self.count
        self.load = [[0] * self.count for _ in range(self.count)]
        self.sent = [0] * self.count
        self.received = [0] * self.count

    def run(self, ways: Sequence[Way]) -> list[Way]:
        """Count what stays of all ways first, then hang what is loose where it costs least."""
        left = [(*self.remains(way), way.weight) for way in ways]
        for up, down, weight in left:
            for v in range(self.count):
                if up[v] >= 0:
                    self.count_in(v, up[v], weight)
                if down[v] >= 0:
                    self.count_in(down[v], v, weight)
        found = []
        for up, down, weight in left:
            root = up.index(ROOT)
            if LOST in up:
                self.hang(up, root, weight, reduce=True)
            if LOST in down:
                self.hang(down, root, weight, reduce=False)
            found.append(Way(tuple(up), tuple(down), weight))
        return found

    def remains(self, way: Way) -> tuple[list[int], list[int]]:
        """Return the parents of a way that are left, on the reduce tree and on the spread tree."""
        up, down = [LOST] * self.count, [LOST] * self.count
        for v, old in enumerate(self.kept):
            if old == NEW:
                continue
            parent = self.place[way.up[old]] if way.up[old] != ROOT else LOST
            if parent != LOST and self.linked[v][parent]:
                up[v] = parent
            parent = self.place[way.down[old]] if way.down[old] != ROOT else LOST
            if parent != LOST and self.linked[parent][v]:
                down[v] = parent
        root = self.place[way.root]
        if root == LOST:
            root = self.heir(way, up)
        self.rooted[root] += way.weight
        up[root] = down[root] = ROOT
        return up, down

    def heir(self, way: Way, up: list[int]) -> int:
        """Return the new root of a way that has lost its own: of the members that sent to the lost
        one, or are loose for another reason, the one with the fewest parts for its links."""
        loose = [v for v in range(self.count) if up[v] == LOST]
        return min(loose, key=lambda v: ((self.rooted[v] + way.weight) / self.strength[v], v))

    def count_in(self, u: int, v: int, weight: int) -> None:
        """Add (or, negative, take out) what u sends to v."""
        self.load[u][v] += weight
        self.sent[u] += weight
        self.received[v] += weight

    def price(self, u: int, v: int, weight: int) -> float:
        """Return the seconds per byte at the link, sender and receiver if u sends to v, too."""
        at_link = (self.load[u][v] + weight) * self.per_byte[u][v]
        sender = (self.sent[u] + weight) * self.up[u]
        return max(at_link, sender, (self.received[v] + weight) * self.down[v])

    def hang(self, parents: list[int], root: int, weight: int, *, reduce: bool) -> None:
        """Complete a tree. A member whose parent is still there leaves it only if no other way can
        reach those beside it."""
        children: list[list[int]] = [[] for _ in parents]
        for v, parent in enumerate(parents):
            if parent >= 0:
                children[parent].append(v)
        reached = [False] * self.count
        inside = self.climb(root, children, reached)
        while len(inside) < self.count:
            outside = [v for v in range(self.count) if not reached[v]]
            loose = [v for v in outside if parents[v] == LOST]
            pairs = self.pairs(inside, loose, reduce) or self.pairs(inside, outside, reduce)
            parent, v = self.cheapest(pairs, weight, reduce)
            if parents[v] != LOST:
                children[parents[v]].remove(v)
                self.count_in(*((v, parents[v]) if reduce else (parents[v], v)), -weight)
            parents[v] = parent
            self.count_in(*((v, parent) if reduce else (parent, v)), weight)
            inside += self.climb(v, children, reached)

    def climb(self, top: int, children: list[list[int]], reached: list[bool]) -> list[int]:
        """Return a member and all below it, and mark them as reached."""
        queue = [top]
        reached[top] = True
        for at in queue:
            for v in children[at]:
                reached[v] = True
                queue.append(v)
        return queue

    def pairs(self, inside: list[int], outside: list[int], reduce: bool) -> list[tuple[int, int]]:
        """Return every (parent, member) with a link between the two, the parent inside."""
        linked = self.linked
        if reduce:
            return [(u, v) for v in outside for u in inside if linked[v][u]]
        return [(u, v) for v in outside for u in inside if linked[u][v]]

    def cheapest(self, pairs: list[tuple[int, int]], weight: int, reduce: bool) -> tuple[int, int]:
        """Return the pair whose link, sender and receiver are done soonest with one way more."""
        if reduce:
            return min(pairs, key=lambda pair: (self.price(pair[1], pair[0], weight), pair))
        return min(pairs, key=lambda pair: (self.price(pair[0], pair[1], weight), pair))
