"""`scripts/failures`: what it finds wrong with histories written by hand, and what it prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.scenarios import histories
from tests.scenarios.failure_times import Case
from tests.scenarios.process_storm import Footprint, growth_problems

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "failures"
BATCH = 64
Event = histories.Event


def step(iteration: int, samples: int = BATCH) -> Event:
    """Return the event of one step."""
    return {"t": float(iteration), "event": "step", "iteration": iteration, "samples": samples}


def digest(iteration: int, state: str, commit: str) -> Event:
    """Return the event of one digest."""
    return {"event": "digest", "iteration": iteration, "state": state, "commit": commit}


def history(first: int, last: int, *, fork: str = "") -> list[Event]:
    """Return the events of a member from its entry on."""
    steps: list[Event] = [{"event": "joined"}]
    for k in range(first, last + 1):
        steps += [step(k), digest(k, f"s{k}{fork}", f"c{k}{fork}")]
    return steps


def test_good_histories() -> None:
    al, bo = history(1, 9), [{"event": "started"}, *history(4, 9)]
    assert histories.check({"al": al, "bo": bo}, ["al", "bo"], BATCH) == []
    assert histories.memberships(bo) == [bo[1:]]
    assert sum(histories.counted_samples({"al": al}, ["al"]).values()) == 9 * BATCH


def test_the_first_step_of_a_joiner_comes_before_its_entry() -> None:
    again = [{"event": "link_up"}, step(7), digest(7, "s7", "c7"), *history(8, 9)]
    lives = {"al": history(1, 9), "bo": [*history(1, 4), *again]}
    assert histories.check(lives, ["al", "bo"], BATCH) == []
    assert histories.memberships(lives["bo"])[1] == again[1:]
    at_once = [step(7), digest(7, "s7", "c7"), step(8), *history(9, 9)]
    assert histories.memberships([*history(1, 4), *at_once]) == [history(1, 4), at_once]


def test_a_life_that_ended_may_be_a_step_ahead() -> None:
    lives = {"al": history(1, 9), "bo": [*history(1, 4), step(5), digest(5, "x", "x")]}
    assert histories.check(lives, ["al"], BATCH) == []
    assert histories.check(lives, ["al", "bo"], BATCH) == ["bo and al: two histories at step 5"]


@pytest.mark.parametrize(
    ("bo", "problem"),
    [
        ([*history(1, 3), *history(5, 9)[1:]], "bo: step 5 follows 3"),
        ([*history(1, 3), *history(3, 9)[1:]], "bo: step 3 follows 3"),
        ([*history(1, 8), step(9, 60)], "bo: not 64 samples in steps [9]"),
        ([*history(1, 8), step(9), digest(9, "x", "c9")], "bo and al differ at step 9"),
        (history(1, 9, fork="x"), "bo and al: two histories at step 1"),
    ],
)
def test_what_is_wrong_is_found(bo: list[Event], problem: str) -> None:
    lives = {"al": history(1, 9), "bo": bo}
    assert problem in histories.check(lives, ["al", "bo"], BATCH)


def test_lost_samples_are_missed() -> None:
    lives = {"al": [*history(1, 3), {"event": "link_up"}, *history(5, 9)]}
    assert histories.check(lives, ["al"], BATCH) == [f"{8 * BATCH} samples in 9 steps of {BATCH}"]
    assert histories.check({"al": []}, ["al"], BATCH) == ["no step was done"]


def test_the_summary_of_a_case() -> None:
    case = Case("worker of 4", decision_s=[0.1, 0.4, 0.2], step_s=[1.0, 2.0, 3.0])
    assert case.summary() == {
        "case": "worker of 4",
        "times": 3,
        "decision_s": {"median": 0.2, "worst": 0.4},
        "step_s": {"median": 2.0, "worst": 3.0},
    }


def test_growth_is_found() -> None:
    def series(grows: int) -> list[Footprint]:
        return [Footprint(float(k), 80 << 20, 30 + grows * k, 4, 6) for k in range(30)]

    assert growth_problems([]) == []
    assert growth_problems(series(0)) == []
    assert growth_problems(series(2)) == ["the anchor's descriptors grew from 59 to 79"]


def test_wrong_usage() -> None:
    for wrong in (["nonsense"], ["--times", "0"], ["storm", "--agents", "2"]):
        command = [sys.executable, str(SCRIPT), *wrong]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 2
        assert "scripts/failures: error:" in ended.stderr
