"""An update that waits until the state before it is hashed, while the rounds go on."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import numpy as np

from edgeagent import handover
from edgeagent.dataplane.reduce import Reducer
from edgeagent.shell import trainer_side
from edgeagent.shell.trainer_side import TrainerSide
from protocols import effects
from protocols.rounds.control_word import EMPTY
from tests.unit.protocols.clusters import cluster, node_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

AT = 10


class Bench:
    """The agent's side of a trainer, of which the state takes as long to hash as a test likes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hashed = threading.Event()
        monkeypatch.setattr(trainer_side, "HASH_INLINE_BYTES", 0)
        monkeypatch.setattr(trainer_side, "state_digest", lambda *_: str(self.hashed.wait(9)))
        self.sent: list[handover.Message] = []
        memory = Mock()
        memory.state.view.return_value = memoryview(bytes(8))
        memory.marks.array.return_value = np.zeros(8, np.int64)
        self.region = memory.replay
        self.region.array.return_value = self.replay = np.zeros(4, np.float32)
        reduced = np.zeros(4, np.float32), np.zeros(4, np.float32)
        self.reducer = Reducer(np.zeros(4, np.float32), reduced, 4, Mock(), Mock())
        rounds, copies, owner = Mock(reducer=self.reducer), Mock(), Mock()
        copies.update.return_value = None
        owner.to_trainer = self.sent.append
        owner.spawn = asyncio.get_running_loop().create_task
        hub = Mock(node=node_of(cluster(0)[1][0]))
        hello = Mock(iteration=AT, meta=b"", micro_batches=1, micro_batch_size=1)
        parts: tuple[Any, ...] = (hub, rounds, copies, hello, memory, Mock(), Mock(), owner)
        self.trainer = TrainerSide(*parts)

    def round(self, iteration: int) -> None:
        """Begin the round of `iteration`, of which the sum is that number."""
        self.reducer.memory.make_room(iteration)
        self.reducer.memory.part(iteration, 1)[:] = iteration
        self.reducer._results[iteration] = _result()

    async def ends(self) -> None:
        """Let the hashing end."""
        self.hashed.set()
        if self.trainer.hashing is not None:
            await self.trainer.hashing


def _result() -> Any:
    """Return what else belongs to the R of an iteration."""
    return Mock(square_sums=[1.0])


def play(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[Bench], None]) -> Bench:
    """Give the trainer the update of `AT` while the state is hashed; return the bench at the end
    of the hashing, before which `meanwhile` happens."""

    async def run() -> Bench:
        bench = Bench(monkeypatch)
        bench.trainer.perform(effects.TakeDigest(AT, bytes(32)))
        bench.round(AT)
        bench.trainer.perform(effects.Apply(AT, EMPTY, 3))
        assert bench.sent == []
        meanwhile(bench)
        await bench.ends()
        return bench

    return asyncio.run(run())


def test_it_is_sent_from_what_was_kept_if_its_trainer_was_late_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def goes_on(bench: Bench) -> None:
        bench.trainer.perform(effects.KeepUpdate(AT))
        for iteration in (AT + 1, AT + 2):
            bench.round(iteration)

    bench = play(monkeypatch, goes_on)
    (message,) = bench.sent
    assert isinstance(message, handover.Reduced)
    assert (message.iteration, message.buffer) == (AT, handover.REPLAY_BUFFER)
    assert bench.replay.tolist() == [AT] * 4
    bench.region.release.assert_not_called()
    bench.trainer.received(handover.Applied(AT, 0.0, False, b""))
    bench.region.release.assert_called_once_with()


def test_it_is_not_sent_any_more_if_the_node_was_given_up_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gives_up(bench: Bench) -> None:
        bench.trainer.forget()
        bench.reducer.reset()

    assert play(monkeypatch, gives_up).sent == []
