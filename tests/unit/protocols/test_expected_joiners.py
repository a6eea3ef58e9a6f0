"""When the scheduler expects a joiner to say what leads to its next policy."""

from __future__ import annotations

import math
from typing import Any

import pytest

from protocols.scheduler.join import STEPS_AFTER, Join, JoinState
from protocols.wire.messages import JoinProgress, PulledFrom

from .records import member, node

SOURCE = node(1)
STEP_S = 2.0


def joiner(state: JoinState = JoinState.COPYING, **more: Any) -> Join:
    return Join(5, member(9), (SOURCE,), 0.0, state, **more)


def progress(seconds: float, pulled: int, total: int) -> JoinProgress:
    return JoinProgress(5, total, int(seconds * 1e6), (PulledFrom(SOURCE, pulled, 0),))


def test_its_progress_foretells_when_it_will_have_copied() -> None:
    join = joiner()
    assert not join.is_expected(100.0, STEP_S), "nothing is known yet"
    join.foretell(100.0, progress(5.0, 0, 400), STEP_S)
    assert join.due_at == math.inf
    join.foretell(110.0, progress(10.0, 100, 400), STEP_S)
    assert join.due_at == pytest.approx(140.0)
    join.foretell(120.0, progress(20.0, 300, 400), STEP_S)
    due = join.due_at
    assert due == pytest.approx(120.0 + 20.0 / 3)
    for now, expected in (
        (due - STEP_S - 0.1, False),
        (due - STEP_S + 0.1, True),
        (due + STEPS_AFTER * STEP_S - 0.1, True),
        (due + STEPS_AFTER * STEP_S + 0.1, False),
    ):
        assert join.is_expected(now, STEP_S) is expected


def test_what_is_less_than_a_step_away_is_not_put_off() -> None:
    join = joiner()
    join.foretell(50.0, progress(10.0, 100, 200), STEP_S)
    assert join.due_at == pytest.approx(60.0)
    for now in range(51, 100):
        join.foretell(float(now), progress(now - 40.0, 199, 200), STEP_S)
    assert join.due_at < 53.0


def test_who_has_the_whole_snapshot_is_due() -> None:
    for pulled in (200, 0, 300):  # 0: it had all before; 300: no number to be believed
        join = joiner()
        join.foretell(55.0, progress(15.0, pulled, pulled and 200), STEP_S)
        join.foretell(70.0, progress(30.0, pulled, pulled and 200), STEP_S)
        assert join.due_at == 55.0, "from then on it only catches up"


def test_who_follows_from_outside_is_not_expected() -> None:
    join = joiner(resumed=True)
    join.foretell(50.0, progress(10.0, 200, 200), STEP_S)
    assert not join.is_expected(50.0, STEP_S)


def test_who_is_sent_the_last_updates_is_expected_to_catch_up() -> None:
    pulling, due = JoinState.PULLING, {"copied": True, "due_at": 7.0}
    assert not joiner(pulling, due_at=7.0).is_expected(7.0, STEP_S), "the others wait for it"
    assert joiner(pulling, **due).is_expected(7.0, STEP_S)
    assert not joiner(pulling, **due).is_expected(7.1 + STEPS_AFTER * STEP_S, STEP_S)
    assert not joiner(JoinState.CAUGHT_UP, **due).is_expected(7.0, STEP_S)
