"""What a divided optimizer asks of ways: where sums may be complete, and who else gets them.

A chunk's result is made by the owner of its stripe, and a stripe can be owned by any of its
holders. So a member can be the root of as large a part of the gradient as it holds of the
optimizer's state, and where it holds nothing, of none. The sum goes on to the copies. Only when all
sums are where they belong are results spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeagent.planner.ways.way import PARTS, ROOT, Way
from protocols.cluster.stripes import held_by

if TYPE_CHECKING:
    from protocols.cluster.policy import Policy
    from protocols.cluster.view import View


@dataclass(frozen=True, slots=True)
class Division:
    """Of how many of `PARTS` parts each member may be the root, and to how many `copies` the sum of
    each part goes beside its root."""

    most: tuple[int, ...]
    copies: int


def division_of(policy: Policy, view: View) -> Division | None:
    """Return what the members of `view` hold under `policy`; None if it has no stripes, so that
    each member can be the root of all."""
    if not policy.stripes:
        return None
    held = {n: len(held_by(policy.stripes, k)) for k, n in enumerate(policy.view.nodes)}
    most = tuple(-(-held.get(n, 0) * PARTS // len(policy.stripes)) for n in view.nodes)
    return Division(most, max(len(stripe.holders) for stripe in policy.stripes) - 1)


def within(ways: Sequence[Way], division: Division | None) -> bool:
    """Whether no member is the root of more than it may be."""
    if division is None:
        return True
    whole = sum(way.weight for way in ways)
    rooted = [0] * len(division.most)
    for way in ways:
        rooted[way.root] += way.weight
    return all(PARTS * k <= division.most[v] * whole for v, k in enumerate(rooted))


def turned(tree: Sequence[int], division: Division) -> tuple[Way, ...]:
    """Return ways along the links of one `tree` (each member's parent, `ROOT` for its root), one
    from each member that may be a root, with weights as nearly in proportion to its most as
    possible."""
    total, given, passed = sum(division.most), 0, 0
    found: list[Way] = []
    for root, most in enumerate(division.most):
        passed += most
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
