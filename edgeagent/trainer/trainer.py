"""The `Trainer`: what a training script uses, and the trainer's side of every round.

Law: the script's thread is the only thread. It works on the messages of the agent inside
`loader()`'s `next()`, `update()`, `request_node_exit()` and `close()`, and nowhere else; the agent
keeps the cluster alive meanwhile. The training state changes only between `Reduced` and `Applied`,
and when the agent hands over another state (`Begin` with `adopt`).
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import math
import os
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from edgeagent.config import TrainerConfig, trainer_config_from
from edgeagent.errors import AgentLost, EdgeAgentError, UsageError
from edgeagent.handover import (
    HANDOVER_VERSION,
    Away,
    Begin,
    End,
    Evaluated,
    ExitRequested,
    Finished,
    Hello,
    Reduced,
    SaveAside,
    SavedAside,
    Work,
)
from edgeagent.shared_memory import create_shared_memory
from edgeagent.trainer import endings
from edgeagent.trainer.checkpoint import (
    aside_path,
    check_save_path,
    load_checkpoint,
    save_checkpoint,
)
from edgeagent.trainer.client import AgentClient
from edgeagent.trainer.fingerprint import dataset_fields, job_fields
from edgeagent.trainer.interrupts import Interrupts
from edgeagent.trainer.loader import MicroBatchSource, default_micro_batch
from edgeagent.trainer.order import SampleOrder
from edgeagent.trainer.process import connect_agent
from edgeagent.trainer.state import TrainingState, mean_loss
from edgeagent.trainer.streams import RandomStreams
from edgeagent.trainer.validation import (
    check_batches,
    check_dataset,
    check_job,
    settle_implementation,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from edgeagent.handover import Message
    from edgeagent.shared_memory import SharedMemory
    from edgeagent.trainer.process import AgentConnection

DEFAULT_GLOBAL_BATCH = 256


class Trainer:
    """Trains `model` together with every other node of the cluster.

    Args:
        model: any `torch.nn.Module`, already on its device.
        optimizer: any `torch.optim` optimizer over all trainable parameters of `model`.
        global_batch: samples per iteration, of the whole cluster.
        lr_scheduler: stepped once an iteration (`ReduceLROnPlateau` with the mean loss); the script
            must not step it.
        max_grad_norm: clip the mean gradient to this 2-norm; None does not clip.
        micro_batch: samples per micro-batch, a divisor of `global_batch`; None chooses one.
        steps: end after this many iterations; None trains until somebody leaves.
        seed: decides sample order and all random numbers of the micro-batches; None is 0.

    What `edgeagent run` was told overrides these. Raises `UsageError` if the model, the optimizer
    or the numbers cannot be used. The cluster is joined at the first `loader()`.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        global_batch: int = DEFAULT_GLOBAL_BATCH,
        lr_scheduler: Any = None,
        max_grad_norm: float | None = None,
        micro_batch: int | None = None,
        steps: int | None = None,
        seed: int | None = None,
        *,
        _agent: AgentConnection | None = None,
        _mirror: bool = False,
    ) -> None:
        endings.watch_for_crashes()
        config = trainer_config_from(os.environ) or TrainerConfig()
        self._config = config
        if config.threads > 0:
            torch.set_num_threads(config.threads)
        self._global_batch = _first(config.global_batch, global_batch)
        self._micro_batch = _first(config.micro_batch, micro_batch)
        if self._micro_batch is None:
            check_batches(self._global_batch, self._global_batch)
            self._micro_batch = default_micro_batch(self._global_batch)
        check_batches(self._global_batch, self._micro_batch)
        self._seed = _first(config.seed, seed) or 0
        self._steps = _first(config.steps, steps) or 0
        if self._steps < 0:
            raise UsageError(f"steps is {self._steps}; it must not be negative")
        check_job(model, optimizer, lr_scheduler, max_grad_norm)
        if config.save:
            check_save_path(config.save)
        settle_implementation(optimizer)
        self._optimizer = optimizer
        self._scheduler = lr_scheduler
        self._max_grad_norm = max_grad_norm
        self._state = TrainingState(model, optimizer, lr_scheduler, max_grad_norm, mirror=_mirror)
        self._device = next(iter(self._state.parameters.values())).device
        self._streams = RandomStreams(self._seed, self._device)
        self._agent = _agent
        self._client: AgentClient | None = None
        self._memory: SharedMemory | None = None
        self._interrupts: Interrupts | None = None
        self._dataset: Any = None
        self._began = False
        self._ended: End | None = None
        self._leaving = False  # handing back all work until the agent says End
        self._exit_sent = False
        self._closed = False
        self._round = -1  # the iteration that this node's sum belongs to; -1: none yet
        self._pending: deque[int] = deque()
        self._current: int | None = None  # handed to the script, update() not yet called
        self._loss = math.nan
        self._save_error = ""
        self._failure = ""

    # What the script reads.

    @property
    def iteration(self) -> int:
        """Return how many iterations the training state has behind it."""
        return self._state.iteration

    @property
    def loss(self) -> float:
        """Return the cluster's mean loss in the last iteration; NaN before the first."""
        return self._loss

    @property
    def skipped(self) -> int:
        """Return how many steps were skipped on all nodes because a gradient was not finite."""
        return self._state.skipped

    @property
    def steps(self) -> int:
        """Return the iteration at which training ends, 0 for never."""
        return self._steps

    @property
    def end_reason(self) -> str:
        """Return why the loader ended: "steps", "left" or "error"; "" while training."""
        return "" if self._ended is None else self._ended.why

    # The loop.

    def loader(
        self, dataset: Any, collate_fn: Callable[[list[Any]], Any] | None = None
    ) -> Iterator[Any]:
        """Join (at the first call) and return an iterator over this node's micro-batches.

        `dataset` has `__len__` and `__getitem__`; samples are put together by `collate_fn`
        (default: torch's `default_collate`) and moved nowhere unless a device was chosen with
        `edgeagent run --device`. Rounds in which this node has no share run inside `next()`; a
        micro-batch that another node did not finish may be yielded after the others. Ends on all
        nodes at `steps`, and on this one when it has left. Raises `UsageError` for an unusable data
        set, `EdgeAgentError` (`AgentLost` among them) if training cannot begin or go on.
        """
        length = check_dataset(dataset)
        if self._client is None:
            self._join(dataset, length)
        elif dataset is not self._dataset:
            raise UsageError("a Trainer trains on one data set; make another Trainer for another")
        order = SampleOrder(self._seed, length, self._global_batch, self._batch())
        device = self._device if self._config.device != "cpu" else None
        return self._micro_batches(MicroBatchSource(dataset, order, collate_fn, device))

    def update(self, loss: Any) -> bool | None:
        """Take in the micro-batch whose `backward()` was just called.

        `loss`: the mean over its samples, one number. Returns True when the iteration was stepped
        (summed over the cluster, clipped, stepped, scheduled, gradients None), else None: more
        micro-batches of this iteration follow, now or after a failure elsewhere.
        """
        micro_batch, client = self._current, self._client
        if micro_batch is None or client is None:
            raise UsageError("update() belongs after each micro-batch of loader(), once")
        self._current = None
        try:
            self._state.collect(micro_batch, mean_loss(loss))
        finally:
            self._streams.leave()
        before = self._state.iteration
        if not self._settle_early():
            if self._pending:
                return None
            client.send(self._state.contribution())
            while self._undecided(before):
                self._advance()
        return True if self._state.iteration == before + 1 and self._round == -1 else None

    def check_state_replication(self) -> None:
        """Notice what the agent has said meanwhile; never waits.

        Joiners are served by the agent itself, so calling this is optional.
        """
        if self._client is not None and self._ended is None:
            self._client.poll()

    def capture_exit_event(self) -> bool:
        """Return whether somebody wants this node to leave; True only between two iterations.

        That is: Ctrl+C, `edgeagent leave`, or Quit on the page, noticed when `update()` has
        returned True (or before the first micro-batch). A script that never asks leaves all the
        same: its loader ends.
        """
        if self._client is None:
            return False
        if self._ended is not None:
            return self._ended.why == "left"
        self._client.poll()
        self._pass_interrupt_on()
        asked = self._client.leave_asked or self._exit_sent
        asked = asked or any(isinstance(message, End) for message in self._client.waiting())
        busy = self._current is not None or self._pending or self._state_has_work()
        return bool(asked and not busy)

    def request_node_exit(self) -> None:
        """Leave the cluster gracefully; afterwards `break`, or let the loader end.

        Called between two iterations (`update()` returned True, or `capture_exit_event()` did), it
        blocks until this node has left: it takes no new work (all of it is handed back to the other
        nodes), still applies the rounds that run meanwhile, so that the state saved at the end is a
        whole iteration's, and returns when the agent says that the others go on without it.
        Called in the middle of an iteration it only asks and returns at once: the loader then
        yields what is left of the iteration, and ends when this node has left.
        """
        if self._client is None or self._ended is not None:
            return
        self._ask_exit()
        if self._current is None and not self._pending:
            self._leave()

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Take no share while the block runs, for example to evaluate between two iterations.

        No rounds are served inside; the agent keeps what it misses, and the trainer catches up when
        the block ends. Entered in the middle of an iteration it makes the cluster wait.
        """
        self._tell(Away(True))
        try:
            yield
        finally:
            self._tell(Away(False))

    def report(self, name: str, value: float) -> None:
        """Have the agent show a figure of merit, for example `report("accuracy", 0.97)`."""
        self._tell(Evaluated(self._state.iteration, name, float(value)))

    def close(self) -> None:
        """Leave if that is still to be done, and end the agent's service; idempotent.

        Called at the end of the script by itself. Raises `EdgeAgentError` if saving failed.
        """
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self._close_at_exit)
        error = endings.crash() or self._failure
        try:
            if self._client is not None and self._ended is None and not error:
                self._ask_exit()
                self._leave()
        except EdgeAgentError as failure:
            error = str(failure)
            raise
        finally:
            self._hang_up(error or self._save_error)
        if self._save_error:
            raise endings.AgentRefused(self._save_error, 1, self._agent_speaks)

    # Joining.

    def _join(self, dataset: Any, length: int) -> None:
        job = self._job(dataset, length)
        vector = self._state.vector
        self._memory = create_shared_memory(
            self._state.layout.size, vector.elements, vector.accumulate
        )
        self._state.attach(self._memory)
        if self._config.resume:
            self._resume(self._config.resume)
        meta = self._state.meta()
        micro_batches = self._global_batch // self._batch()
        _say(
            f"global batch {self._global_batch} = {micro_batches} micro-batches"
            f" of {self._batch()} samples"
        )
        agent = self._agent or connect_agent()
        self._agent = agent
        self._interrupts = Interrupts(agent.plain)
        wake = self._interrupts.wake
        self._client = AgentClient(agent.connection, wake, self._pass_interrupt_on)
        self._dataset = dataset
        atexit.register(gc.freeze)  # else the interpreter sweeps torch for a second at its end
        atexit.register(self._close_at_exit)
        hello = Hello(
            version=HANDOVER_VERSION,
            pid=os.getpid(),
            job=job,
            state_bytes=self._state.layout.size,
            tensors=self._state.layout.tensors(),
            accumulate=vector.accumulate,
            elements=vector.elements,
            chunk_elements=vector.chunk_elements,
            micro_batches=micro_batches,
            micro_batch_size=self._batch(),
            steps=self._steps,
            iteration=self._state.iteration,
            meta=meta,
        )
        self._client.greet(hello, self._memory)
        self._memory.close_descriptors()
        while not self._began and self._ended is None:
            self._advance()

    def _job(self, dataset: Any, length: int) -> tuple[tuple[str, str], ...]:
        settings = {
            "max_grad_norm": self._max_grad_norm,
            "global batch": self._global_batch,
            "micro batch": self._batch(),
            "seed": self._seed,
        }
        fields = job_fields(self._state, self._optimizer, self._scheduler, settings)
        return (*fields, *dataset_fields(dataset, length, self._streams))

    def _resume(self, path: str) -> None:
        if self._memory is None:
            return
        layout, memory = self._state.layout, self._memory.state.view()
        iteration, meta = load_checkpoint(path, layout, memory)
        try:
            self._state.adopt(iteration, meta)
        except EdgeAgentError as error:
            raise UsageError(f"cannot resume from {path}: {error}") from None

    # Serving the agent.

    def _micro_batches(self, source: MicroBatchSource) -> Iterator[Any]:
        while True:
            if self._current is not None:
                raise UsageError("update(loss) was not called for the last micro-batch")
            if self._pending:
                self._settle_early()
            while not self._pending and self._ended is None:
                self._advance()
            if self._ended is not None:
                return
            self._current = self._pending.popleft()
            iteration = self._state.iteration
            self._state.start_micro_batch()
            self._streams.enter(iteration, self._current)
            try:
                batch = source.fetch(iteration, self._current)
            except BaseException:
                self._streams.leave()
                raise
            yield batch

    def _advance(self) -> None:
        """Wait for one message and do what it says."""
        client = self._client
        if client is None:
            raise AgentLost("the trainer has no agent")
        self._pass_interrupt_on()
        message = client.receive()
        try:
            self._act_on(client, message)
        except EdgeAgentError as error:
            self._failure = str(error)  # nothing can be served any more
            raise

    def _act_on(self, client: AgentClient, message: Message) -> None:
        if isinstance(message, Begin):
            self._on_begin(message)
        elif isinstance(message, Work):
            self._on_work(client, message)
        elif isinstance(message, Reduced):
            self._pending.clear()
            applied = self._state.apply(message)
            self._loss = applied.loss
            self._round = -1
            client.send(applied)
        elif isinstance(message, SaveAside):
            client.send(self._save_aside(message.keep))
        elif isinstance(message, End):
            self._on_end(message)
        else:
            raise EdgeAgentError(f"the agent sent {type(message).__name__}, which it never should")

    def _on_begin(self, begin: Begin) -> None:
        if begin.adopt:
            self._state.adopt(begin.iteration, begin.meta)
        elif begin.iteration != self._state.iteration:
            raise EdgeAgentError("the agent began at another iteration than the trainer's")
        self._began = True
        self._steps = begin.steps
        self._pending.clear()
        self._round = -2  # nothing was stepped: update() must not take this for a step

    def _on_work(self, client: AgentClient, work: Work) -> None:
        if not self._began or work.iteration != self._state.iteration:
            raise EdgeAgentError("the agent gave work of another iteration than the trainer's")
        if self._round != work.iteration:
            self._state.start_iteration()
            self._round = work.iteration
        if not self._leaving:
            self._pending.extend(work.micro_batches)
        if not self._pending:
            client.send(self._state.contribution())

    def _on_end(self, end: End) -> None:
        self._ended = end
        self._pending.clear()
        if self._interrupts is not None:
            self._interrupts.restore()
        if end.why == "error":
            raise endings.AgentRefused(end.message, end.exit_status, self._agent_speaks)
        if self._config.save and self._began:
            self._save_error = self._save(self._config.save)

    def _save_aside(self, keep: bool) -> SavedAside:
        """Keep, if there is something to, what was trained before another state replaces it."""
        keep = keep and self._began
        self._began = False  # from now on the shared state may be half of one, half of another
        if not keep or not self._config.save:
            return SavedAside("", "")
        path = aside_path(self._config.save)
        return SavedAside(path, self._save(path))

    def _save(self, path: str) -> str:
        """Write a checkpoint; return what went wrong, "" if nothing did."""
        if self._memory is None:
            return ""
        memory = self._memory.state.view()
        try:
            save_checkpoint(path, self._state.layout, memory, self._state.meta())
        except EdgeAgentError as error:
            return str(error)
        return ""

    def _settle_early(self) -> bool:
        """Apply the round if it was completed without this node's help; return whether it was."""
        client = self._client
        if client is None:
            return False
        client.poll()
        if not any(isinstance(message, Reduced | Begin | End) for message in client.waiting()):
            return False
        before = self._state.iteration
        self._pending.clear()
        while self._undecided(before) and client.waiting():
            self._advance()
        return True

    def _undecided(self, before: int) -> bool:
        """Return whether `update()` has still to wait for the round of iteration `before`."""
        same = self._state.iteration == before and self._round == before
        return same and not self._pending and self._ended is None

    def _state_has_work(self) -> bool:
        return self._round >= 0 and bool(self._state.micro_batches)

    # Leaving.

    def _leave(self) -> None:
        self._leaving = True
        self._pending.clear()
        if self._round >= 0 and self._client is not None:
            self._client.send(self._state.contribution())
        while self._ended is None:
            self._advance()

    def _ask_exit(self) -> None:
        if not self._exit_sent:
            self._exit_sent = True
            self._tell(ExitRequested())

    def _pass_interrupt_on(self) -> None:
        if self._interrupts is not None and self._interrupts.asked:
            self._interrupts.drain()
            self._ask_exit()

    def _tell(self, message: Message) -> None:
        if self._client is not None and not self._closed_connection():
            self._client.send(message)

    def _closed_connection(self) -> bool:
        return self._agent is None or self._agent.connection.fileno() < 0

    def _hang_up(self, error: str) -> None:
        self._streams.leave()
        if self._client is not None and self._agent is not None:
            self._client.send(Finished(error))
            self._client.close()
            self._agent.finish()
        if self._interrupts is not None:
            self._interrupts.restore()

    def _close_at_exit(self) -> None:
        try:
            self.close()
        except EdgeAgentError as error:
            if not (isinstance(error, endings.AgentRefused) and error.shown):
                _say(str(error))
            endings.fail_at_exit(error.exit_status)

    @property
    def _agent_speaks(self) -> bool:
        """Whether the agent is what the user started, and shows what ends the training."""
        return self._agent is not None and not self._agent.plain

    def _batch(self) -> int:
        return int(self._micro_batch or self._global_batch)


def _first(chosen: Any, default: Any) -> Any:
    return default if chosen is None else chosen


def _say(line: str) -> None:
    print(f"edgeagent: {line}", file=sys.stderr, flush=True)
