"""One tree for the whole vector, up and down, as shallow as pays off.

A small vector over long links is done soonest along a shallow tree, and a large one along a tree
whose slowest link, sender or receiver is fast. The trees tried here are grown from several roots,
each with several rates that count as fast enough, and the one with the least predicted time is
taken.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from edgeagent.planner.measures import in_seconds
from edgeagent.planner.ways.loads import predicted_s
from edgeagent.planner.ways.shaped import ALONE, Shaped, not_both_ways
from edgeagent.planner.ways.way import ROOT, Way

if TYPE_CHECKING:
    from edgeagent.planner.ways.network import Network, Whole

# Links that take this many times as long as the slowest link of the widest tree still count as
# fast, for every one of the trees grown: the more of them do, the shallower trees become.
ALLOWED = (1.0, 1.25, 1.6, 2.0, 3.0, 5.0)
WORK = 200_000  # trees times members squared stay below this, so that 64 members take half a second
TIE = 1e-6  # of a link's own time is added, so that the nearer of equal links is taken


def one(network: Network, payload_bytes: float, frame_bytes: float = 0.0) -> Shaped:
    """Return a single tree with a short predicted round, reduce and spread along the same links.

    With a payload of 0 that is a tree of little delay, as the control word needs it.
    """
    if network.count == 1:
        return ALONE
    bottleneck = widest(network)
    if bottleneck == math.inf:
        return not_both_ways(network)
    parents = _grown(network, payload_bytes, frame_bytes, bottleneck)
    trees = dict.fromkeys(map(tuple, parents.tolist()))
    ways = [Way(tree, tree) for tree in trees]
    times = [predicted_s(network, [way], payload_bytes, frame_bytes) for way in ways]
    least = min(range(len(ways)), key=lambda k: times[k])
    root = network.name(ways[least].root)
    reason = f"one tree rooted at {root}, about {in_seconds(times[least])} a round"
    return Shaped((ways[least],), reason)


def widest(network: Network) -> float:
    """Return the seconds per byte of the slowest link, in its slower direction, of the tree in
    which that is least; infinite if links that go both ways do not connect all members."""
    worse = np.maximum(network.per_byte, network.per_byte.T)
    best = worse[0].copy()
    best[0] = -math.inf
    found, open_ = 0.0, np.ones(network.count, dtype=np.bool_)
    open_[0] = False
    for _ in range(network.count - 1):
        reach = np.where(open_, best, math.inf)
        new = int(reach.argmin())
        found = max(found, float(reach[new]))
        open_[new] = False
        best = np.minimum(best, worse[new])
    return found


def _roots(network: Network) -> Whole:
    """Return the roots worth trying: all, or those with the fewest hops and the fastest links."""
    hops = np.maximum(network.hops.max(axis=0), network.hops.max(axis=1))
    most = max(3, WORK // (len(ALLOWED) * network.count**2))
    found: Whole = np.lexsort((-network.slower.sum(axis=1), hops))[:most]
    return found


def _grown(network: Network, payload_bytes: float, frame_bytes: float, bottleneck: float) -> Whole:
    """Return the parents of trees, a row each, for all roots and all of `ALLOWED`.

    Each step adds the link after which the predicted time of the tree so far is least. A peak that
    is allowed in any case counts from the start, so that links below it are chosen by delay.
    """
    count = network.count
    tried = _roots(network)
    roots = tried.repeat(len(ALLOWED))
    trees = np.arange(len(roots))
    worst = np.tile(bottleneck * np.array(ALLOWED), len(tried))
    up_limit, down_limit = np.array(network.up_limits), np.array(network.down_limits)
    hop = network.hop_s(frame_bytes)
    # [parent, child]: the link both ways, a child that sends and receives once included
    missing = network.slower == 0
    link = np.where(missing, 0.0, np.maximum(network.per_byte, network.per_byte.T))
    link = np.maximum(link, np.maximum(1 / up_limit, 1 / down_limit)[None, :])
    own = np.where(missing, math.inf, TIE * (payload_bytes * link + hop.T + hop))
    inside = np.zeros((len(roots), count), dtype=np.bool_)
    inside[trees, roots] = True
    parents = np.full((len(roots), count), ROOT)
    degree = np.zeros((len(roots), count))  # neighbours in the tree: as often it sends, receives
    up, down = np.zeros((len(roots), count)), np.zeros((len(roots), count))
    slowest_up, slowest_down = np.zeros(len(roots)), np.zeros(len(roots))
    for _ in range(count - 1):
        node = np.maximum((degree + 1) / up_limit, (degree + 1) / down_limit)
        new_worst = np.maximum(np.maximum(link, node[:, :, None]), worst[:, None, None])
        new_up, new_down = up[:, :, None] + hop.T, down[:, :, None] + hop
        time = payload_bytes * new_worst + own + TIE * (new_up + new_down)
        time += np.maximum(new_up, slowest_up[:, None, None])
        time += np.maximum(new_down, slowest_down[:, None, None])
        time[~inside] = math.inf
        time[np.broadcast_to(inside[:, None, :], time.shape)] = math.inf
        chosen = time.reshape(len(roots), -1).argmin(axis=1)
        parent, child = chosen // count, chosen % count
        parents[trees, child] = parent
        inside[trees, child] = True
        worst = new_worst[trees, parent, child]
        up[trees, child] = new_up[trees, parent, child]
        down[trees, child] = new_down[trees, parent, child]
        slowest_up = np.maximum(slowest_up, up[trees, child])
        slowest_down = np.maximum(slowest_down, down[trees, child])
        degree[trees, parent] += 1
        degree[trees, child] += 1
    return parents
