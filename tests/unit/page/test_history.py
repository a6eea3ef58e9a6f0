"""What the page remembers: bounded, however long the training, and nothing counted twice."""

from __future__ import annotations

import random

import pytest

from edgeagent.page.history import MAX_LINES, MAX_POINTS, Curve, History, Point


def step(iteration: int, loss: float = 1.0) -> Point:
    """Return a step of 32 samples in half a second."""
    return Point(iteration, 1, 32, 0.5, loss, 1)


@pytest.mark.parametrize("count", [1, MAX_POINTS, MAX_POINTS + 1, 7 * MAX_POINTS + 3])
def test_the_curve_is_bounded_and_loses_no_step(count: int) -> None:
    chance = random.Random(count)
    losses = [chance.random() for _ in range(count)]
    curve = Curve()
    for k, loss in enumerate(losses):
        curve.add(step(k + 1, loss))
        assert len(curve.points) <= MAX_POINTS
    assert sum(p.steps for p in curve.points) == count
    assert sum(p.loss_sum for p in curve.points) == pytest.approx(sum(losses))
    assert curve.points[-1].iteration == count
    assert all(p.steps == curve.stride for p in curve.points[:-1])
    assert len(curve.points) > MAX_POINTS // 2 or count < MAX_POINTS  # no coarser than it must be


def test_points_say_the_mean_loss_and_the_rate() -> None:
    first = step(1, 2.0)
    first.take(step(2, 4.0))
    first.take(Point(3, 1))  # its loss is no number, and how long it took is not known
    assert (first.iteration, first.steps, first.loss, first.rate) == (3, 3, 3.0, 64.0)
    assert (Point(1, 1).loss, Point(1, 1).rate) == (None, None)


def test_steps_that_are_done_again_replace_the_old_ones() -> None:
    curve = Curve()
    for iteration in (1, 2, 3, 4, 2):
        curve.add(step(iteration))
    assert [p.iteration for p in curve.points] == [1, 2]


class Noted:
    """A history with a clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.history = History(lambda: self.now, lambda: self.now + 1e9)

    def step(self, iteration: int, seconds: float, loss: float | None = 1.0) -> None:
        self.now += seconds
        self.history.event("step", {"iteration": iteration, "loss": loss, "samples": 32})

    @property
    def texts(self) -> list[str]:
        return [text for _, _, text in self.history.lines]


def test_the_time_of_a_pull_is_no_step() -> None:
    noted = Noted()
    noted.step(1, 1.0)
    noted.step(2, 1.0, loss=float("nan"))
    noted.history.event("joined", {})
    noted.step(3, 60.0, loss=None)
    assert [(p.rate, p.loss) for p in noted.history.curve.points] == [
        (None, 1.0),
        (32.0, None),
        (None, None),
    ]


def test_the_log_is_bounded_clean_and_numbered() -> None:
    noted = Noted()
    told: list[int] = []
    noted.history.on_line = lambda: told.append(1)
    for k in range(MAX_LINES + 5):
        noted.history.line(f"line {k}\n\u202ex")
    assert len(noted.history.lines) == MAX_LINES
    assert noted.history.lines[-1][0] == len(told) == MAX_LINES + 5
    assert noted.texts[-1] == f"line {MAX_LINES + 4}  x"


def test_events_without_a_line_of_the_terminal_get_one() -> None:
    noted = Noted()
    for event, values in (
        ("link_up", {"node": "bob"}),
        ("link_down", {"node": "bob"}),
        ("restarted", {"iteration": 9, "members": ["alice", "carol"]}),
        ("member_left", {"node": "bob", "stall_s": 0.25}),
        ("member_left", {"node": "bob", "stall_s": 0.001}),
        ("member_left", {"node": "bob", "stall_s": None}),
        ("error", {"message": "no more"}),
        ("digest", {"iteration": 10}),
    ):
        noted.history.event(event, values)
    assert noted.texts == [
        "the link to bob is open",
        "the link to bob has ended",
        "step 10 was done again by 2 members after a failure",
        "the departure of bob made a step 0.25 s longer",
        "error: no more",
    ]
