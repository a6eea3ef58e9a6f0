"""A planner whose policies have several ways, drawn at random: any valid ones have to do.

What it answers follows from its seed and from what it is asked, as a planner's answers have to. A
fence asks without a present policy, and gets the standard planner's tree alone.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from edgeagent.planner.standard import StandardPlanner
from protocols.cluster.ways import Way, ways_fault
from protocols.network.measures import NOTHING_KNOWN, Measures
from protocols.scheduler.planning import Found

if TYPE_CHECKING:
    from protocols.cluster.policy import Policy
    from protocols.cluster.view import View
    from protocols.scheduler.planning import Plan

MOST_WAYS = 4
MOST_WEIGHT = 3


class WaysPlanner(StandardPlanner):
    """Plans with other ways for each number of a view.

    `window` is how many chunks a node may send ahead of the first one that it lacks. With
    `searches`, ways in force stay as long as they fit the view, and others are searched for
    meanwhile; every search finds others, and so leads to another policy.
    """

    def __init__(self, seed: int, *, searches: bool = False) -> None:
        super().__init__()
        self._seed = seed
        self._searches = searches
        self._count = 0  # of searches
        self.window = random.Random(f"window {seed}").randint(1, 4)

    @property
    def searches(self) -> bool:
        """Whether ways are searched for."""
        return self._searches

    def plan(
        self,
        view: View,
        micro_batches: int,
        away: tuple[bytes, ...],
        present: Policy | None = None,
        measures: Measures = NOTHING_KNOWN,
        found: Found | None = None,
    ) -> Plan:
        """Return the standard plan, with ways."""
        plan = super().plan(view, micro_batches, away, present, measures)
        if present is None:
            return plan
        for ways in (found.ways if found is not None else (), present.ways):
            if self._searches and ways and not ways_fault(view, ways):
                return replace(plan, ways=ways)
        dice = random.Random(f"ways {self._seed} {view.number}")
        return replace(plan, ways=random_ways(view, dice))

    def search(
        self, policy: Policy, measures: Measures = NOTHING_KNOWN, before: Found | None = None
    ) -> Found:
        """Return ways that no search has found before."""
        self._count += 1
        dice = random.Random(f"search {self._seed} {self._count}")
        return Found(random_ways(policy.view, dice), "drawn")


def random_ways(view: View, dice: random.Random) -> tuple[Way, ...]:
    """Return up to `MOST_WAYS` ways along the links of `view`, which is connected."""
    found: list[Way] = []
    for _ in range(dice.randint(0, MOST_WAYS)):
        root = dice.randrange(len(view.nodes))
        up, down = (_tree(view, root, dice) for _ in range(2))
        found.append(Way(up, down, dice.randint(1, MOST_WEIGHT)))
    return tuple(found)


def _tree(view: View, root: int, dice: random.Random) -> bytes:
    """Return the number of each member's parent, that of the root itself for the root."""
    numbers = {node: k for k, node in enumerate(view.nodes)}
    ends = [(numbers[e.low], numbers[e.high]) for e in view.edges]
    pairs = ends + [(b, a) for a, b in ends]
    parents = {root: root}
    while len(parents) < len(numbers):
        above, below = dice.choice([(a, b) for a, b in pairs if a in parents and b not in parents])
        parents[below] = above
    return bytes(parents[k] for k in range(len(numbers)))
