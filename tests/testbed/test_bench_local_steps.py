"""`scripts/bench local-steps`: what its table says of runs."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from tests.testbed.bench.local_steps import (
    FILE,
    ORDINARY,
    SUBJECTS,
    Outcome,
    Point,
    Subject,
    Way,
    at,
    earlier,
    table,
    way_of,
    write,
)
from tests.testbed.namespaces import TestbedError

CLOTHES, TEXT = SUBJECTS["fashion-mnist"], SUBJECTS["text"]
EARLY, LATER = Point(10.0, 10_240, 0.9, 0.5), Point(100.0, 102_400, 0.5, 0.8)
FAST = Point(20.0, 51_200, 0.7, 0.7), Point(110.0, 512_000, 0.3, 0.9)
FASTER = Point(19.0, 51_200, 0.6, 0.7), Point(100.0, 512_000, 0.2, 0.92)


def test_a_row_has_the_states_that_were_there_by_then() -> None:
    runs = [
        Outcome(CLOTHES, 10.0, Way(ORDINARY), 1, 900.0, 2800.0, points=(EARLY, LATER)),
        Outcome(CLOTHES, 10.0, Way(50, "nesterov"), 1, 5000.0, 56.0, points=FAST),
        Outcome(CLOTHES, 10.0, Way(50, "nesterov"), 2, 5200.0, 58.0, points=FASTER),
        Outcome(CLOTHES, 10.0, Way(50, "nesterov"), 3, why="it broke"),
        Outcome(TEXT, 100.0, Way(50, "average"), 1, why="it broke"),
        Outcome(TEXT, 100.0, Way(10, "average"), 1, 50.0, 9.0, points=(Point(9.0, 640, 2.0, 7.4),)),
    ]
    clothes, text = table(runs, 120.0).split("\n\n**text")
    assert "loss after 102,400 samples" in clothes
    assert (
        "| every step | 900 | 2,800.0 | 0.500 | 0.900 | 0.500 | 80.0 % | 102,400 | 1 |" in clothes
    )
    both = "0.650 (0.600 to 0.700) | 0.650 (0.600 to 0.700) | 0.250 (0.200 to 0.300) | 91.0 %"
    assert f"| H = 50, nesterov | 5,100 | 57.0 | {both} | 512,000 | 2 |" in clothes
    assert "| H = 50, average | failed: it broke | | | | | | | 0 |" in text
    assert "| H = 10, average | 50 | 9.0 | 2.000 | 2.000 | 2.000 | 7.40 | 640 | 1 |" in text


def test_runs_of_an_earlier_call_are_kept_unless_they_failed(tmp_path: Path) -> None:
    args = Namespace(out=tmp_path, seconds=120.0, nodes=4, delay_ms=10.0)
    assert earlier(tmp_path / FILE, vars(args)) == []
    ended = Outcome(CLOTHES, 10.0, Way(50, "nesterov"), 1, 5000.0, 56.0, 0.9, FAST)
    failed = Outcome(TEXT, 100.0, Way(50, "average"), 2, why="it broke")
    write(args, [ended, failed])
    assert earlier(tmp_path / FILE, vars(args)) == [ended]
    with pytest.raises(TestbedError, match="had --delay-ms 10, not 5: choose that, or another"):
        earlier(tmp_path / FILE, {**vars(args), "delay_ms": 5.0})


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


@pytest.mark.parametrize(("subject", "every"), [(CLOTHES, "40 4 1"), (TEXT, "5 6 1")])
def test_states_are_written_after_about_the_same_number_of_samples(
    subject: Subject, every: str
) -> None:
    options = [Way(h, "average").options(subject, 1) for h in (0, 10, 200)]
    found = [each[each.index("--save-every") + 1] for each in options]
    assert " ".join(found) == every
