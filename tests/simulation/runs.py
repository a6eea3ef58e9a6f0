"""What `scripts/storm` does with random histories: it plays many, and shrinks one that fails.

A seed that fails is named with what went wrong, and can be played again alone. Results do not
depend on how seeds are distributed over processes.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tests.simulation import coverage, faults, rare, storm
from tests.simulation.mutations import MUTATIONS
from tests.simulation.storm import Size, Storm

if TYPE_CHECKING:
    from tests.simulation.coverage import Move
    from tests.simulation.faults import Intensities

PROCESSES = 2
SEEDS_AT_A_TIME = 8


@dataclass
class Result:
    """The result of one seed. `problem`: what went wrong, "" if nothing did. `fired`: kind of fault
    -> how often it happened. `moves`: move of a state table -> how often it was made."""

    seed: int
    problem: str = ""
    fired: dict[str, int] = field(default_factory=dict)
    moves: dict[Move, int] = field(default_factory=dict)


def play(seed: int) -> Result:
    """Play the history of one seed."""
    with coverage.recording() as moves:
        history = Storm(seed, faults.draw(seed), storm.size_of(seed))
        result = Result(seed, fired=history.world.fired, moves=moves)
        try:
            history.play()
        except Exception as error:
            result.problem = f"{type(error).__name__}: {error}"
    return result


def play_all(seeds: Iterable[int], mutation: str | None = None) -> Iterator[Result]:
    """Play many seeds in two processes, perhaps with a planted bug."""
    planted = MUTATIONS[mutation]() if mutation else nullcontext()
    with planted, multiprocessing.get_context("fork").Pool(PROCESSES) as pool:
        yield from pool.imap_unordered(play, seeds, SEEDS_AT_A_TIME)


def first_found(mutation: str, seeds: Iterable[int]) -> tuple[int, str]:
    """Return the first of `seeds` that finds a planted bug, and how it shows; -1 if none does."""
    with MUTATIONS[mutation]():
        for seed in seeds:
            if problem := problem_with(mutation, seed):
                return seed, problem.splitlines()[0]
    return -1, ""


def problem_with(mutation: str, seed: int) -> str:
    """Return what goes wrong in the history that looks for a planted bug, "" if nothing does."""
    history = rare.HISTORIES.get(mutation)
    if history is None:
        return play(seed).problem
    try:
        history(seed)
    except AssertionError as error:
        return str(error)
    return ""


def fails(seed: int, intensities: Intensities, size: Size) -> str:
    """Return how the history of `seed` with these faults and this size fails, "" if it does not."""
    try:
        storm.run(seed, intensities, size)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def shrink(seed: int) -> tuple[Intensities, Size, str]:
    """Return a smaller history of `seed` that still fails, and how it fails. Kinds of faults are
    turned off one at a time, then devices and steps are taken away, as long as it still fails."""
    intensities, size = faults.draw(seed), storm.size_of(seed)
    problem = fails(seed, intensities, size)
    again = bool(problem)
    while again:
        again = False
        for kind in intensities.active:
            fewer = intensities.without(kind)
            if found := fails(seed, fewer, size):
                intensities, problem, again = fewer, found, True
        for smaller in (replace(size, nodes=size.nodes - 1), replace(size, steps=size.steps // 2)):
            if smaller.nodes < 2 or smaller.steps < 1:
                continue
            if found := fails(seed, intensities, smaller):
                size, problem, again = smaller, found, True
                break
    return intensities, size, problem


def trace(seed: int) -> str:
    """Return a digest over all events of the history of `seed`, in order."""
    history = Storm(seed, faults.draw(seed), storm.size_of(seed))
    log: list[str] = []
    history.world.log = log
    history.play()
    return hashlib.sha256("\n".join(log).encode()).hexdigest()


def timed(seeds: range, mutation: str | None = None) -> tuple[list[Result], float]:
    """Play all seeds; return the results and the seconds that it took."""
    began = time.monotonic()
    return list(play_all(seeds, mutation)), time.monotonic() - began
