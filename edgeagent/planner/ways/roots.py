"""Where sums may be complete: with a divided optimizer only at members that hold the state for it.

A chunk's result is made by the owner of its stripe, and a stripe can be owned by any of its
holders. So a member can be the root of as large a part of the gradient as it holds of the
optimizer's state, and where it holds nothing, of none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgeagent.planner.ways.packed import PARTS
from edgeagent.planner.ways.way import ROOT, Way
from protocols.cluster.stripes import held_by

if TYPE_CHECKING:
    from protocols.cluster.policy import Policy
    from protocols.cluster.view import View


def room(policy: Policy, view: View) -> tuple[int, ...]:
    """Return of how many of `PARTS` parts each member of `view` can be the root under `policy`; ()
    if it has no stripes, so that each can be the root of all."""
    if not policy.stripes:
        return ()
    held = {n: len(held_by(policy.stripes, k)) for k, n in enumerate(policy.view.nodes)}
    return tuple(-(-held.get(n, 0) * PARTS // len(policy.stripes)) for n in view.nodes)


def within(ways: Sequence[Way], most: Sequence[int]) -> bool:
    """Whether no member is the root of more than it can be. `most`: as `room` returns it."""
    if not most:
        return True
    whole = sum(way.weight for way in ways)
    rooted = [0] * len(most)
    for way in ways:
        rooted[way.root] += way.weight
    return all(PARTS * k <= most[v] * whole for v, k in enumerate(rooted))


def turned(tree: Sequence[int], most: Sequence[int]) -> tuple[Way, ...]:
    """Return ways along the links of one `tree` (each member's parent, `ROOT` for its root), one
    from each member that can be a root, with weights as nearly in proportion to `most` as
    possible."""
    total, given, passed = sum(most), 0, 0
    found: list[Way] = []
    for root, room_here in enumerate(most):
        passed += room_here
        weight = passed * PARTS // total - given
        given += weight
        if weight:
            parents = _rooted(tree, root)
            found.append(Way(parents, parents, weight))
    return tuple(found)


def _rooted(tree: Sequence[int], root: int) -> tuple[int, ...]:
    """Return `tree` with another root: the links on the path between the two are reversed."""
    parents = list(tree)
    at, before = root, ROOT
    while at != ROOT:
        parents[at], before, at = before, at, parents[at]
    return tuple(parents)
