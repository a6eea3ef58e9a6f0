"""Cheap directed trees that cover all members, for many roots and prices at the same time.

The cheapest spanning tree of a directed graph with no more than some number of hops is hard to
find, and one is needed hundreds of times a plan. These trees are grown as Prim's algorithm grows
them, which is not exact where the two directions of a link differ, and then bettered by moves of
single members. Row g of every array belongs to tree g; trees grow away from their root, so the
prices of a tree towards its root are passed transposed. A root is its own parent here.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edgeagent.planner.ways.network import Floats, Whole

    Flags = NDArray[np.bool_]

SMALL = 1e-9  # a move that gains no more than this part of a link's price is rounding


def grown(lengths: Floats, source: Whole, roots: Whole, depth: Whole) -> tuple[Floats, Whole]:
    """Return (price, parents) of a tree for each row, always adding the member that is cheapest to
    add.

    `lengths[source[g], u, v]` is the price of the link from u to v for tree g, inf without a link,
    `roots[g]` its root and `depth[g]` the most hops from there. The price is inf if the limit left
    no link to some member; `levelled` may find a tree there.
    """
    rows, count = np.arange(len(source)), lengths.shape[1]
    price = np.zeros(len(rows))
    level = np.zeros((len(rows), count), dtype=np.int64)
    parents = np.repeat(roots[:, None], count, axis=1)
    free = np.ones((len(rows), count), dtype=np.bool_)
    free[rows, roots] = False
    best = lengths[source, roots]
    best[rows, roots] = math.inf
    for _ in range(count - 2):
        new = best.argmin(axis=1)
        price += best[rows, new]
        at = level[rows, parents[rows, new]] + 1
        level[rows, new] = at
        best[rows, new] = math.inf
        free[rows, new] = False
        onward = lengths[source, new]
        nearer = (onward < best) & free & (at < depth)[:, None]
        np.copyto(best, onward, where=nearer)
        np.copyto(parents, new[:, None], where=nearer)
    return price + best.min(axis=1), parents


def levelled(lengths: Floats, away: Whole, roots: Whole, depth: Whole) -> tuple[Floats, Whole]:
    """Return (price, parents) of trees in which each member is as near to the root as it can be,
    each along the cheapest link from a member that is one hop nearer.

    `lengths[g]` are the prices for tree g, and `away[g, v]` the fewest hops from its root to v. The
    price is inf if that exceeds `depth[g]` for some member.
    """
    rows = np.arange(len(roots))
    fits = away[:, :, None] + 1 == away[:, None, :]
    length = np.where(fits, lengths, math.inf)
    cheapest = length.min(axis=1)
    cheapest[rows, roots] = 0.0
    price = np.where(away.max(axis=1) > depth, math.inf, cheapest.sum(axis=1))
    parents = length.argmin(axis=1)
    parents[rows, roots] = roots
    return price, parents


def bettered(lengths: Floats, parents: Whole, depth: Whole, moves: int) -> Whole:
    """Return the trees after at most `moves` moves in each, of which every one gives a member
    another parent and gains the most.

    A member takes those below it along, so it cannot go below itself, and no one may come to lie
    deeper than `depth[g]`. `lengths[g]` are the prices for tree g.
    """
    rows, count = np.arange(len(parents)), parents.shape[1]
    members = np.arange(count)
    parents = parents.copy()
    under, level = _positions(parents)
    is_root = parents == members
    for _ in range(moves):
        paid = lengths[rows[:, None], parents, members]
        paid[is_root] = -math.inf
        height = (under * level[:, None, :]).max(axis=2) - level
        too_deep = level[:, :, None] + 1 + height[:, None, :] > depth[:, None, None]
        barred = under.transpose(0, 2, 1) | too_deep
        gain = (paid[:, None, :] - np.where(barred, math.inf, lengths)).reshape(len(rows), -1)
        chosen = gain.argmax(axis=1)
        worth = gain[rows, chosen] > SMALL * np.abs(paid[rows, chosen % count])
        some = np.flatnonzero(worth)
        if not len(some):
            break
        _move(under, level, some, chosen[some] % count, chosen[some] // count)
        parents[some, chosen[some] % count] = chosen[some] // count
    return parents


def _positions(parents: Whole) -> tuple[Flags, Whole]:
    """Return `under[g, a, b]`, whether b is a or below a, and `level[g, v]`, hops from the root."""
    rows, members = np.arange(len(parents))[:, None], np.arange(parents.shape[1])
    under = np.zeros((*parents.shape, parents.shape[1]), dtype=np.bool_)
    under[:, members, members] = True
    level = np.zeros(parents.shape, dtype=np.int64)
    below, above = np.broadcast_to(members, parents.shape), parents
    while (climbs := above != below).any():
        level += climbs
        under[rows, above, members] = True
        below, above = above, np.take_along_axis(parents, above, axis=1)
    return under, level


def _move(under: Flags, level: Whole, some: Whole, members: Whole, onto: Whole) -> None:
    """Let in each tree of `some` a member hang on another, with all that are below it."""
    each = np.arange(len(some))
    taken = under[some, members]
    left = under[some, :, members]
    left[each, members] = False
    now = under[some] & ~(left[:, :, None] & taken[:, None, :])
    now |= now[each, :, onto][:, :, None] & taken[:, None, :]
    under[some] = now
    level[some] += taken * (level[some, onto] + 1 - level[some, members])[:, None]
