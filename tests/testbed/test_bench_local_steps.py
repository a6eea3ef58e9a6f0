"""`scripts/bench local-steps`: what its table says of runs."""

from __future__ import annotations

import pytest

from tests.testbed.bench.local_steps import ORDINARY, Outcome, Point, Way, at, table, way_of

EARLY, LATER = Point(10.0, 10_240, 0.9, 0.5), Point(100.0, 102_400, 0.5, 0.8)
FAST = Point(20.0, 51_200, 0.7, 0.7), Point(110.0, 512_000, 0.3, 0.9)


def test_a_row_has_the_state_that_was_there_by_then() -> None:
    runs = [
        Outcome(10.0, Way(ORDINARY), 900.0, 2800.0, points=(EARLY, LATER)),
        Outcome(10.0, Way(50, "nesterov"), 5000.0, 56.0, points=FAST),
        Outcome(100.0, Way(50, "average"), why="it broke"),
    ]
    slow, fast = table(runs, 120.0).split("\n\n**100")
    assert "| every step | 900 | 2,800.0 | 0.500 | 0.900 | 0.500 | 80.0 % | 102,400 |" in slow
    assert "| H = 50, nesterov | 5,000 | 56.0 | 0.700 | 0.700 | 0.300 | 90.0 % | 512,000 |" in slow
    assert "loss after 102,400 samples" in slow
    assert "| H = 50, average | failed: it broke |" in fast


def test_before_the_first_state_there_is_none() -> None:
    assert at(FAST, seconds=19.0) is None
    assert at(FAST, samples=51_199) is None
    assert at(FAST, samples=51_200) == FAST[0]


@pytest.mark.parametrize(
    ("text", "way"),
    [("0", Way(ORDINARY)), ("10", Way(10, "average")), ("50:nesterov", Way(50, "nesterov"))],
)
def test_ways_are_read(text: str, way: Way) -> None:
    assert way_of(text) == way


def test_states_are_written_after_about_the_same_number_of_samples() -> None:
    every = [Way(h, "average").options() for h in (0, 10, 200)]
    found = [options[options.index("--save-every") + 1] for options in every]
    assert found == ["40", "4", "1"]
