"""What a node answers in the place of a trainer whose process has ended."""

from __future__ import annotations

import pytest

from protocols import effects
from protocols.events import Applied, Contributed, LeaveWanted, TrainerEnded
from protocols.member.ended_trainer import EndedTrainer
from protocols.rounds.control_word import EMPTY
from protocols.wire.envelope import Envelope, Tags
from protocols.wire.messages import Ping, PullBegins
from tests.simulation.test_failures import cluster
from tests.simulation.test_small_world import finish
from tests.unit.protocols.clusters import node_of
from tests.variants import variants

TAGS = Tags(b"l" * 16, 1, 1, 1, 4, 0, b"o" * 32, 1, 7, b"j" * 32, 0)
BEGINS = PullBegins(1, 4, 1, 1, b"c" * 32, 0, b"", (), b"")


def done(iteration: int, *micro_batches: int, turn: int = 0) -> Contributed:
    return Contributed(iteration, micro_batches, float(len(micro_batches)), b"", b"", True, turn)


@pytest.fixture
def ended() -> EndedTrainer:
    """One that has handed in micro-batches 2 and 3 of iteration 4, in turn 1, before it ended."""
    trainer = EndedTrainer()
    trainer.contributed(done(4, 2, 3, turn=1))
    trainer.ended(4, 1, "reducing", ())
    return trainer


def test_nothing_changes_while_the_trainer_lives() -> None:
    wanted: list[effects.Effect] = [effects.GiveWork(4, (2,)), effects.TakeDigest(4, b"")]
    trainer = EndedTrainer()
    assert trainer.stand_in(wanted) == wanted
    assert not trainer.answers


def test_what_it_had_handed_in_counts(ended: EndedTrainer) -> None:
    assert list(ended.answers) == [done(4, 2, 3, turn=1)]


@pytest.mark.parametrize(("iteration", "turn"), [(5, 1), (4, 2)])
def test_other_work_is_not_done(ended: EndedTrainer, iteration: int, turn: int) -> None:
    ended.answers.clear()
    assert ended.stand_in([effects.GiveWork(iteration, (2, 3), turn)]) == []
    assert list(ended.answers) == [done(iteration, turn=turn)]


def test_what_it_was_computing_counts_for_nothing() -> None:
    """The sum in memory may have a part of the micro-batches that were given later."""
    trainer = EndedTrainer()
    trainer.contributed(done(4, 2, 3))
    trainer.ended(4, 0, "computing", ())
    assert list(trainer.answers) == [done(4)]


def test_each_request_is_answered_if_a_fence_has_added_to_its_work() -> None:
    """What it had handed in before may be in memory with a part of the rest (protocol.md, H66)."""
    trainer = EndedTrainer()
    trainer.contributed(done(4, 2, 3))
    trainer.ended(4, 0, "frozen", (), 2)
    assert list(trainer.answers) == [done(4)] * 2


def test_a_trainer_that_ends_with_two_requests_unanswered_holds_nobody_up() -> None:
    world, hosts = cluster(1, 3, steps=100)
    victim = hosts[0]
    node = node_of(victim)
    world.run(lambda: node.cycle.state == "computing")
    victim.hang(60.0)
    world.kill(hosts[2])
    world.run(lambda: node.cycle.owed == 2)
    victim.lose_trainer()
    victim.handle(LeaveWanted())
    finish(world)
    assert victim.gone == "left"


def test_updates_that_it_owes_pass_by() -> None:
    trainer = EndedTrainer()
    trainer.ended(4, 0, "applying", (2, 3))
    assert list(trainer.answers) == [Applied(2, b""), Applied(4, b"")]
    assert trainer.stand_in([effects.Apply(4, EMPTY, 2)]) == [effects.PassOver(4)]


def test_what_nobody_can_do_any_more_is_left_out(ended: EndedTrainer) -> None:
    only_a_trainer: list[effects.Effect] = [
        effects.KeepUpdate(4),
        effects.Publish(4, 0, EMPTY, 2, (0,)),
        effects.TakeDigest(5, b""),
    ]
    assert ended.stand_in([*only_a_trainer, effects.FreezeRound()]) == [effects.FreezeRound()]


def test_its_state_is_offered_to_nobody(ended: EndedTrainer) -> None:
    offer = effects.Send(b"j" * 32, Envelope(TAGS, BEGINS))
    other = effects.Send(b"j" * 32, Envelope(TAGS, Ping(1.0)))
    assert ended.stand_in([offer, other]) == [effects.CloseLink(b"j" * 32), other]


def test_it_goes_on_to_forward_rounds_to_a_joiner_that_others_feed_too() -> None:
    trainer = EndedTrainer(lambda joiner: joiner == b"j" * 32)
    trainer.ended(4, 0, "reducing", ())
    offers = [effects.Send(node * 32, Envelope(TAGS, BEGINS)) for node in (b"j", b"k")]
    assert trainer.stand_in([*offers]) == [effects.CloseLink(b"k" * 32)]


@pytest.mark.parametrize("moment", variants(range(1, 61, 12), range(1, 61)))
def test_the_others_go_on_without_it(moment: int) -> None:
    """A trainer ends before any message, and its device leaves; no micro-batch is lost."""
    world, hosts = cluster(moment, 3, steps=100)
    victim = hosts[moment % 3]

    def end() -> None:
        victim.lose_trainer()
        assert node_of(victim).debt.is_gone
        victim.handle(LeaveWanted())

    world.before(moment, end)
    finish(world)
    assert victim.gone == "left"


def test_a_node_that_is_told_so_answers_at_once() -> None:
    world, hosts = cluster(1, 2)
    node = node_of(hosts[0])
    world.run(lambda: node.cycle.state == "computing")
    found = node.handle(world.now, TrainerEnded())
    assert any(isinstance(effect, effects.Contribute) for effect in found)
    assert not any(isinstance(effect, effects.GiveWork) for effect in found)
