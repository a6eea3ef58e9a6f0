"""A stand-in for a trainer: it speaks the real hand-over, and computes known whole numbers.

The gradient of the micro-batch (i, m) is a vector of whole numbers that depends only on i and m, so
every sum is exact in any order. An update that is not the sum over all micro-batches, each exactly
once, fails at once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from edgeagent import handover
from edgeagent.marks import MARK_ITERATION
from edgeagent.shared_memory import SharedMemory, create_shared_memory
from protocols.rounds.control_word import bits

ELEMENTS = 700
CHUNK_ELEMENTS = 128
STATE_BYTES = ELEMENTS * 8 * 40  # the vector 40 times, so that a pull has several shards
MICRO_BATCHES = 8
SAMPLES = 4
MOST_COMPUTE_S = 0.008

Vector = np.ndarray[Any, np.dtype[np.int64]]


@cache
def gradient(iteration: int, micro_batch: int) -> Vector:
    """Return the gradient of one micro-batch, `ELEMENTS` whole numbers."""
    k = np.arange(ELEMENTS, dtype=np.int64)
    return (iteration * 31 + micro_batch * 7 + k * 3) % 1009 + 1


def settings(iteration: int) -> bytes:
    """Return what the script sets of the optimizer's scalars in an iteration."""
    return b"lr of %d" % iteration


@cache
def expected_sum(iteration: int) -> Vector:
    """Return the sum over all micro-batches of an iteration."""
    total = np.zeros(ELEMENTS, np.int64)
    for micro_batch in range(MICRO_BATCHES):
        total += gradient(iteration, micro_batch)
    return total


