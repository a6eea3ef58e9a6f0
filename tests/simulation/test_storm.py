"""Random histories: the first seeds, and those that have failed once (`seeds.txt`), the last ones
in every run and all of them with `--long`.

`scripts/storm FIRST LAST` plays many more.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation import coverage, faults, runs, storm
from tests.simulation.fullest import FULLEST, Choice, choose, seen, wanted
from tests.simulation.mutations import MUTATIONS
from tests.variants import variants

ROOT = Path(__file__).resolve().parent.parent.parent
ONCE_FAILED = [int(s) for s in (Path(__file__).parent / "seeds.txt").read_text("utf-8").split()]
SEARCHING = (770_001, 770_005, 770_009)  # histories in which ways are searched for
TAKE_LONG = (720_221, 60_284, 725_136, 480_517, 1_240_835)  # large clusters: up to a minute each
EVENTFUL = 189  # a history with crashes, restarts, a partition and frames out of order
REPLAY = f"from tests.simulation.runs import trace; print(trace({EVENTFUL}))"


DIVIDED = range(910_000, 910_300)  # no member keeps all of the optimizer's state
ROUNDS = range(1_000_000, 1_000_100)  # rounds of local steps and of subnets
ENDED = range(1_010_000, 1_010_100)  # trainers end for good
OUTSIDE = range(1_270_000, 1_270_100)  # a device follows from outside
LATELY = [seed for seed in ONCE_FAILED[-25:] if seed not in TAKE_LONG]
FEW = [*range(4), *DIVIDED[:6], *ROUNDS[:4], *ENDED[:4], *OUTSIDE[:4], *LATELY, *SEARCHING]
MANY = [*range(150), *TAKE_LONG, *DIVIDED, *ROUNDS, *ENDED, *OUTSIDE, *ONCE_FAILED]


@pytest.mark.parametrize("seed", variants(FEW, long=MANY))
def test_storm(seed: int) -> None:
    storm.run(seed)


@pytest.mark.parametrize("seed", variants(range(3), long=range(150)))
def test_a_storm_with_frozen_weights(seed: int) -> None:
    history = storm.Storm(seed, faults.draw(seed), storm.size_of(seed))
    history.world.is_frozen = True
    history.play()


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
    """With a planted bug that shows only after a loss, hardly more than the loss is left."""
    with MUTATIONS["forget_reassigned"]():
        seed = next(s for s in range(40) if runs.play(s).problem)
        intensities, size, problem = runs.shrink(seed)
    assert "wrong state" in problem
    assert len(intensities.active) <= min(2, len(faults.draw(seed).active))
    assert size.nodes <= storm.size_of(seed).nodes


def test_every_fault_fires_and_every_move_is_made() -> None:
    shown = dict.fromkeys(x for choice in FULLEST for x in seen(choice))
    assert [x for x in wanted() if x not in shown] == []


def test_those_that_show_most_are_chosen() -> None:
    chosen, missing = choose([3])
    shown = dict.fromkeys(x for choice in chosen for x in seen(choice))
    assert 1 <= len(chosen) <= 2
    assert sorted(map(str, wanted())) == sorted(map(str, [*shown, *missing]))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(60))
def test_a_storm_of_everything(seed: int) -> None:
    Choice(seed, everything=True).history().play()


def test_the_rare_moves_exist() -> None:
    assert coverage.RARE.keys() <= coverage.all_moves().keys()


def test_a_record_has_only_moves_that_exist() -> None:
    assert dict.fromkeys(runs.play(EVENTFUL).moves).keys() <= coverage.all_moves().keys()
