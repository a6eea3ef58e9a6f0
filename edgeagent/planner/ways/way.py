"""A way: how one part of the gradients travels to its root and back to all members."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

ROOT = -1  # what stands in the place of the root's parent
# Into so many parts a plan cuts the vector: twice as many would come 1 or 2 % nearer to the bound,
# for twice the time.
PARTS = 128


@dataclass(frozen=True, slots=True)
class Way:
    """A reduce tree, a spread tree with the same root, and how many parts travel along them.

    Members are 0 to n - 1. `up[v]` is the member to which v sends its sum, and `down[v]` the one
    from which it gets the result; both are -1 for the root. The two trees may differ, because the
    two directions of a link may. `weight` counts equal parts: a plan's ways carry the share
    weight / (sum of all weights) of the vector each.
    """

    up: tuple[int, ...]
    down: tuple[int, ...]
    weight: int = 1

    @property
    def root(self) -> int:
        """The member at which sums are complete."""
        return self.up.index(ROOT)


def way_fault(way: Way, links: Iterable[tuple[int, int]]) -> str | None:
    """Return in words what is wrong with `way` among members with these directed links, or None."""
    if way.weight < 1:
        return f"a way carries at least one part, not {way.weight}"
    if len(way.up) != len(way.down):
        return f"{len(way.up)} members on the reduce tree, {len(way.down)} on the spread tree"
    there = frozenset(links)
    for name, parents in (("reduce", way.up), ("spread", way.down)):
        if parents.count(ROOT) != 1:
            return f"the {name} tree has {parents.count(ROOT)} roots"
        for member, parent in enumerate(parents):
            hop = (member, parent) if name == "reduce" else (parent, member)
            if parent != ROOT and hop not in there:
                return f"the {name} tree sends from {hop[0]} to {hop[1]} without a link"
        if not _leads_to_root(parents):
            return f"the {name} tree has a cycle"
    if way.root != way.down.index(ROOT):
        return f"sums are complete at {way.root}, but spread from {way.down.index(ROOT)}"
    return None


def _leads_to_root(parents: tuple[int, ...]) -> bool:
    for member in range(len(parents)):
        for _ in parents:
            if member == ROOT:
                break
            member = parents[member]
        if member != ROOT:
            return False
    return True


def merged(ways: Iterable[Way]) -> tuple[Way, ...]:
    """Return the ways with equal trees joined into one of their weights' sum, in the order in which
    each was first seen."""
    weights: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    for way in ways:
        weights[way.up, way.down] = weights.get((way.up, way.down), 0) + way.weight
    return tuple(Way(up, down, weight) for (up, down), weight in weights.items())
