"""Updates on their way to the trainer: no digest holds them up, and a trainer that was late gets
those that were kept."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import numpy as np
import pytest

from edgeagent import handover
from edgeagent.dataplane.reduce import Reducer
from edgeagent.dataplane.shards import state_digest, state_digest_while
from edgeagent.dataplane.snapshot import copy_in_blocks
from edgeagent.errors import EdgeAgentError
from edgeagent.shell import trainer_side
from edgeagent.shell.trainer_side import TrainerSide
from protocols import effects, events
from protocols.rounds.control_word import EMPTY
from tests.unit.protocols.clusters import cluster, node_of

if TYPE_CHECKING:
    from collections.abc import Callable

AT = 10
STATE = bytes(range(8))


class Bench:
    """The agent's side of a trainer, of which the state takes as long to hash as a test likes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.goes_on = threading.Event()

        def slowly(is_wanted: Callable[[], bool], state: memoryview, meta: bytes) -> str | None:
            self.goes_on.wait(9)
            return state_digest_while(is_wanted, state, meta)

        monkeypatch.setattr(trainer_side, "HASH_INLINE_BYTES", 0)
        monkeypatch.setattr(trainer_side, "state_digest_while", slowly)
        self.sent: list[handover.Message] = []
        self.ready: asyncio.Future[None] | None = None
        memory = Mock()
        memory.state.view.return_value = memoryview(STATE)
        memory.marks.array.return_value = np.zeros(8, np.int64)
        self.region = memory.replay
        self.region.array.return_value = self.replay = np.zeros(4, np.float32)
        reduced = np.zeros(4, np.float32), np.zeros(4, np.float32)
        self.reducer = Reducer(np.zeros(4, np.float32), reduced, 4, Mock(), Mock())
        rounds, copies, owner = Mock(reducer=self.reducer), Mock(), Mock()
        copies.update.return_value = None
        owner.to_trainer = self.send
        owner.spawn = asyncio.get_running_loop().create_task
        self.hub = Mock(node=node_of(cluster(0)[1][0]))
        self.observer = Mock()
        hello = Mock(iteration=AT, meta=b"", micro_batches=1, micro_batch_size=1)
        first: tuple[Any, ...] = (self.hub, rounds, copies, hello, memory)
        parts: tuple[Any, ...] = (*first, self.observer, Mock(), owner, 1)
        self.trainer = TrainerSide(*parts)
        for iteration in (AT, AT + 1):
            self.round(iteration)

    def send(self, message: handover.Message, ready: asyncio.Future[None] | None = None) -> None:
        """Note what is sent to the trainer, and what has to be done before."""
        self.sent.append(message)
        self.ready = ready

    def round(self, iteration: int) -> None:
        """Begin the round of `iteration`, of which the sum is that number."""
        self.reducer.memory.make_room(iteration)
        self.reducer.memory.part(iteration, 1)[:] = iteration
        result: Any = Mock(square_sums=[1.0])
        self.reducer._results[iteration] = result

    async def hashing_ends(self) -> list[tuple[int, str]]:
        """Let the hashing end; return the iterations and the digests that were told."""
        self.goes_on.set()
        if self.trainer.hashing is not None:
            await self.trainer.hashing
        told = [call.kwargs for call in self.observer.event.call_args_list]
        return [(values["iteration"], values["state"]) for values in told]


def play(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[Bench], None]) -> Any:
    """Have the state hashed; return what is told of it, and the bench. `meanwhile` happens before
    the hashing goes on."""

    async def run() -> Any:
        bench = Bench(monkeypatch)
        bench.trainer.perform(effects.TakeDigest(AT, bytes(32)))
        await asyncio.sleep(0)  # the thread begins
        meanwhile(bench)
        return await bench.hashing_ends(), bench

    return asyncio.run(run())


def test_a_digest_is_told_if_no_update_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    told, bench = play(monkeypatch, lambda _: None)
    meta = node_of(bench.hub).context.meta
    assert told == [(AT, state_digest(memoryview(STATE), meta))]


