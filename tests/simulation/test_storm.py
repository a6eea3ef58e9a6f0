"""Random histories: many seeds, and those that once failed (`seeds.txt`).

`scripts/storm FIRST LAST` plays many more.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation import coverage, faults, runs, storm
from tests.simulation.faults import Intensities
from tests.simulation.mutations import MUTATIONS
from tests.simulation.storm import Size

ROOT = Path(__file__).resolve().parent.parent.parent
SEEDS = range(150)
ONCE_FAILED = [int(s) for s in (Path(__file__).parent / "seeds.txt").read_text("utf-8").split()]
EVENTFUL = 189  # crashes, restarts, a partition, frames out of order
HARDEST = (*range(58), 117, 146)
EVERYTHING = Intensities(
    *(0.01, 0.01, 0.05, 0.05, 0.002, 2, 1, 1, 1, 1, 1, 1, 1, 1, 2, 0.001, 0.6, 0.5, 1, 1, 2, 2),
    hang=2,
    away=2,
    small_frames=2,
)
REPLAY = f"from tests.simulation.runs import trace; print(trace({EVENTFUL}))"


@pytest.mark.parametrize("seed", sorted({*SEEDS, *ONCE_FAILED}))
def test_storm(seed: int) -> None:
    storm.run(seed)


def test_a_history_is_the_same_in_every_process() -> None:
    traces = [
        subprocess.run(
            [sys.executable, "-c", REPLAY],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert traces[0] == traces[1] == f"{runs.trace(EVENTFUL)}\n"


def test_turning_a_kind_off_leaves_the_others_as_they_are() -> None:
    drawn = faults.draw(EVENTFUL)
    fewer = drawn.without("crash")
    assert drawn.crash
    assert fewer.active == tuple(k for k in drawn.active if k != "crash")


def test_a_failing_history_shrinks() -> None:
    """With a planted bug that needs a loss, the loss is what is left."""
    with MUTATIONS["forget_reassigned"]():
        seed = next(s for s in range(40) if runs.play(s).problem)
        intensities, size, problem = runs.shrink(seed)
    assert "wrong state" in problem
    assert len(intensities.active) <= min(2, len(faults.draw(seed).active))
    assert size.nodes <= storm.size_of(seed).nodes


def test_every_fault_fires_and_every_move_is_made() -> None:
    """By the suite's histories and some in which all kinds come together."""
    fired: dict[str, int] = {}
    with coverage.recording() as moves:
        for seed in SEEDS:
            storm.run(seed)
        for seed in HARDEST:
            history = storm.Storm(seed, EVERYTHING, Size(5, 40))
            history.play()
            for kind, count in history.world.fired.items():
                fired[kind] = fired.get(kind, 0) + count
    assert [kind for kind in (*faults.KINDS, "silence") if not fired.get(kind)] == []
    never = [m for m in coverage.all_moves() if m not in moves and m not in coverage.RARE]
    assert never == []


def test_the_rare_moves_exist() -> None:
    assert coverage.RARE.keys() <= coverage.all_moves().keys()


def test_a_record_has_only_moves_that_exist() -> None:
    assert dict.fromkeys(runs.play(EVENTFUL).moves).keys() <= coverage.all_moves().keys()
