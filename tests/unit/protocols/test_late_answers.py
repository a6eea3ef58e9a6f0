"""What late answers of a trainer tell of its speed (protocol.md, H33)."""

from __future__ import annotations

import pytest

from protocols import limits
from protocols.events import Applied
from protocols.member.trainer_debt import DebtState
from tests.unit.protocols.test_trainer_debt import USUAL_S, Bench


def test_who_has_become_five_times_slower_gets_more_time_after_two_late_answers() -> None:
    """Otherwise it would be late in every iteration."""
    bench = Bench()
    for _ in range(2):
        turn = bench.debt.turn
        bench.debt.give(bench.at, (0, 1))
        bench.passes(limits.TRAINER_FACTOR * USUAL_S + 0.1)
        assert bench.state() is DebtState.LATE
        bench.passes(0.9)
        assert not bench.debt.contributed(bench.said(turn)), "its work was handed back"
        assert bench.state() is DebtState.PROMPT
    bench.debt.give(bench.at, (0, 1))
    bench.passes(5 * USUAL_S)
    assert bench.state() is DebtState.PROMPT
    assert bench.debt.contributed(bench.said())


def test_who_drops_its_work_for_an_update_has_shown_that_it_is_slow() -> None:
    """A trainer that finds an update waiting applies it, and answers the work no more."""
    bench = Bench()
    for _ in range(2):
        bench.debt.give(bench.at, (0, 1))
        bench.passes(limits.TRAINER_FACTOR * USUAL_S + 0.1)
        bench.missed()
        bench.passes(0.9)
        assert not bench.debt.applied(Applied(bench.at - 1, b"m"))
        assert bench.state() is DebtState.PROMPT
    bench.debt.give(bench.at, (0, 1))
    bench.passes(5 * USUAL_S)
    assert bench.state() is DebtState.PROMPT


def test_a_trainer_that_was_away_has_shown_nothing() -> None:
    bench = Bench()
    bench.iteration()
    turn = bench.debt.turn
    bench.debt.give(bench.at, (0, 1))
    bench.debt.away(True)
    bench.passes(0.0)
    bench.passes(100.0)
    bench.debt.away(False)
    assert not bench.debt.contributed(bench.said(turn))
    bench.debt.give(bench.at, (0, 1))
    most = limits.TRAINER_FACTOR * USUAL_S
    assert bench.debt.deadline == pytest.approx(bench.context.now + most)


def test_who_has_hung_twice_gets_no_more_than_twice_the_time() -> None:
    bench = Bench()
    most = limits.TRAINER_FACTOR * USUAL_S
    for _ in range(2):
        turn = bench.debt.turn
        bench.debt.give(bench.at, (0, 1))
        bench.passes(most + 0.1)
        bench.passes(1.0)
        bench.context.now += 1000.0
        assert not bench.debt.contributed(bench.said(turn))
    bench.debt.give(bench.at, (0, 1))
    assert bench.debt.deadline == pytest.approx(
        bench.context.now + limits.TRAINER_FACTOR * 2 * most
    )