def test_what_needs_stepped_slots_waits_for_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        bench = Bench(monkeypatch)
        trainer, stripes = bench.trainer, Mock(lending=None)
        trainer.stripes = stripes
        owed = (0.9, 0.99, 0.0, 1.0, 1.0, 1.0)
        trainer.received(handover.Applied(AT - 1, 0.0, False, b"", "adam", owed))
        trainer.perform(effects.Publish(AT, 0, EMPTY, 3, ()))
        published = bench.ready
        trainer.perform(effects.Apply(AT, EMPTY, 3))
        applied = bench.ready
        kinds = [type(message) for message in bench.sent]
        assert kinds == [handover.Settle, handover.Publish, handover.Reduced]
        assert bench.sent[0] == handover.Settle(True), "and it is said once"
        await asyncio.sleep(0)
        assert published is not None
        assert applied is not None
        assert not any(waits.done() for waits in (published, applied))
        stripes.place.assert_not_called()
        trainer.received(handover.Stepped(AT - 1))
        await asyncio.wait_for(applied, 9)
        assert published.done()
        stripes.place.assert_called_once_with(AT, ())
        told = [call.args[0] for call in bench.hub.handle.call_args_list]
        assert told.count(events.UpdateDelayed(AT)) == 2, "its time begins now"
        trainer.perform(effects.Publish(AT + 1, 0, EMPTY, 3, ()))
        assert bench.ready is None, "nothing is owed"

    asyncio.run(run())


def test_the_trainer_is_told_whether_its_slots_are_stepped_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        bench = Bench(monkeypatch)
        for slots_now in (False, True):
            bench.trainer.perform(effects.Apply(AT, EMPTY, 3, slots_now=slots_now))
            assert isinstance(bench.sent[-1], handover.Reduced)
            assert bench.sent[-1].slots_now is slots_now

    asyncio.run(run())


def test_an_impossible_step_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        bench = Bench(monkeypatch)
        with pytest.raises(EdgeAgentError, match="the trainer owes no step of slots: lion"):
            bench.trainer.received(handover.Applied(AT, 0.0, False, b"", "lion", ()))

    asyncio.run(run())


def test_no_update_waits_for_a_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be one of a state that is half another one."""

    def applies(bench: Bench) -> None:
        bench.trainer.perform(effects.Apply(AT, EMPTY, 3))
        assert [type(message) for message in bench.sent] == [handover.Reduced]

    told, _ = play(monkeypatch, applies)
    assert told == []


def test_the_digest_of_a_node_that_was_given_up_is_told_to_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert play(monkeypatch, lambda bench: bench.trainer.forget())[0] == []


def test_an_update_is_sent_from_what_was_kept_if_its_trainer_was_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def goes_on(bench: Bench) -> None:
        bench.trainer.perform(effects.KeepUpdate(AT))
        for iteration in (AT + 1, AT + 2):
            bench.round(iteration)
        bench.trainer.perform(effects.Apply(AT, EMPTY, 3))

    _, bench = play(monkeypatch, goes_on)
    (message,) = bench.sent
    assert isinstance(message, handover.Reduced)
    assert (message.iteration, message.buffer) == (AT, handover.REPLAY_BUFFER)
    assert bench.replay.tolist() == [AT] * 4
    bench.region.release.assert_not_called()
    bench.trainer.received(handover.Applied(AT, 0.0, False, b""))
    bench.region.release.assert_called_once_with()


def test_divided_slots_are_stepped_with_the_sums_of_their_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if R has memory of its own, because another one was still read where it would lie."""

    def goes_on(bench: Bench) -> None:
        held = bench.trainer._held = Mock()
        bench.reducer.memory.pin(AT)
        bench.round(AT + 2)
        bench.trainer.perform(effects.Apply(AT + 2, EMPTY, 3, stripes=(2,)))
        held.copy_sums.assert_called_once_with((2,))
        held.put_missed.assert_called_once_with(held.copy_sums.return_value)
        kept = bench.trainer._sums[AT + 1] = {1: np.ones(4, np.float32)}
        bench.trainer._kept[AT + 1] = bench.reducer.kept(AT + 1)
        bench.trainer.perform(effects.Apply(AT + 1, EMPTY, 3, stripes=(2,)))
        held.copy_sums.assert_called_once()
        held.put_missed.assert_called_with(kept)

    _, bench = play(monkeypatch, goes_on)
    assert [message.buffer for message in bench.sent] == [handover.REPLAY_BUFFER] * 2
    assert bench.replay.tolist() == [AT + 1] * 4


def test_sums_are_lent_until_the_slots_are_stepped_with_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def goes_on(bench: Bench) -> None:
        held = bench.trainer._held = bench.trainer.owed._held = Mock()
        bench.trainer.perform(effects.Apply(AT + 1, EMPTY, 3, stripes=(0, 1)))
        held.lend.assert_called_once_with()
        held.returned.assert_not_called()
        owed = (0.9, 0.99, 0.0, 1.0, 1.0, 1.0)
        bench.trainer.received(handover.Applied(AT + 1, 0.0, False, b"", "adam", owed))
        held.returned.assert_not_called()
        bench.trainer.received(handover.Stepped(AT + 1))
        held.returned.assert_called_once_with()
        bench.trainer.received(handover.Applied(AT + 1, 0.0, False, b""))
        assert held.returned.call_count == 2, "or at once, if nothing is owed"
        held.lend.reset_mock()
        bench.round(AT + 2)
        bench.trainer.perform(effects.Apply(AT + 2, EMPTY, 3, stripes=()))
        held.lend.assert_not_called()

    play(monkeypatch, goes_on)


