"""Packed ways: the vector is cut into equal parts, and each is placed where it costs the least.

Reaching the bound of a linear program takes weighted trees that together load all links alike. They
are found greedily: every direction of a link, every sender and every receiver has a price that
rises steeply with its load, and parts are placed one after the other on the cheapest pair of trees.
Then every part is taken out and placed again, since those that came first knew nothing of the
others.

With a divided optimizer no result is spread before all sums are complete, so the two phases load
the links one after the other, and each has loads and prices of its own. In the first the sums go on
to the copies, too, along the spread trees.

Plans of several depths are packed side by side in the same array operations, because numpy
takes about as long for one small array as for some of them together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from edgeagent.planner.ways.growth import bettered, grown, levelled
from edgeagent.planner.ways.loads import least_peak
from edgeagent.planner.ways.way import PARTS, ROOT, Way, merged

if TYPE_CHECKING:
    from edgeagent.planner.ways.division import Division
    from edgeagent.planner.ways.network import Floats, Network, Whole

# The exponent of prices, while all parts are placed for the first time and then in each pass in
# which they are placed again. Prices that are steep from the start fill the same links first and
# leave a packing that no single part can better; on cliques of nine that cost up to 10 %.
STEEPNESS = (8, 16, 32)
FEWEST_ROOTS = 3  # are tried for each part, those that look cheapest
ROOT_WORK = 2000  # as many more as keep roots times members squared below this
MOVES = 2  # of single members better each chosen tree, but not while parts are placed first
MOST_PRICE = 1e250  # a price is no higher, so that sums of prices stay finite


def packed(
    network: Network, depths: Sequence[int], division: Division | None = None
) -> tuple[tuple[Way, ...] | None, ...]:
    """Return for each of `depths` the best ways that were found with no more hops than that
    between a member and its root, or None if no root has all members that near.

    With a `division` of the optimizer no member is the root of more than it may be; then there is
    no plan, either, if the members that have all others near may have too few parts. Raises
    ValueError if the links do not connect all members.
    """
    network.check_connected()
    if network.count == 1:
        return tuple((Way((ROOT,), (ROOT,)),) for _ in depths)
    room = np.array(division.most if division is not None else [PARTS] * network.count)
    far = _farthest(network)
    able = [d for d in dict.fromkeys(depths) if int(room[far <= d].sum()) >= PARTS]
    copies = division.copies if division is not None else None
    plans = _Packing(network, able, room, copies).run() if able else []
    found = dict(zip(able, plans, strict=True))
    return tuple(found.get(depth) for depth in depths)


def _farthest(network: Network) -> Whole:
    """Return for each root the most hops between it and a member, whichever way takes more."""
    found: Whole = np.maximum(network.hops.max(axis=0), network.hops.max(axis=1))
    return found


def _raised(x: Floats, exponent: int) -> Floats:
    """Return x to a power of two, in fewer steps than numpy's own power takes."""
    while exponent > 1:
        x = x * x
        exponent //= 2
    return x


