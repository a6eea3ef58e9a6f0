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
    join.foretell(100.0, progress(5.0, 0, 400))
    assert join.due_at == math.inf
    join.foretell(110.0, progress(10.0, 100, 400))
    assert join.due_at == pytest.approx(140.0)
    join.foretell(120.0, progress(20.0, 300, 400))
    due = join.due_at
    assert due == pytest.approx(120.0 + 20.0 / 3)
    for now, expected in (
        (due - STEP_S - 0.1, False),
        (due - STEP_S + 0.1, True),
        (due + STEPS_AFTER * STEP_S - 0.1, True),
        (due + STEPS_AFTER * STEP_S + 0.1, False),
    ):
        assert join.is_expected(now, STEP_S) is expected


def test_who_has_the_whole_snapshot_is_due() -> None:
    join = joiner()
    join.foretell(50.0, progress(10.0, 100, 200))
    assert join.due_at == pytest.approx(60.0)
    join.foretell(55.0, progress(15.0, 200, 200))
    join.foretell(70.0, progress(30.0, 200, 200))
    assert join.due_at == 55.0, "from then on it only catches up"


def test_who_follows_from_outside_is_not_expected() -> None:
    join = joiner(resumed=True)
    join.foretell(50.0, progress(10.0, 200, 200))
    assert not join.is_expected(50.0, STEP_S)


def test_who_has_the_state_is_expected_to_catch_up() -> None:
    pulling = JoinState.PULLING
    assert not joiner(pulling).is_expected(0.0, STEP_S), "the others wait until it has copied"
    assert joiner(pulling, has_state=True).is_expected(0.0, STEP_S)
    assert joiner(pulling, copied=True).is_expected(0.0, STEP_S)
    assert not joiner(JoinState.CAUGHT_UP, copied=True).is_expected(0.0, STEP_S)
