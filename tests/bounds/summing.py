"""How fast gradients can be summed at all, and how fast the best tree and the best ring are.

A bound holds for any scheme, so it is never above the time that a real one takes; a function that
gives a scheme's own time (`tree_time`, `ring_time`) says so. Sizes are bytes as sent, rates
bytes/s, times seconds. `rates[u][v]` is the rate from node u to node v, 0 without a link; the
diagonal is not read. The benchmarks compare what agents reach with these figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, permutations

Rates = Sequence[Sequence[float]]

MAX_PARTITION_NODES = 13  # for more, 3^n / 2 sums in each of a few rounds take too long
MAX_RING_NODES = 9  # for more, (n - 1)! orders take too long


def _over(size: float, rate: float) -> float:
    return size / rate if rate > 0 else math.inf


def cut_bound(size: float, rates: Rates) -> float:
    """Return `max over node sets A of size / (rate from A to the rest)`, exactly.

    Any scheme: what A knows has to reach the rest. By maximum flows between node 0 and each other,
    both ways. Infinite if some node cannot reach another; 0 for a single node.
    """
    others = range(1, len(rates))
    flows = [max_flow(rates, *pair) for v in others for pair in ((0, v), (v, 0))]
    return _over(size, min(flows)) if flows else 0.0


def partition_bound(size: float, rates: Rates) -> float:
    """Return `size / tau` (`weakest_partition`); infinite if some node has no link."""
    if len(rates) < 2:
        return 0.0
    return _over(size, weakest_partition(rates)[0])


def weakest_partition(rates: Rates) -> tuple[float, tuple[tuple[int, ...], ...]]:
    """Return (tau, a partition that attains it).

    tau is the least, over all partitions of the nodes into k >= 2 parts, of `(rates between parts,
    both directions) / (2 (k - 1))`: each part needs a message that completes its sum, and all but
    one must have sent before. No scheme that sends partial sums is faster than `size / tau`. If
    rates are equal both ways, tau is the fractional spanning-tree packing number (Nash-Williams,
    Tutte), and packed trees reach it.

    Exact: Dinkelbach's iteration, each step by enumeration of all partitions. Raises ValueError for
    fewer than 2 or more than `MAX_PARTITION_NODES` nodes.
    """
    count = len(rates)
    if not 2 <= count <= MAX_PARTITION_NODES:
        raise ValueError(f"partitions of 2 to {MAX_PARTITION_NODES} nodes only, not {count}")
    inside = _inside(rates)
    parts: tuple[tuple[int, ...], ...] = tuple((node,) for node in range(count))
    tau = _strength(inside, parts)
    while True:
        found = _parts_for(inside, 2 * tau, count)
        better = _strength(inside, found) if len(found) > 1 else tau
        if better >= tau:
            return tau, parts
        tau, parts = better, found


def _inside(rates: Rates) -> list[float]:
    """Bit set of nodes -> the rates between them, both directions."""
    sums = [0.0]
    for node in range(len(rates)):
        towards = [0.0]  # bit set of earlier nodes -> rates between them and `node`
        for other in range(node):
            both = rates[node][other] + rates[other][node]
            towards += [value + both for value in towards]
        sums += [a + b for a, b in zip(sums, towards, strict=True)]
    return sums


def _strength(inside: list[float], parts: tuple[tuple[int, ...], ...]) -> float:
    kept = sum(inside[sum(1 << node for node in part)] for part in parts)
    return max(0.0, inside[-1] - kept) / (2 * (len(parts) - 1))


def _parts_for(inside: list[float], price: float, count: int) -> tuple[tuple[int, ...], ...]:
    """Return the partition with the greatest (rates inside parts + price times parts)."""
    best = [0.0] * (1 << count)
    chosen = [0] * (1 << count)
    for nodes in range(1, 1 << count):
        lowest = nodes & -nodes
        rest = others = nodes ^ lowest
        most, with_lowest = -math.inf, 0
        while True:  # every part that holds the lowest node
            value = inside[others | lowest] + best[rest ^ others]
            if value > most:
                most, with_lowest = value, others | lowest
            if not others:
                break
            others = (others - 1) & rest
        best[nodes], chosen[nodes] = most + price, with_lowest
    left, parts = (1 << count) - 1, []
    while left:
        parts.append(tuple(node for node in range(count) if chosen[left] >> node & 1))
        left ^= chosen[left]
    return tuple(parts)


def max_flow(rates: Rates, source: int, sink: int) -> float:
    """Return the greatest flow from `source` to another node `sink` (Edmonds and Karp)."""
    count = len(rates)
    left = [[rates[u][v] if u != v else 0.0 for v in range(count)] for u in range(count)]
    flow = 0.0
    while path := _path(left, source, sink):
        amount = min(left[u][v] for u, v in path)
        for u, v in path:
            left[u][v] -= amount
            left[v][u] += amount
        flow += amount
    return flow


def _path(left: list[list[float]], source: int, sink: int) -> list[tuple[int, int]]:
    """Return the edges of a shortest path with room left, [] if there is none."""
    before = {source: source}
    queue = [source]
    for at in queue:
        for to, room in enumerate(left[at]):
            if room > 0 and to not in before:
                before[to] = at
                queue.append(to)
    path: list[tuple[int, int]] = []
    while sink in before and sink != source:
        path.append((before[sink], sink))
        sink = before[sink]
    return path


def tree_time(size: float, rates: Rates) -> float:
    """Return the time of the best all-reduce along one tree, chunks in flight on all hops.

    Each link of the tree carries `size` both ways, so its slower direction counts: the maximum
    spanning tree has the greatest such rate at its slowest link. Infinite if no tree exists.
    """
    count = len(rates)
    edges = sorted(
        ((min(rates[u][v], rates[v][u]), u, v) for u, v in combinations(range(count), 2)),
        reverse=True,
    )
    group = list(range(count))
    slowest = math.inf
    for rate, u, v in edges:
        if group[u] != group[v]:
            old, new, slowest = group[v], group[u], rate
            group = [new if g == old else g for g in group]
    return _over(size, slowest)


def ring_time(size: float, rates: Rates, both_ways: bool = False) -> float:
    """Return the time of the best ring all-reduce (reduce-scatter, all-gather) over links.

    Each directed link of the ring carries 2 (n - 1) / n of `size`; `both_ways` sends a part each
    way round, in proportion to the slowest link of that way. Infinite without a ring (one way) of
    links. Raises ValueError for more than `MAX_RING_NODES` nodes.
    """
    count = len(rates)
    if count < 2:
        return 0.0
    if count > MAX_RING_NODES:
        raise ValueError(f"rings of at most {MAX_RING_NODES} nodes only, not {count}")
    best = 0.0
    for order in permutations(range(1, count)):
        nodes = (0, *order)
        links = list(zip(nodes, (*order, 0), strict=True))
        rate = min(rates[u][v] for u, v in links)
        if both_ways and count > 2:  # on two nodes both ways are the same two links
            rate += min(rates[v][u] for u, v in links)
        best = max(best, rate)
    return _over(2 * (count - 1) / count * size, best)


def mesh_bound(size: float, count: int, node_rate: float) -> float:
    """Return the bound of `count` nodes that each send and receive at most `node_rate` in all.

    Each of the 2 (n - 1) messages an element needs takes a sender and a receiver: the rate is at
    most n C / (2 (n - 1)), which is the ring's.
    """
    return _over(2 * (count - 1) * size, count * node_rate)


def shared_channel_bound(
    size: float, count: int, rate: float, through_access_point: bool = False
) -> float:
    """Return the bound of `count` nodes on one channel of `rate` in all, by unicast.

    An access point that repeats every frame halves it.
    """
    return (2 if through_access_point else 1) * _over(2 * (count - 1) * size, rate)