@cache
def expected_state(iteration: int) -> bytes:
    """Return the bytes of the state after so many updates."""
    state = np.zeros(ELEMENTS, np.int64)
    for before in range(iteration):
        state += expected_sum(before)
    return np.tile(state, STATE_BYTES // state.nbytes).tobytes()


def meta(iteration: int) -> bytes:
    """Return the scalars of the state after so many updates."""
    return b"after %d" % iteration


class StandIn:
    """One trainer. `say` hands its messages to the shell. `apart`: its state is on a device of its
    own, as on a GPU, and is copied to the shared memory only when the agent may read it."""

    def __init__(self, chance: random.Random, steps: int, *, apart: bool = False) -> None:
        self.memory: SharedMemory = create_shared_memory(STATE_BYTES, ELEMENTS, "float64")
        self.memory.close_descriptors()
        self.say: Callable[[handover.Message], None] = lambda message: None
        self.iteration = 0
        self.alive = True
        self.refuses = False  # hands back what it has not begun
        self.streams = False  # announces chunks while it computes
        self.squares: dict[int, tuple[float, ...]] = {}
        self._chance = chance
        self._steps = steps
        self._shared = self.memory.state.array("int64")
        self._state = self._shared.copy() if apart else self._shared
        self._apart = apart
        self._marks = self.memory.marks.array("int64")
        self._own = self.memory.contribution.array("float64")
        regions = (*self.memory.reduced, self.memory.replay)
        self._reduced = tuple(region.array("float64") for region in regions)
        self.busy_until = 0.0  # until when it hangs or is away
        self._began = False
        self._todo: list[int] = []
        self._done: tuple[int, ...] = ()
        self._round = -1
        self._computing = False
        self._turn = 0
        self._inbox: list[handover.Message] = []

    def hello(self) -> handover.Hello:
        """Return the message with which it introduces itself to its agent."""
        return handover.Hello(
            version=handover.HANDOVER_VERSION,
            pid=1,
            job=(("model", "whole numbers"),),
            state_bytes=STATE_BYTES,
            tensors=(("state", 0, STATE_BYTES),),
            accumulate="float64",
            elements=ELEMENTS,
            chunk_elements=CHUNK_ELEMENTS,
            micro_batches=MICRO_BATCHES,
            micro_batch_size=SAMPLES,
            steps=self._steps,
            iteration=0,
            meta=meta(0),
        )

    def receive(self, message: handover.Message, ready: asyncio.Future[None] | None = None) -> None:
        """Take a message of the agent, a moment later."""
        assert ready is None, "no vector is so large here that it is copied in a thread"
        asyncio.get_running_loop().call_soon(self._act_on, message)

    @property
    def state(self) -> bytes:
        """The bytes of the training state."""
        return self._state.tobytes()

    def die(self) -> None:
        """End at once, even in the middle of something."""
        self.alive = False

    def _act_on(self, message: handover.Message) -> None:
        if not self.alive:
            return
        match message:
            case handover.Begin(iteration, adopt, data, _):
                self._began = True
                if adopt:
                    assert data == meta(iteration)
                    self._state[:] = self._shared
                    assert self.state == expected_state(iteration), "a torn state was pulled"
                    self.iteration = iteration
                    self._marks[MARK_ITERATION] = iteration
                self._round, self._todo = -1, []
                assert iteration == self.iteration
            case handover.Work(iteration, micro_batches, turn):
                self._on_work(iteration, micro_batches, turn)
            case handover.Reduced():
                self._todo = []
                self._later(self._apply, message)
            case handover.LeaveAsked():
                self.refuses = True
            case _:
                raise AssertionError(f"the agent said {message}")

    def _later(self, what: Callable[..., None], *values: Any) -> None:
        seconds = self._chance.uniform(0.0001, MOST_COMPUTE_S)
        asyncio.get_running_loop().call_later(seconds, what, *values)

    def _on_work(self, iteration: int, micro_batches: tuple[int, ...], turn: int) -> None:
        assert self._began
        assert iteration == self.iteration, "work of another iteration"
        if (self._round, self._turn) != (iteration, turn):
            self._round, self._turn, self._done, self._todo = iteration, turn, (), []
            self._own[:] = 0
        assert not [m for m in micro_batches if m in (*self._done, *self._todo)], "given twice"
        self._todo += micro_batches
        if not self._computing:
            self._computing = True
            self._later(self._compute, iteration)

    def _compute(self, iteration: int) -> None:
        """Compute the first half of a micro-batch, or answer that none is left."""
        if not self.alive:
            return
        if self.refuses or self._round != iteration:
            self._todo = []
        if self._round == iteration == self.iteration and self._todo:
            micro_batch = self._todo.pop(0)
            half = self._chance.randrange(ELEMENTS)
            self._own[:half] += gradient(iteration, micro_batch)[:half]
            self._announce(iteration, micro_batch, half)
            self._later(self._compute_rest, iteration, micro_batch, half)
            return
        self._computing = False
        if self._round == iteration == self.iteration:
            n = len(self._done)
            wanted = settings(iteration) if n else b""
            said = (iteration, self._done, float(n), b"", b"", True, 0.001 * n)
            self.say(handover.Contributed(*said, self._turn, wanted, trained=n))

    def _announce(self, iteration: int, micro_batch: int, half: int) -> None:
        """Perhaps say that chunks of the first half are ready, if this is the last micro-batch."""
        ready = half // CHUNK_ELEMENTS  # data chunks, counted from 1
        if self.streams and ready and not self._todo and self._chance.random() < 0.7:
            covered = tuple(sorted((*self._done, micro_batch)))
            chunks = bits(tuple(range(1, ready + 1)))
            self.say(handover.ChunksReady(iteration, covered, chunks, self._turn))

    def _compute_rest(self, iteration: int, micro_batch: int, half: int) -> None:
        if self.alive:
            self._own[half:] += gradient(iteration, micro_batch)[half:]
            self._done += (micro_batch,)
            self._compute(iteration) if not self._todo else self._later(self._compute, iteration)

    def _apply(self, reduced: handover.Reduced) -> None:
        if not self.alive:
            return
        i = self.iteration
        assert (reduced.iteration, reduced.weight) == (i, MICRO_BATCHES)
        assert reduced.loss_sum == MICRO_BATCHES
        assert reduced.gradient_bitmap == reduced.integer_buffers == b""  # else real ones fail
        assert reduced.integer_buffers_agree
        assert (reduced.settings, reduced.other_settings) == (settings(i), b"")
        total = self._reduced[reduced.buffer]
        assert np.array_equal(total, expected_sum(i)), "not the sum of all micro-batches"
        chunks = [total[k : k + CHUNK_ELEMENTS] for k in range(0, ELEMENTS, CHUNK_ELEMENTS)]
        assert reduced.square_sums == tuple(float(np.dot(c, c)) for c in chunks)
        self._state += np.tile(expected_sum(i), STATE_BYTES // 8 // ELEMENTS)
        self.iteration += 1
        if reduced.is_read or not self._apart:
            self._shared[:] = self._state
            self._marks[MARK_ITERATION] = self.iteration
        self.say(handover.Applied(i, 1.0, False, meta(i + 1)))
