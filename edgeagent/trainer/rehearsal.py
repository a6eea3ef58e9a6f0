"""A dry run's stand-in for the agent: one micro-batch and one update for real, and their memory.

The trainer under `edgeagent run --dry-run` talks to this instead of an agent, so that what is
measured is the very code that trains: the shared memory, the script's own forward and backward, the
optimizer's step. Nobody is looked for and nothing is saved. When the update is applied the process
ends at once, without what the script has after its loop or in a `finally`, because files and models
that it would write there are those of a training that has not been.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np

from edgeagent import memory
from edgeagent.dataplane.integer_format import Integers
from edgeagent.dataplane.wire_format import Formats
from edgeagent.handover import Applied, Begin, Contributed, Reduced, Rehearsed, Work
from edgeagent.integer_blocks import BLOCK
from edgeagent.trainer.client import AgentClient

if TYPE_CHECKING:
    from typing import Any

    from edgeagent.handover import Hello, Message
    from edgeagent.shared_memory import SharedMemory
    from edgeagent.trainer.process import AgentConnection
    from edgeagent.trainer.state import TrainingState


def end_process() -> None:
    """End at once: no handler, no `finally` and no code of the script's runs any more."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class Rehearsal(AgentClient):
    """Gives the trainer micro-batch 0, sums nothing but that, and reports to `agent`.

    Says what follows from shapes alone as soon as it is made.
    """

    def __init__(
        self, agent: AgentConnection, state: TrainingState, micro_batch: int, copies: int = 0
    ) -> None:
        super().__init__(agent.connection, -1, lambda: None)
        self._vector = state.vector
        self._held = state.shards.layout if state.shards is not None else None
        self._memory: SharedMemory | None = None
        self._before = 0  # resident when the micro-batch began
        trainable = [p for p in state.parameters.values() if p.requires_grad]
        weights = sum(p.nbytes for p in state.parameters.values() if p.device.type == "cpu")
        used = memory.usage()
        self._found = Rehearsed(
            state_bytes=state.layout.size,
            elements=state.vector.words,
            accumulate=state.vector.accumulate,
            gradient_bytes=sum(p.nbytes for p in trainable),
            device=str(state.device),
            parameters=sum(p.numel() for p in state.parameters.values()),
            micro_batch_size=micro_batch,
            process=used.files + max(0, used.own - weights) if used else 0,
            held=self._held.kept_bytes if self._held is not None else 0,
            copies=copies,
            constant_bytes=state.layout.constant_bytes,
        )
        super().send(self._found)

    def greet(self, hello: Hello, memory: SharedMemory) -> None:
        """Have the trainer begin, with the first micro-batch."""
        self._memory = memory
        self._inbox.append(Begin(hello.iteration, adopt=False, meta=b"", steps=hello.steps))
        self._inbox.append(Work(hello.iteration, (0,)))

    def receive(self) -> Message:
        """Return the next message; what the trainer takes is measured from then on."""
        message = super().receive()
        if isinstance(message, Work):
            self._touch_all()
            used = memory.usage()
            if used is not None:
                self._before = used.private + used.shared
                self._found = replace(self._found, process=used.private)
        if isinstance(message, Work | Reduced):
            memory.forget_peak()
        return message

    def send(self, message: Message) -> None:
        """Take what the trainer says to its agent."""
        if isinstance(message, Contributed):
            self._found = replace(
                self._found, micro_batch=self._most(), workers=memory.children_private()
            )
            self._inbox.append(self._reduced(message))
        elif isinstance(message, Applied):
            self._found = replace(self._found, update=self._most(), is_measured=True)
            super().send(self._found)
            end_process()

    def _most(self) -> int:
        """Return the most that was resident since the peak was forgotten, beyond the start."""
        return max(0, (memory.peak() or 0) - self._before)

    def _touch_all(self) -> None:
        """Map every page of what is shared, which otherwise would count as the micro-batch's, and
        the code that stands in for the agent here, which would count as the update's."""
        Formats().of(1).square_sum(np.ones(1, np.float32))
        if self._memory is None:
            return
        for region in (self._memory.state, self._memory.contribution, *self._memory.reduced):
            pages = np.frombuffer(region.memory, np.uint8)[::4096]
            pages[...] = pages.copy()
        if self._held is not None:
            held = np.frombuffer(self._memory.held.memory, np.uint8)
            pages = held[: self._held.kept_bytes : 4096]
            pages[...] = pages.copy()

    def _reduced(self, sent: Contributed) -> Reduced:
        """Return what a cluster of this one device and this one micro-batch would sum."""
        shared = cast("SharedMemory", self._memory)
        layout, buffer = self._vector, sent.iteration % 2
        own: np.ndarray[Any, Any] = shared.contribution.array(layout.accumulate)
        total: np.ndarray[Any, Any] = shared.reduced[buffer].array(layout.accumulate)
        integers = None
        if layout.in_blocks:
            integers = Integers(shared.wide.array("int64"), layout.chunk_elements // BLOCK)
        numbers, squares = Formats(integers=integers), list[float]()
        total[:] = own
        for chunk, start in enumerate(range(0, layout.words, layout.chunk_words), 1):
            part = total[start : start + layout.chunk_words]
            numbers.of(chunk).settle(chunk, part, own=True)
            squares.append(numbers.of(chunk).square_sum(part))
        return Reduced(
            iteration=sent.iteration,
            buffer=buffer,
            weight=1,
            loss_sum=sent.loss_sum,
            gradient_bitmap=sent.gradient_bitmap,
            integer_buffers=sent.integer_buffers,
            integer_buffers_agree=sent.integer_buffers_agree,
            square_sums=tuple(squares),
            members=1,
            settings=sent.settings,
            other_settings=sent.other_settings,
            stripes=tuple(range(self._held.stripes)) if self._held is not None else (),
        )