def copies_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[threading.Event, list[memoryview]]:
    """Have updates copied in a thread. Return the event for which each copy waits, and what is
    copied, as it comes."""
    may_copy, copies = threading.Event(), list[memoryview]()

    def slowly(target: memoryview, source: memoryview) -> None:
        copies.append(source)
        may_copy.wait(9)
        copy_in_blocks(target, source)

    monkeypatch.setattr(trainer_side, "COPY_INLINE_BYTES", 15)
    monkeypatch.setattr(trainer_side, "copy_in_blocks", slowly)
    return may_copy, copies


def test_a_large_update_is_copied_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    may_copy, _ = copies_wait(monkeypatch)

    async def run() -> None:
        bench = Bench(monkeypatch)
        bench.trainer.perform(effects.KeepUpdate(AT))
        bench.trainer.perform(effects.Apply(AT, EMPTY, 3))
        ready = bench.ready
        assert ready is not None
        await asyncio.sleep(0)
        assert not ready.done()
        assert bench.replay.tolist() == [0] * 4
        may_copy.set()
        await ready
        assert bench.replay.tolist() == [AT] * 4

    asyncio.run(run())


def test_a_large_update_is_kept_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds go on meanwhile, and the trainer is sent the update once all of it is there."""
    may_copy, copies = copies_wait(monkeypatch)

    async def run() -> None:
        bench = Bench(monkeypatch)
        bench.trainer.perform(effects.KeepUpdate(AT))
        (keeping,) = bench.trainer._keeping.values()
        await asyncio.sleep(0)
        for iteration in (AT + 1, AT + 2):  # the second would lie where R of AT does
            bench.round(iteration)
        bench.trainer.perform(effects.Apply(AT, EMPTY, 3))
        ready = bench.ready
        assert ready is not None
        await asyncio.sleep(0.01)
        assert len(copies) == 1, "nothing is laid out before it was kept"
        may_copy.set()
        await ready
        assert keeping.done()
        assert bench.replay.tolist() == [AT] * 4
        assert bench.reducer.memory.lend(AT + 2) is None
        assert not bench.trainer._keeping
        assert not bench.reducer.memory._pinned
        for iteration in (AT + 3, AT + 4):
            bench.round(iteration)
        assert bench.reducer.memory.lend(AT + 4) == 0

    asyncio.run(run())


def test_what_was_kept_for_the_cluster_before_is_forgotten_while_it_is_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trainer_side, "COPY_INLINE_BYTES", 15)

    async def run() -> None:
        bench = Bench(monkeypatch)
        bench.trainer.perform(effects.KeepUpdate(AT))
        (keeping,) = bench.trainer._keeping.values()
        bench.trainer.forget()
        bench.reducer.reset()
        bench.round(AT)
        assert bench.reducer.memory.lend(AT) == 0
        await keeping
        assert not bench.reducer.memory._pinned
        assert bench.reducer.memory.lend(AT) == 0
        assert not bench.trainer._kept

    asyncio.run(run())


@pytest.mark.parametrize("lent", [True, False])
def test_no_update_is_sent_while_slots_that_it_changes_are_copied(
    monkeypatch: pytest.MonkeyPatch, lent: bool
) -> None:
    async def run() -> None:
        bench, may_end = Bench(monkeypatch), asyncio.Event()

        async def lends() -> None:
            await may_end.wait()

        lending = asyncio.create_task(lends())
        bench.trainer.stripes = Mock(lending=lending)
        if not lent:  # R is laid out first, which takes its time, too
            monkeypatch.setattr(trainer_side, "COPY_INLINE_BYTES", 15)
            bench.trainer.perform(effects.KeepUpdate(AT))
        bench.trainer.perform(effects.Apply(AT, EMPTY, 3))
        assert bench.ready is not None
        await asyncio.sleep(0.05)
        assert not bench.ready.done()
        may_end.set()
        await bench.ready
        assert lending.done()
        assert bench.replay.tolist() == ([0] if lent else [AT]) * 4

    asyncio.run(run())


def test_the_sums_that_are_kept_are_those_of_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy in force may be that of the next iteration already, and may not name this node."""

    async def run() -> None:
        bench = Bench(monkeypatch)
        held: Any = Mock()
        bench.trainer._held = held
        node_of(bench.hub).context.policy = None
        bench.trainer.perform(effects.KeepUpdate(AT, (1, 3)))
        held.copy_sums.assert_called_once_with((1, 3))

    asyncio.run(run())
