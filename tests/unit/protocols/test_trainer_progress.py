"""Trainers that tell how far they are in a long round of local steps."""

from __future__ import annotations

import pytest

from protocols import limits
from protocols.events import Progressed
from tests.unit.protocols.clusters import cluster, node_of
from tests.unit.protocols.test_trainer_debt import USUAL_S, Bench

ROUND = tuple(range(200))  # micro-batches of a long round of local steps


def told(bench: Bench, count: int, *, turn: int = 0, iteration: int = 0) -> None:
    """Have the trainer say that it has computed so many more micro-batches."""
    at = bench.at + iteration
    bench.debt.progressed(Progressed(at, count, bench.debt.turn + turn))


def test_a_trainer_that_gets_on_with_a_long_round_is_not_late() -> None:
    """In the first rounds nobody knows how long one takes: far longer than the least time here."""
    bench = Bench()
    bench.debt.began()
    assert bench.debt.give(bench.at, ROUND)
    for _ in range(len(ROUND) // 10 - 1):
        bench.passes(limits.TRAINER_FIRST_SECONDS - 1.0)
        told(bench, 10)
        assert not bench.is_behind()
    bench.passes(limits.TRAINER_FIRST_SECONDS - 1.0)
    assert bench.debt.contributed(bench.said())


def test_a_trainer_may_be_silent_for_as_long_as_it_has_computed() -> None:
    bench = Bench()
    assert bench.debt.give(bench.at, ROUND)
    for _ in range(20):
        bench.passes(1.0)
        told(bench, 5)
    assert bench.debt.deadline == pytest.approx(bench.context.now + 20.0)
    bench.passes(19.9)
    assert not bench.is_behind()
    bench.passes(0.2)
    assert bench.is_behind()


def test_a_trainer_that_has_just_begun_a_long_round_has_four_of_its_steps() -> None:
    bench = Bench()
    assert bench.debt.give(bench.at, ROUND)
    for _ in range(2):  # the longest step alone tells no pace
        bench.passes(1.0)
        told(bench, 1)
    assert bench.debt.deadline == pytest.approx(bench.context.now + limits.TRAINER_FACTOR * 1.0)


def test_a_node_hears_how_far_its_trainer_is() -> None:
    world, hosts = cluster(0, 2)
    node = node_of(hosts[0])
    node.debt.give(node.context.iteration, ROUND)
    before = node.debt.deadline
    node.handle(world.now + 1.0, Progressed(node.context.iteration, 5, node.debt.turn))
    assert node.debt.deadline != before


def test_what_is_told_of_other_work_gives_no_time() -> None:
    bench = Bench()
    told(bench, 5)  # of no work at all
    assert bench.debt.deadline is None
    assert bench.debt.give(bench.at, ROUND)
    deadline = bench.debt.deadline
    bench.passes(1.0)
    told(bench, 5, turn=1)
    told(bench, 5, iteration=-1)
    told(bench, len(ROUND))  # it would have contributed
    assert bench.debt.deadline == deadline
    told(bench, 5)
    assert bench.debt.deadline != deadline


def test_who_gets_on_without_another_cell_is_not_taken_for_hung() -> None:
    """One cell of a model has all steps of the round, so it is computed only with the last."""
    bench = Bench()
    bench.debt.give(bench.at, (0,))
    allowed = limits.TRAINER_FACTOR * USUAL_S / 2  # of one micro-batch of two
    for _ in range(20):
        bench.passes(allowed / 2)
        told(bench, 0)
    assert not bench.is_behind()
    bench.passes(allowed - 0.1)
    assert not bench.is_behind()
    bench.passes(0.2)
    assert bench.is_behind()
