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
from tests.simulation.mutations import MUTATIONS

ROOT = Path(__file__).resolve().parent.parent.parent
SEEDS = range(100)
ONCE_FAILED = [int(s) for s in (Path(__file__).parent / "seeds.txt").read_text("utf-8").split()]
EVENTFUL = 29  # crashes, restarts, a partition, doubled frames
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


def test_every_fault_fires() -> None:
    fired: dict[str, int] = {}
    for seed in SEEDS:
        if all(fired.get(kind) for kind in (*faults.KINDS, "silence")):
            return
        for kind, count in runs.play(seed).fired.items():
            fired[kind] = fired.get(kind, 0) + count
    missing = [kind for kind in faults.KINDS if not fired.get(kind)]
    assert not missing


def test_a_record_has_only_moves_that_exist() -> None:
    assert dict.fromkeys(runs.play(EVENTFUL).moves).keys() <= coverage.all_moves().keys()
