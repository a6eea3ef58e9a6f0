"""A ring as ways: reduce-scatter and all-gather are n chains, one for each root.

The part of root r starts at the member after r, is summed from member to member until it is at r,
and goes round once more. All parts together load each link of the ring alike, so the ring whose
slowest link is fastest is the best.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeagent.planner.measures import in_mbit
from edgeagent.planner.ways.shaped import ALONE, Shaped
from edgeagent.planner.ways.way import ROOT, Way

if TYPE_CHECKING:
    from edgeagent.planner.ways.network import Network

EXACT = 12  # up to so many members, every ring is considered (2^12 sets of members a rate)
STEPS = 5_000  # of a search among more members, at each rate that is tried


def ring(network: Network) -> Shaped:
    """Return the ways of the fastest ring: exactly up to `EXACT` members, of those that a bounded
    search finds among more."""
    count = network.count
    if count == 1:
        return ALONE
    rates = sorted(dict.fromkeys(network.rates.values()))
    order: list[int] | None = None
    low, high = 0, len(rates)  # the fastest ring's slowest link has one of rates[low:high]
    while low < high:
        middle = (low + high) // 2 if order else low  # the slowest first: is there any ring?
        found = _order(network, rates[middle])
        if found:
            order, low = found, middle + 1
        else:
            high = middle
    if order is None:
        sure = "there is no ring" if count <= EXACT else "no ring was found in a bounded search"
        return Shaped(None, f"{sure} along the links of {count} members")
    slowest = min(network.rates[order[k - 1], order[k]] for k in range(count))
    after = {order[k - 1]: order[k] for k in range(count)}
    before = {order[k]: order[k - 1] for k in range(count)}
    ways = []
    for root in range(count):
        up = tuple(ROOT if v == root else after[v] for v in range(count))
        down = tuple(ROOT if v == root else before[v] for v in range(count))
        ways.append(Way(up, down))
    return Shaped(tuple(ways), f"a ring whose slowest link carries {in_mbit(slowest)}")


def _order(network: Network, least: float) -> list[int] | None:
    """Return a ring along links of at least this rate as its members in order, or None."""
    near = [
        [v for v in range(network.count) if network.rates.get((u, v), 0.0) >= least]
        for u in range(network.count)
    ]
    return _any_ring(near) if network.count <= EXACT else _searched(near)


def _any_ring(near: list[list[int]]) -> list[int] | None:
    """Return a ring if there is one: for every set of members with member 0, `ends[set]` are the
    members at which a path from 0 through the whole set can end. Sets are bits of an int."""
    count = len(near)
    into = [sum(1 << u for u in range(count) if v in near[u]) for v in range(count)]
    every = (1 << count) - 1
    ends = [0] * (every + 1)
    ends[1] = 1
    for members in range(3, every + 1, 2):
        for v in range(1, count):
            bit = 1 << v
            if members & bit and ends[members ^ bit] & into[v]:
                ends[members] |= bit
    path, members, allowed = [], every, into[0]
    while members:
        last = ends[members] & allowed
        if not last:
            return None
        v = last.bit_length() - 1
        path.append(v)
        members, allowed = members ^ (1 << v), into[v]
    return path[::-1]


def _searched(near: list[list[int]]) -> list[int] | None:
    """Return a ring that a search finds within `STEPS`: it goes on to the member with the fewest
    links to members not visited yet, and goes back where there is none."""
    count = len(near)
    path, visited = [0], [v == 0 for v in range(count)]

    def onward(at: int) -> list[int]:
        free = [v for v in near[at] if not visited[v]]
        ways_on = {v: sum(1 for w in near[v] if not visited[w]) for v in free}
        return sorted(free, key=lambda v: (-ways_on[v], -v))  # taken from its end

    choices = [onward(0)]
    for _ in range(STEPS):
        if len(path) == count and 0 in near[path[-1]]:
            return path
        if choices[-1]:
            path.append(choices[-1].pop())
            visited[path[-1]] = True
            choices.append(onward(path[-1]))
        elif len(path) > 1:
            choices.pop()
            visited[path.pop()] = False
        else:
            break
    return None
