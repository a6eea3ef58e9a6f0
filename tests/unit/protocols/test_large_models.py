"""What a trainer with a large model owes: its steps and its updates take long from the first on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocols import limits
from protocols.effects import Apply
from protocols.events import Applied
from protocols.rounds.control_word import EMPTY
from tests.unit.protocols.test_trainer_debt import Bench


def test_a_joiner_that_has_applied_many_updates_gets_time_for_its_first_work() -> None:
    bench = Bench()
    bench.debt.began()
    bench.debt._paces.clear()  # as of a trainer that has computed nothing
    for _ in range(limits.TRAINER_FIRST_ITERATIONS + 1):
        bench.debt.apply(Apply(bench.at, EMPTY, 2))
        bench.context.now += 0.01
        assert bench.debt.applied(Applied(bench.at, b"m"))
        bench.context.iteration += 1
    bench.debt.give(bench.at, (0, 1))
    bench.passes(limits.TRAINER_FIRST_SECONDS - 1.0)
    assert not bench.is_behind()
    assert bench.debt.contributed(bench.said())
    bench.debt.give(bench.at, (0, 1))
    bench.passes(limits.TRAINER_FACTOR * (limits.TRAINER_FIRST_SECONDS - 1.0) - 1.0)
    assert not bench.is_behind(), "now it is known how long its work takes"
    bench.passes(2.0)
    assert bench.is_behind()


def test_iterations_without_work_say_nothing_of_how_long_work_takes() -> None:
    bench = Bench()
    bench.debt.began()
    bench.debt._paces.clear()  # as of a trainer that has computed nothing
    for _ in range(limits.TRAINER_FIRST_ITERATIONS + 1):
        bench.debt.give(bench.at, ())
        bench.context.now += 0.01
        assert bench.debt.contributed(replace(bench.said(), micro_batches=()))
        bench.debt.apply(Apply(bench.at, EMPTY, 2))
        assert bench.debt.applied(Applied(bench.at, b"m"))
        bench.context.iteration += 1
    bench.debt.give(bench.at, (0, 1))
    bench.passes(2 * limits.TRAINER_LEAST_SECONDS)
    assert not bench.is_behind()


@pytest.mark.parametrize("updates", [0.9, 3.0])
def test_a_few_updates_are_kept_however_large_they_are(updates: float) -> None:
    bench = Bench(vector_bytes=int(updates * limits.MAX_KEPT_UPDATE_BYTES))
    bench.debt.give(bench.at, (0, 1))
    bench.debt.away(True)
    bench.passes(0.0)
    for _ in range(limits.LEAST_KEPT_UPDATES):
        bench.missed()
        bench.passes(0.0)
    assert not bench.context.stalled
    bench.missed()
    bench.passes(0.0)
    assert bench.context.stalled
