"""How long a round along a set of ways takes, and how long any set of ways takes at least.

The model: chunks are in flight on all hops at once, so the most loaded link, sender or receiver
sets the pace, and to that comes the time of one frame to its root and back along the slowest way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from edgeagent.planner.ways.way import ROOT, Way

if TYPE_CHECKING:
    from edgeagent.planner.ways.network import Floats, Network, Whole


def loads(count: int, ways: Sequence[Way]) -> Floats:
    """Return `[u, v]`: how many vectors of gradients u sends to v in a round.

    A way's part goes from each member to its parent on the reduce tree, and from each parent to its
    child on the spread tree.
    """
    reduced, spread = _phases(count, ways)
    return reduced + spread


def _phases(count: int, ways: Sequence[Way]) -> tuple[Floats, Floats]:
    """Return how many vectors u sends to v to reduce them, and to spread them."""
    reduced, spread = np.zeros((count, count)), np.zeros((count, count))
    members = np.arange(count)
    for way in ways:
        up, down = np.array(way.up), np.array(way.down)
        below = up != ROOT
        np.add.at(reduced, (members[below], up[below]), way.weight)
        below = down != ROOT
        np.add.at(spread, (down[below], members[below]), way.weight)
    whole = max(1, sum(way.weight for way in ways))
    return reduced / whole, spread / whole


def _copied(count: int, ways: Sequence[Way], copies: int) -> Floats:
    """Return how many vectors of sums u sends to v so that each sum comes to so many copies, which
    are at any members: a link of a spread tree carries those for all who are below it."""
    found = np.zeros((count, count))
    for way in ways:
        for member in range(count):
            at = member
            while (parent := way.down[at]) != ROOT:
                found[parent, at] += way.weight
                at = parent
    whole = max(1, sum(way.weight for way in ways))
    return found * min(copies, count - 1) / (max(1, count - 1) * whole)


def peak_of(network: Network, load: Floats) -> float:
    """Return the seconds per byte of the vector that `load` takes where it is worst: on a
    direction of a link, at a sender or at a receiver. Infinite if it uses a link that is none."""
    used = load > 0
    if not used.any():
        return 0.0
    link = float((load[used] * network.per_byte[used]).max())
    sent = float((load.sum(axis=1) / network.up_limits).max())
    received = float((load.sum(axis=0) / network.down_limits).max())
    return max(link, sent, received)


def peak(network: Network, ways: Sequence[Way], copies: int | None = None) -> float:
    """Return the seconds that each byte of the vector adds to a round along `ways`.

    `copies`: to how many copies sums go, if the optimizer is divided. Then nothing is spread before
    all sums are complete, so links are loaded twice, one time after the other.
    """
    if copies is None:
        return peak_of(network, loads(network.count, ways))
    reduced, spread = _phases(network.count, ways)
    reduced += _copied(network.count, ways, copies)
    return peak_of(network, reduced) + peak_of(network, spread)


def latency_s(network: Network, ways: Sequence[Way], frame_bytes: float = 0.0) -> float:
    """Return the seconds that one frame takes to its root and back on the slowest of `ways`: from
    the farthest member up, and from the root down to the farthest."""
    if not ways:
        return 0.0
    hop = network.hop_s(frame_bytes)
    members = np.arange(network.count)
    up, down = np.array([w.up for w in ways]), np.array([w.down for w in ways])
    rooted_up, rooted_down = (
        np.where(up == ROOT, members, up),
        np.where(down == ROOT, members, down),
    )
    there = _path_sums(rooted_up, np.where(up == ROOT, 0.0, hop[members, rooted_up]))
    back = _path_sums(rooted_down, np.where(down == ROOT, 0.0, hop[rooted_down, members]))
    return float((there.max(axis=1) + back.max(axis=1)).max())


def _path_sums(parents: Whole, cost: Floats) -> Floats:
    """Return for each tree (row) and member the sum of `cost` on its path to the root, which is its
    own parent here. Every step doubles the part of the path that is summed."""
    total = cost
    for _ in range(max(1, parents.shape[1] - 1).bit_length()):
        total = total + np.take_along_axis(total, parents, axis=1)
        parents = np.take_along_axis(parents, parents, axis=1)
    return total


def predicted_s(
    network: Network,
    ways: Sequence[Way],
    payload_bytes: float,
    frame_bytes: float = 0.0,
    copies: int | None = None,
) -> float:
    """Return the modelled time in seconds of a round that sums `payload_bytes` on each member.
    `copies` as for `peak`."""
    by_rates = payload_bytes * peak(network, ways, copies)
    return by_rates + latency_s(network, ways, frame_bytes)


def least_peak(network: Network) -> float:
    """Return seconds per byte that no set of ways goes below.

    Each member sends and receives each part at least once: a root receives the sum and sends the
    result, and any other sends its sum and receives the result. All together send each part
    2 (n - 1) times. A linear program knows more (`tests/bounds/packing.py`), but is no part of the
    planner.
    """
    if network.count == 1:
        return 0.0
    rate = 1 / network.per_byte
    sent = np.minimum(rate.sum(axis=1), network.up_limits)
    received = np.minimum(rate.sum(axis=0), network.down_limits)
    if not (sent.all() and received.all()):
        return math.inf
    messages = 2 * (network.count - 1)
    each = max(1 / float(sent.min()), 1 / float(received.min()))
    return max(each, messages / float(sent.sum()), messages / float(received.sum()))


def floor_s(network: Network, payload_bytes: float, best_peak: float | None = None) -> float:
    """Return the seconds that a round takes at least, whatever the ways, with delays counted.

    `best_peak` is a lower bound of the peak, such as the linear program's; without it that of
    `least_peak` is taken. Two bounds hold. A byte has to leave a link's delay before the end, so
    every link is idle for at least the shortest delay. And a sum goes from the farthest member to
    some root, the result from there to the farthest. The two cannot be added: while the last sums
    of one part are on their way, links carry other parts.
    """
    if network.count == 1:
        return 0.0
    network.check_connected()
    by_rate = payload_bytes * (least_peak(network) if best_peak is None else best_peak)
    hop = network.hop_s()
    distance = hop.copy()
    np.fill_diagonal(distance, 0.0)
    for via in range(network.count):
        distance = np.minimum(distance, distance[:, via, None] + distance[None, via, :])
    there_and_back = float((distance.max(axis=0) + distance.max(axis=1)).min())
    return max(by_rate + float(hop.min()), there_and_back)
