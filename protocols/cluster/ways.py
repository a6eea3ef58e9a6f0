"""Ways: how some chunks of the gradient travel, when one tree for all would leave links unused.

A way has a reduce tree, along which partial sums flow to its root, and a spread tree, along which
the reduced value flows from that root; the two may differ, because a link's directions do. A policy
has one tree for the control word, and as many ways as the planner wants for the other chunks. Which
chunk takes which way is a pure function of their weights, so that all members agree on it.

Members are numbered as in the view, so that a tree of n members is n bytes on the wire.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocols import limits
from protocols.wire.fields import Blob, UInt, wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocols.cluster.view import View

TREE = Blob(limits.MAX_MEMBERS)


@dataclass(frozen=True, slots=True)
class Way:
    """One way. `up[k]` is the number of the member to which member k sends its partial sums, and
    `down[k]` that of the member from which it gets the reduced value; both are k itself at the
    root. Of all chunks the way carries `weight` parts, of as many as all ways' weights add up
    to."""

    up: bytes = wire(TREE)
    down: bytes = wire(TREE)
    weight: int = wire(UInt(limits.MAX_WAY_WEIGHT))

    @property
    def root(self) -> int:
        """The number of the member at which sums are complete."""
        return next(k for k, parent in enumerate(self.up) if parent == k)


def ways_fault(view: View, ways: Sequence[Way]) -> str:
    """Return what is wrong with `ways` over the members of `view`, in words; "" if nothing is."""
    if sum(way.weight for way in ways) > limits.MAX_WAY_WEIGHT:
        return "the ways have too many parts"
    numbers = {node: k for k, node in enumerate(view.nodes)}
    linked = [bytearray(len(numbers)) for _ in numbers]
    for e in view.edges:
        low, high = numbers[e.low], numbers[e.high]
        linked[low][high] = linked[high][low] = 1
    for number, way in enumerate(ways):
        if way.weight < 1:
            return f"way {number} carries nothing"
        for name, parents in (("reduce", way.up), ("spread", way.down)):
            if fault := _tree_fault(view, linked, parents):
                return f"the {name} tree of way {number}: {fault}"
        if way.down[way.root] != way.root:
            return f"the trees of way {number} have different roots"
    return ""


def _tree_fault(view: View, linked: list[bytearray], parents: bytes) -> str:
    """Return why `parents` is no tree over all members, "" if it is one. `linked[a][b]` is whether
    members a and b have a link."""
    if len(parents) != len(linked):
        return "it has not one parent for each member"
    roots = [k for k, parent in enumerate(parents) if parent == k]
    if len(roots) != 1:
        return f"it has {len(roots)} roots"
    for k, parent in enumerate(parents):
        if k != parent and (parent >= len(linked) or not linked[k][parent]):
            return f"{view.members[k].name} has no link to its parent"
    children: list[list[int]] = [[] for _ in parents]
    for k, parent in enumerate(parents):
        if k != parent:
            children[parent].append(k)
    below = roots
    for k in below:
        below += children[k]
    return "" if len(below) == len(parents) else "it has a cycle"


def turns(weights: Sequence[int]) -> tuple[int, ...]:
    """Return the number of the way for each of a period of chunks, each way as often as its weight
    says and as evenly spread as can be (smooth weighted round robin).

    Chunk c, from 1 on, takes the way `turns(weights)[(c - 1) % len(turns(weights))]`. Chunks that
    follow each other so take different ways, and all links are busy from the first chunk on.
    """
    total, credit = sum(weights), [0] * len(weights)
    found: list[int] = []
    for _ in range(total):
        credit = [c + w for c, w in zip(credit, weights, strict=True)]
        best = credit.index(max(credit))
        credit[best] -= total
        found.append(best)
    return tuple(found)