class _Packing:
    """One plan a depth, all packed in the same steps; the first index of arrays is the plan's.

    `load[k, phase, u, v]` is how many parts of plan k go from u to v: in one phase, or, with
    `copies`, first (the last phase here) when sums are reduced and then when results are spread.
    `rooted[k, v]` is of how many parts v is the root, which are at most `most[v]`. `parents[part,
    k, 0]` are the parents on a part's spread tree and `parents[part, k, 1]` those on its reduce
    tree; a root is its own parent here. Prices come as one matrix a plan and direction, in the same
    order.
    """

    def __init__(
        self, network: Network, depths: Sequence[int], most: Whole, copies: int | None
    ) -> None:
        count, plans = network.count, len(depths)
        self.network, self.count, self.plans = network, count, plans
        self.roots = min(count, max(FEWEST_ROOTS, ROOT_WORK // count**2))
        self.missing = np.isinf(network.per_byte)
        self.link: Floats = np.where(self.missing, 0.0, network.per_byte)
        self.up: Floats = 1 / np.array(network.up_limits)
        self.down: Floats = 1 / np.array(network.down_limits)
        self.hops = np.stack((network.hops, network.hops.T))
        self.phases = 1 if copies is None else 2
        # How much of a part goes along a link of its spread tree when it is reduced: as if each
        # member were a leaf, and its copies were at any of them.
        self.copied = min(copies or 0, count - 1) / (count - 1)
        self.load: Floats = np.zeros((plans, self.phases, count, count))
        self.parents: Whole = np.zeros((PARTS, plans, 2, count), dtype=np.int64)
        limits = np.array(depths)
        self.barred: Floats = np.where(_farthest(network) <= limits[:, None], 0.0, math.inf)
        self.plan, self.members = np.arange(plans), np.arange(count)
        self.most = most
        self.rooted: Whole = np.zeros((plans, count), dtype=np.int64)
        self.limits = limits.repeat(2)  # of each plan and direction
        matrices = np.arange(2 * plans).reshape(plans, 1, 2)
        self.source = matrices.repeat(self.roots, axis=1).reshape(-1)
        self.depth = self.limits[self.source]

    def lengths(self, ref: Floats, steepness: int) -> Floats:
        """Return the price of one more part on each link, `[2 * plan, u, v]` to spread along it and
        `[2 * plan + 1, v, u]` to reduce; inf without a link. Loads are compared to `ref`, for each
        plan and phase a peak in seconds for one byte of each part."""
        load = self.load
        at_link = (load + 0.5) * self.link / ref[:, :, None, None]
        sender = (load.sum(axis=3) + 0.5) * self.up / ref[:, :, None]
        receiver = (load.sum(axis=2) + 0.5) * self.down / ref[:, :, None]
        with np.errstate(over="ignore"):
            length = _raised(at_link, steepness) * self.link
            length += (_raised(sender, steepness) * self.up)[:, :, :, None]
            length += (_raised(receiver, steepness) * self.down)[:, :, None, :]
        np.minimum(length, MOST_PRICE, out=length)
        spread, reduce = length[:, 0], length[:, -1]
        if self.phases > 1:
            spread = spread + self.copied * reduce
        spread[:, self.missing] = reduce[:, self.missing] = math.inf
        both = np.stack((spread, reduce.transpose(0, 2, 1)), axis=1)
        found: Floats = both.reshape(-1, self.count, self.count)
        return found

    def peaks(self) -> Floats:
        """Return for each plan and phase the seconds that one byte of each part takes."""
        link = (self.load * self.link).max(axis=(2, 3))
        sent = (self.load.sum(axis=3) * self.up).max(axis=2)
        received = (self.load.sum(axis=2) * self.down).max(axis=2)
        found: Floats = np.maximum(np.maximum(link, sent), received)
        return found

    def trees(self, lengths: Floats) -> Whole:
        """Return the parents on the cheapest pair of trees of each plan, `[plan, direction, v]`.

        A root's trees cost at least what the cheapest link into and out of each other member costs;
        the roots for which this is least are tried.
        """
        cheapest = lengths.min(axis=1).reshape(self.plans, 2, self.count).sum(axis=1)
        barred = self.barred + np.where(self.rooted < self.most, 0.0, math.inf)
        bound = cheapest.sum(axis=1, keepdims=True) - cheapest + barred
        tried = np.argsort(bound, axis=1, kind="stable")[:, : self.roots]
        roots = tried.repeat(2, axis=1).reshape(-1)
        price, parents = grown(lengths, self.source, roots, self.depth)
        stuck = np.flatnonzero(np.isinf(price))
        if len(stuck):
            source, root = self.source[stuck], roots[stuck]
            price[stuck], parents[stuck] = levelled(
                lengths[source], self.hops[source % 2, root], root, self.depth[stuck]
            )
        pairs = price.reshape(self.plans, self.roots, 2).sum(axis=2)
        pairs += np.take_along_axis(barred, tried, axis=1)
        parents = parents.reshape(self.plans, self.roots, 2, self.count)
        found: Whole = parents[self.plan, pairs.argmin(axis=1)]
        return found

    def count_in(self, part: int, sign: int) -> None:
        """Add a part's loads, or take them out."""
        spread, reduce = self.parents[part, :, 0], self.parents[part, :, 1]
        plan = self.plan[:, None]
        self.load[plan, 0, spread, self.members] += sign
        self.load[plan, -1, self.members, reduce] += sign
        if self.copied:
            self.load[plan, -1, spread, self.members] += sign * self.copied
        self.load[:, :, self.members, self.members] = 0.0
        self.rooted += sign * (spread == self.members)

    def place_again(self, part: int, steepness: int) -> None:
        """Take a part out and put it on the cheapest trees, bettered."""
        self.count_in(part, -1)
        lengths = self.lengths(self.peaks(), steepness)
        parents = self.trees(lengths).reshape(-1, self.count)
        better = bettered(lengths, parents, self.limits, MOVES)
        self.parents[part] = better.reshape(self.plans, 2, self.count)
        self.count_in(part, 1)

    def run(self) -> list[tuple[Way, ...]]:
        """Place all parts, improve on that, and return the ways of the best plan seen."""
        first, *passes = STEEPNESS
        each = least_peak(self.network) * PARTS / self.phases
        ref = np.full((self.plans, self.phases), each)
        for part in range(PARTS):
            self.parents[part] = self.trees(self.lengths(ref, first))
            self.count_in(part, 1)
        least, best = self.peaks().sum(axis=1), self.parents.copy()
        for steepness in passes:
            for part in range(PARTS):
                self.place_again(part, steepness)
            now = self.peaks().sum(axis=1)
            better = now < least
            least = np.where(better, now, least)
            best[:, better] = self.parents[:, better]
        return [self.ways(best[:, k]) for k in range(self.plans)]

    def ways(self, parents: Whole) -> tuple[Way, ...]:
        """Return the ways of one plan."""
        rooted = np.where(parents == self.members, ROOT, parents)
        return merged(Way(tuple(up), tuple(down)) for down, up in rooted.tolist())
