"""The arithmetic of the events' benchmark."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest

from tests.testbed.bench import events
from tests.testbed.bench.events import JOIN, KILL, Seen

USUAL = 0.1


def ends_of(*gaps: float) -> list[float]:
    """Steps that end so long after each other, quiet ones first."""
    return list(accumulate([0.0] + [USUAL] * events.QUIET_STEPS + list(gaps)))


QUIET_S = ends_of()[-1]


def test_a_stall_is_the_longest_step_around_the_event_less_the_usual_one() -> None:
    ends = ends_of(0.1, 0.4, 0.15, 0.1, 0.9)
    found = events.seen(JOIN, ends, QUIET_S + 0.05, QUIET_S + 0.6)
    assert found.usual == pytest.approx(USUAL)
    assert found.stall == pytest.approx(0.3)
    assert found.idle == pytest.approx(0.35)
    assert found.floor == pytest.approx(0.0)


def test_noise_is_looked_for_in_as_many_steps() -> None:
    ends = [end + (0.05 if k == events.QUIET_STEPS - 2 else 0) for k, end in enumerate(ends_of())]
    many = [*ends, *(QUIET_S + USUAL * k for k in range(1, 5))]
    assert events.seen(KILL, many, QUIET_S, QUIET_S + 0.05).floor < 0.01
    assert events.seen(KILL, many, QUIET_S, QUIET_S + 0.35).floor == pytest.approx(0.05)


def test_what_disturbs_before_the_event_is_not_quiet() -> None:
    ends = ends_of(0.5, 0.5, 0.1)
    found = events.seen(JOIN, ends, QUIET_S + 1.01, QUIET_S + 1.05, QUIET_S)
    assert found.floor == pytest.approx(0.0)
    assert found.stall == pytest.approx(0.0)


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(ValueError):
        events.seen(KILL, ends_of(0.1), QUIET_S - 0.15, QUIET_S)
    with pytest.raises(ValueError):
        events.seen(KILL, ends_of(), QUIET_S, QUIET_S + 1)


def test_quantiles_are_values_that_were_seen() -> None:
    values = [float(k) for k in range(1, 101)]
    assert events.quantile(values, 0.99) == 99.0
    assert events.quantile(values, 0.5) == 50.0
    assert events.quantile([3.0], 0.99) == 3.0


def test_an_interval_holds_the_quantile_as_often_as_it_says() -> None:
    chance = np.random.default_rng(1)
    for part, count in ((0.5, 20), (0.99, 500)):
        tries = [events.interval(list(chance.random(count)), part) for _ in range(150)]
        hits = sum((low or 0.0) <= part <= (1.0 if high is None else high) for low, high in tries)
        assert hits >= 0.9 * len(tries)
    assert events.interval([1.0, 2.0, 3.0], 0.99)[1] is None
    assert events.interval([float(k) for k in range(500)], 0.99)[1] is not None


def test_the_table_has_a_line_for_each_kind_that_was_seen() -> None:
    found = [Seen(JOIN, 0.0, 1.0, 0.1, 0.01 * k, 0.001, 0.02 * k) for k in range(1, 21)]
    rows = events.summary(found)
    assert [(row["event"], row["count"]) for row in rows] == [(JOIN, 20)]
    text = events.table(rows)
    assert "| scale-out | 20 | 105.0 (60.0 to 150.0) | 200.0 (190.0 to ?) | 1.0 " in text
    assert "Idle time of the members during a scale-out: median 210.0" in text
