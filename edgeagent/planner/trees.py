"""The tree along which gradients are summed.

A tree covers every member and runs along links only.

NetStorm weighs a link by the time it takes, 1 / throughput. An edge of our trees carries the whole
gradient up and the whole result down at the same time, so it is done when its slower direction is
done. A link therefore weighs 1 / rate of its slower direction, whichever of its ends is the parent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from edgeagent.planner.measures import Filled, in_mbit, in_seconds, listed, name_of
from protocols.cluster.tree import Tree, tree_fault
from protocols.cluster.view import Edge, View, edge

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from protocols.network.measures import Measures

    Floats = NDArray[np.float64]
    Whole = NDArray[np.int64]

# A tree in force is replaced only if another shortens the round by more than this, so that noise
# in the measured rates does not change it again and again.
LEAST_GAIN = 0.15
WORD_BYTES = 4096  # a control word is about so long
EQUAL = 1e-9  # times whose ratio is nearer to 1 than this are equal, so rounding decides nothing


@dataclass(frozen=True, slots=True)
class TreePlan:
    """A tree and the reason for it.

    `parents` are in the order of the view's members. `predicted_s` is the modelled time of a round
    in seconds, None while no link is measured.
    """

    parents: tuple[bytes, ...]
    root: bytes
    depth: int
    predicted_s: float | None
    reason: str


def shallow_tree(view: View) -> tuple[tuple[bytes, ...], int]:
    """Return (parents in the order of the view's members, depth) of a breadth-first tree.

    The root is the member from which the tree is shallowest, the smallest id among equals. Raises
    ValueError if the links do not connect all members.
    """
    near = {node: view.neighbours(node) for node in view.nodes}
    best: tuple[int, dict[bytes, bytes]] | None = None
    for root in view.nodes:
        found = _breadth_first(near, root)
        if len(found[1]) == len(near) and (best is None or found[0] < best[0]):
            best = found
    if best is None:
        raise ValueError("the links do not connect all members")
    return tuple(best[1][node] for node in view.nodes), best[0]


def _breadth_first(
    near: dict[bytes, tuple[bytes, ...]], root: bytes
) -> tuple[int, dict[bytes, bytes]]:
    parents, depth = {root: b""}, {root: 0}
    queue = [root]
    for node in queue:
        for other in near[node]:
            if other not in parents:
                parents[other] = node
                depth[other] = depth[node] + 1
                queue.append(other)
    return max(depth.values()), parents


def fastest_tree(view: View, measures: Measures) -> Tree:
    """Return the fastest-aggregation-path tree (NetStorm, Algorithm 1 with one root).

    For every root this is the tree of shortest paths, with links weighing as the module says; among
    paths of equal length the one with fewer hops, then the smaller parent. The delay of a tree is
    its longest path and the quality of its root 1 / delay. The root of the best quality is taken,
    the smallest id among equals. Links that are not measured count as typical. Raises ValueError if
    the links do not connect all members.
    """
    network = _Network(view, measures, 0.0)
    network.widest_rate()  # raises if the links do not connect all members
    paths = _shortest_paths(network.weights, network)
    return paths.tree(view, int(np.argmin(paths.far)))


def round_time(
    tree: Tree, measures: Measures, payload_bytes: float, *, chunk_bytes: float = 0.0
) -> float:
    """Return the modelled time in seconds of a round along `tree`.

    Chunks are in flight on all hops at once, so the slowest direction of any edge sets the pace for
    all `payload_bytes`. Added to that is the way of one chunk up from the farthest leaf and down to
    the farthest one. A hop takes its delay and the time for `chunk_bytes`, because a chunk is sent
    on only when all of it has arrived. Links of one node are modelled as independent, since no
    node's own limit is known. Directions that are not measured count as typical.
    """
    filled = Filled(measures)
    if not tree.edges:
        return 0.0
    up = {n: 0.0 for n in tree.nodes}
    down = dict(up)
    for node in tree.nodes:
        for child, parent in pairwise(tree.path(node)):
            up[node] += filled.delay_s(child, parent) + chunk_bytes / filled.rate(child, parent)
            down[node] += filled.delay_s(parent, child) + chunk_bytes / filled.rate(parent, child)
    slowest = min(filled.slower(*ends) for ends in tree.edges)
    pace = max(payload_bytes - chunk_bytes, 0.0) / slowest
    return pace + max(up.values()) + max(down.values())


def significant(old_time: float, new_time: float) -> bool:
    """Whether a round of `new_time` instead of `old_time` seconds is worth a new tree."""
    return new_time < old_time * (1 - LEAST_GAIN)


def plan_tree(
    view: View,
    measures: Measures,
    payload_bytes: float,
    present: tuple[bytes, ...] | None,
    *,
    chunk_bytes: float = 0.0,
) -> TreePlan:
    """Return the tree for `view`, and why it is that one.

    The candidates are the fastest-aggregation-path tree of every root, and for every root the paths
    on which a chunk takes the least time among the widest trees, those whose slowest edge is as
    fast as possible. The candidate with the shortest `round_time` is the best; among equals it is
    that of `fastest_tree`.

    `present`, the parents in force in the order of the view's members, stay if they still fit the
    view and the best candidate is not `significant`ly faster. While nothing is measured the
    shallowest tree takes the place of the best candidate, and a tree in force stays if it fits.
    Raises ValueError if the links do not connect all members.
    """
    in_force = _still_fits(view, present) if present is not None else None
    if not measures.links:
        return _unmeasured(view, in_force)
    network = _Network(view, measures, chunk_bytes)
    best, what = _best(view, network, payload_bytes, chunk_bytes)
    best_s = round_time(best, measures, payload_bytes, chunk_bytes=chunk_bytes)
    chosen, predicted_s, head = best, best_s, what
    if in_force is not None and in_force != best:
        now_s = round_time(in_force, measures, payload_bytes, chunk_bytes=chunk_bytes)
        if not significant(now_s, best_s):
            chosen, predicted_s = in_force, now_s
            head = f"tree in force kept, another would not save {LEAST_GAIN:.0%}"
    reason = f"{head}, {_described(view, chosen, network.filled, predicted_s)}"
    return TreePlan(chosen.parents, chosen.root, chosen.depth, predicted_s, reason)


def word_tree(
    view: View, measures: Measures, present: tuple[bytes, ...] | None, round_s: float
) -> TreePlan:
    """Return the tree for a `view` whose chunks take ways, and why it is that one. Only the control
    word goes along it, beside the chunks, which take `round_s` seconds.

    The tree in force stays if it still fits, unless the word takes so long on it that the best one
    would make rounds `significant`ly shorter. The best one is that on which the word takes the
    least time there and back. While nothing is measured it is the shallowest.
    """
    in_force = _still_fits(view, present) if present is not None else None
    if measures.links:
        network = _Network(view, measures, WORD_BYTES)
        paths = _shortest_paths(network.way + network.way.T, network)
        best = paths.tree(view, int(np.argmin(paths.up + paths.down)))
    else:
        best = Tree(view.nodes, shallow_tree(view)[0])

    def word_s(tree: Tree) -> float:
        return round_time(tree, measures, WORD_BYTES, chunk_bytes=WORD_BYTES)

    chosen = best
    if in_force is not None and not significant(
        max(round_s, word_s(in_force)), max(round_s, word_s(best))
    ):
        chosen = in_force
    kept = " in force" if chosen is in_force else ""
    root = name_of(view, chosen.root)
    reason = f"control word along the tree{kept} rooted at {root}, of depth {chosen.depth}"
    return TreePlan(chosen.parents, chosen.root, chosen.depth, word_s(chosen), reason)


def _still_fits(view: View, parents: tuple[bytes, ...]) -> Tree | None:
    """Return the tree in force, None if the view has changed so that it is none any more."""
    nodes = view.nodes
    whole = len(parents) == len(nodes)
    if not whole or tree_fault(view, dict(zip(nodes, parents, strict=True))):
        return None
    return Tree(nodes, parents)


def _unmeasured(view: View, in_force: Tree | None) -> TreePlan:
    tree = Tree(view.nodes, shallow_tree(view)[0]) if in_force is None else in_force
    head = "shallowest tree" if in_force is None else "tree in force kept"
    root = name_of(view, tree.root)
    reason = f"{head}, rooted at {root}, of depth {tree.depth}: no link is measured yet"
    return TreePlan(tree.parents, tree.root, tree.depth, None, reason)


def _best(
    view: View, network: _Network, payload_bytes: float, chunk_bytes: float
) -> tuple[Tree, str]:
    """Return the best candidate and its name for the reason."""
    widest = network.widest_rate()
    near = _shortest_paths(network.weights, network)
    wide = _shortest_paths(network.hops_of(widest), network)
    quality = int(np.argmin(near.far))
    found = [
        (near.times(payload_bytes, chunk_bytes), near, "fastest aggregation paths, another root"),
        (wide.times(payload_bytes, chunk_bytes), wide, "widest tree"),
    ]
    first = float(found[0][0][quality])
    best, tree, what = first, near.tree(view, quality), "fastest aggregation paths, root by quality"
    for times, paths, called in found:
        k = int(np.argmin(times))
        if float(times[k]) < best * (1 - EQUAL):
            best, tree, what = float(times[k]), paths.tree(view, k), called
    if best < first:
        root = view.members[quality].name
        what += f" ({in_seconds(first)} a round along the fastest aggregation paths from {root})"
    return tree, what


def _described(view: View, tree: Tree, filled: Filled, predicted_s: float) -> str:
    """Return the rest of the reason: the root, the slowest edge, which links are unused and why."""
    said = [f"rooted at {name_of(view, tree.root)}, of depth {tree.depth}"]
    if not tree.edges:
        return said[0]
    used = dict.fromkeys(edge(*ends) for ends in tree.edges)

    def text(link: Edge) -> str:
        ends = f"{name_of(view, link.low)}-{name_of(view, link.high)}"
        return f"{ends} ({in_mbit(filled.slower(link.low, link.high))})"

    slowest = min(used, key=lambda e: (filled.slower(e.low, e.high), e.low, e.high))
    least = filled.slower(slowest.low, slowest.high)
    said.append(f"slowest link {text(slowest)}, about {in_seconds(predicted_s)} a round")
    out = [e for e in view.edges if e not in used]
    slow = [e for e in out if filled.slower(e.low, e.high) < least]
    spare = [e for e in out if filled.slower(e.low, e.high) >= least]
    if slow:
        said.append(f"left out as slower than all in use: {listed(slow, text)}")
    if spare:
        said.append(f"left out as they shorten no path: {listed(spare, text)}")
    guessed = sum(not filled.is_known(e.low, e.high) for e in view.edges)
    if guessed:
        said.append(f"{guessed} not measured, taken as typical ({in_mbit(filled.typical.rate)})")
    return "; ".join(said)


# All roots at once


class _Network:
    """The links of a view as matrices in the order of its members, inf where there is no link.

    `weights[a, b]` is seconds per byte in the slower direction between a and b; `way[a, b]` is the
    seconds that one chunk takes from a to b.
    """

    def __init__(self, view: View, measures: Measures, chunk_bytes: float) -> None:
        self.filled = Filled(measures)
        self.count = len(view.nodes)
        index = {n: k for k, n in enumerate(view.nodes)}
        self.weights: Floats = np.full((self.count, self.count), math.inf)
        self.way: Floats = np.full((self.count, self.count), math.inf)
        self._links: list[tuple[float, int, int]] = []
        for link in view.edges:
            ends = (link.low, link.high)
            a, b = index[link.low], index[link.high]
            slower = self.filled.slower(*ends)
            self._links.append((slower, a, b))
            self.weights[a, b] = self.weights[b, a] = 1 / slower
            for (i, j), (one, other) in (((a, b), ends), ((b, a), ends[::-1])):
                hop = self.filled.delay_s(one, other) + chunk_bytes / self.filled.rate(one, other)
                self.way[i, j] = hop

    def widest_rate(self) -> float:
        """Return the highest rate (bytes/s) at which the links at least as fast connect all
        members; inf for a single member. Raises ValueError if all links together do not connect
        them."""
        part = list(range(self.count))
        missing, rate = self.count - 1, math.inf
        for slower, a, b in sorted(self._links, reverse=True):
            if missing and part[a] != part[b]:
                merged, kept = part[b], part[a]
                part = [kept if p == merged else p for p in part]
                missing, rate = missing - 1, slower
        if missing:
            raise ValueError("the links do not connect all members")
        return rate

    def hops_of(self, least_rate: float) -> Floats:
        """Return as weights a chunk's time there and back, over links of at least this rate."""
        return np.where(self.weights <= 1 / least_rate, self.way + self.way.T, math.inf)


@dataclass(frozen=True, slots=True)
class _Paths:
    """The tree of shortest paths from every root: row r of `parents` is the tree of member r.

    `far[r]` is its longest path in the weights it was made with, `slowest[r]` the seconds per byte
    of its slowest edge, `up[r]` a chunk's time from the farthest leaf to the root, `down[r]` from
    the root to the farthest leaf.
    """

    parents: Whole
    far: Floats
    slowest: Floats
    up: Floats
    down: Floats

    def times(self, payload_bytes: float, chunk_bytes: float) -> Floats:
        """Return the `round_time` of each root's tree."""
        return max(payload_bytes - chunk_bytes, 0.0) * self.slowest + self.up + self.down

    def tree(self, view: View, root: int) -> Tree:
        """Return the tree from member number `root`."""
        nodes = view.nodes
        parents = (b"" if k == root else nodes[p] for k, p in enumerate(self.parents[root]))
        return Tree(nodes, tuple(parents))


def _shortest_paths(weights: Floats, network: _Network) -> _Paths:
    """Run Dijkstra's algorithm from all roots at once, settling one node of each in every step.

    Among paths of equal length the one with fewer hops is taken, then the smaller parent. The links
    with finite weight must connect all members.
    """
    count = network.count
    rows = np.arange(count)
    length: Floats = np.full((count, count), math.inf)
    length[rows, rows] = 0.0
    hops = np.zeros((count, count), np.int64)
    parents = np.zeros((count, count), np.int64)
    done = np.zeros((count, count), np.bool_)
    slowest, up, down = (np.zeros((count, count)) for _ in range(3))
    for _ in range(count):
        open_length = np.where(done, math.inf, length)
        nearest = open_length.min(axis=1, keepdims=True)
        at = np.where(open_length == nearest, hops, count).argmin(axis=1)
        done[rows, at] = True
        new = nearest + weights[at]
        steps = hops[rows, at][:, None] + 1
        fewer = (steps < hops) | ((steps == hops) & (at[:, None] < parents))
        better = ~done & ((new < length) | ((new == length) & fewer & (new < math.inf)))
        r, to = np.nonzero(better)
        via = at[r]
        length[r, to] = new[r, to]
        hops[r, to] = hops[r, via] + 1
        parents[r, to] = via
        slowest[r, to] = network.weights[via, to]  # above `to`; the tree's is the largest of them
        up[r, to] = up[r, via] + network.way[to, via]
        down[r, to] = down[r, via] + network.way[via, to]
    longest = (a.max(axis=1) for a in (length, slowest, up, down))
    return _Paths(parents, *longest)
