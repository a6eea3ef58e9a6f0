"""A few random histories in which together every fault happens and every move of the tables is
made.

Hundreds of seeds show the same, but take minutes. A change of the protocols can change what a
history does; `scripts/storm --fullest FIRST LAST` then chooses anew.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from tests.simulation import coverage, faults, storm
from tests.simulation.faults import Intensities
from tests.simulation.storm import Size, Storm

EVERYTHING = Intensities(
    *(0.01, 0.01, 0.05, 0.05, 0.002, 2, 1, 1, 1, 1, 1, 1, 1, 1, 2, 0.001, 0.6, 0.5, 1, 1, 2, 2),
    hang=2,
    away=2,
    small_frames=2,
)


@dataclass(frozen=True, order=True)
class Choice:
    """One history: with the faults that its seed draws, or with all kinds of faults at once."""

    seed: int
    everything: bool = False

    def history(self) -> Storm:
        """Return the history, which has not been played yet."""
        if self.everything:
            return Storm(self.seed, EVERYTHING, Size(5, 40))
        return Storm(self.seed, faults.draw(self.seed), storm.size_of(self.seed))


FULLEST = (
    *(Choice(seed) for seed in (112, 113, 114, 126, 190, 206, 235, 282, 309, 330013, 600180)),
    *(Choice(s, everything=True) for s in (46, 112, 175, 213, 226, 238, 301, 318, 840011, 840035)),
    *(Choice(seed) for seed in (910000, 910001, 910007, 910009, 910011, 910015, 910019, 910026)),
    *(Choice(seed) for seed in (910027, 910043, 910048, 1060037, 1090025, 1090036, 1210004)),
    *(Choice(s, everything=True) for s in (840046, 1210010, 1270006, 1270012, 1270041, 1270043)),
    *(Choice(s, everything=True) for s in (1270186, 1270205, 1278060, 1278286, 500106)),
    Choice(940000),
)


def wanted() -> list[object]:
    """Return what must happen: all kinds of faults, and all moves except those known to be rare."""
    moves = [move for move in coverage.all_moves() if move not in coverage.RARE]
    return [*faults.KINDS, "silence", *moves]


def seen(choice: Choice) -> dict[object, None]:
    """Play a history; return those of `wanted` that happened in it."""
    history = choice.history()
    with coverage.recording() as moves:
        history.play()
    fired = [kind for kind, count in history.world.fired.items() if count]
    return {x: None for x in wanted() if x in fired or x in moves}


def choose(seeds: Iterable[int]) -> tuple[list[Choice], list[object]]:
    """Return a few short histories that show all that those of `seeds` show, and what none shows.

    The choice is greedy: the next history is the one that adds most for the time it takes.
    """
    found: dict[Choice, tuple[dict[object, None], float]] = {}
    for choice in (Choice(seed, everything) for seed in seeds for everything in (False, True)):
        began = time.perf_counter()
        what = seen(choice)
        found[choice] = what, time.perf_counter() - began
    shown = dict.fromkeys(x for what, _ in found.values() for x in what)
    left = [x for x in wanted() if x in shown]
    chosen = []
    while left:
        now = left

        def gain(choice: Choice, now: list[object] = now) -> float:
            what, took = found[choice]
            return sum(x in what for x in now) / (0.3 + took)

        chosen.append(max(found, key=gain))
        left = [x for x in left if x not in found[chosen[-1]][0]]
    return sorted(chosen), [x for x in wanted() if x not in shown]
