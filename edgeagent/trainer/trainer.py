"""The `Trainer`: what a training script uses, and the trainer's side of every round.

The script's thread is the only thread. It works on the agent's messages inside `update()`, the
loader's `next()`, `request_node_exit()` and `close()` alone; the agent keeps the cluster alive. The
training state changes between `Reduced` and `Applied`, and with a `Begin` that has `adopt`.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from edgeagent.errors import AgentLost, EdgeAgentError, UsageError
from edgeagent.handover import (
    Away,
    Begin,
    End,
    EndHeard,
    Evaluated,
    ExitRequested,
    Finished,
    Reduced,
    SaveAside,
    Saved,
    Work,
)
from edgeagent.trainer import endings
from edgeagent.trainer.checkpoint import resume
from edgeagent.trainer.client import AgentClient
from edgeagent.trainer.data import training_data
from edgeagent.trainer.devices import place_as_told
from edgeagent.trainer.fingerprint import job_fields
from edgeagent.trainer.interrupts import Interrupts
from edgeagent.trainer.introduction import introduce, work_in_words
from edgeagent.trainer.loader import LoaderOptions
from edgeagent.trainer.options import DEFAULT_GLOBAL_BATCH, resolve_options
from edgeagent.trainer.process import connect_agent, ended_with_a_reason
from edgeagent.trainer.rehearsal import Rehearsal
from edgeagent.trainer.saving import Saving
from edgeagent.trainer.state import TrainingState
from edgeagent.trainer.streams import RandomStreams
from edgeagent.trainer.validation import check_job, settle_implementation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from edgeagent.handover import Message
    from edgeagent.shared_memory import SharedMemory
    from edgeagent.trainer.data import TrainingData
    from edgeagent.trainer.loader import MicroBatchSource
    from edgeagent.trainer.process import AgentConnection


class Trainer:
    """Trains `model` together with every other node of the cluster.

    Args:
        model: any `torch.nn.Module`; `edgeagent run --device` moves it, else it stays where it is.
        optimizer: any `torch.optim` optimizer over all trainable parameters of `model`.
        global_batch: samples per iteration, of the whole cluster.
        lr_scheduler: stepped once an iteration (`ReduceLROnPlateau` with the mean loss); the script
            must not step it.
        max_grad_norm: clip the mean gradient to this 2-norm; None does not clip.
        micro_batch: samples per micro-batch, a divisor of `global_batch`; None chooses one.
        steps: end after this many iterations; None trains until somebody leaves.
        seed: decides sample order and all random numbers of the micro-batches; None is 0.
        grad_scaler: a `torch.amp.GradScaler` for mixed precision. The script calls
            `scaler.scale(loss).backward()` and gives `update()` the loss as it is; the trainer
            unscales, skips and adapts the scale, on all nodes alike.
        save_every: write the state after every so many iterations, on each node, to a file of its
            own, `edgeagent-JOB-step-000100.safetensors`; None and 0 do not.
        keep: how many of these files stay, 0 for all; None is 3.

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
        grad_scaler: Any = None,
        save_every: int | None = None,
        keep: int | None = None,
        *,
        _agent: AgentConnection | None = None,
        _mirror: bool = False,
    ) -> None:
        endings.watch_for_crashes()
        options = resolve_options(
            os.environ, global_batch, micro_batch, steps, seed, save_every, keep
        )
        config = self._config = options.config
        if config.threads > 0:
            torch.set_num_threads(config.threads)
        self._global_batch, self._micro_batch = options.global_batch, options.micro_batch
        self._seed, self._steps = options.seed, options.steps
        check_job(model, optimizer, lr_scheduler, max_grad_norm)
        settle_implementation(optimizer)
        place_as_told(config.device, model, optimizer)
        self._optimizer = optimizer
        self._scheduler = lr_scheduler
        self._max_grad_norm = max_grad_norm
        self._state = TrainingState(
            model, optimizer, lr_scheduler, max_grad_norm, grad_scaler=grad_scaler, mirror=_mirror
        )
        self._chosen = self._state.device if config.device else None  # with `run --device`
        self._streams = RandomStreams(self._seed, self._state.devices)
        self._agent = _agent
        self._client: AgentClient | None = None
        self._memory: SharedMemory | None = None
        self._interrupts: Interrupts | None = None
        self._data: TrainingData | None = None
        self._source: MicroBatchSource | None = None
        self._began = False
        self._ended: End | None = None
        self._leaving = False  # handing back all work until the agent says End
        self._exit_sent = self._closed = False
        self._round = -1  # the iteration that this node's sum belongs to; -1: none yet
        self._turn = 0  # grows when the agent takes back what was computed of an iteration
        self._pending: deque[int] = deque()
        self._current: int | None = None  # handed to the script, update() not yet called
        self._loss = math.nan
        self._saving = Saving(options, self._state, endings.say)
        self._failure = ""

    # What the script reads.

    @property
    def device(self) -> torch.device:
        """Return the device that the model is on: that of `edgeagent run --device`, if given."""
        return self._state.device

    @property
    def iteration(self) -> int:
        """Return how many iterations the training state has behind it."""
        return self._state.iteration

    @property
    def loss(self) -> float:
        """Return the cluster's mean loss in the last iteration; NaN before the first that was
        applied here, also after a join: a list of it has gaps where `iteration` has."""
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

    def replicate(
        self,
        name: str,
        tensors: torch.nn.Module | dict[str, torch.Tensor],
        update: Callable[[torch.nn.Module], Any] | None = None,
    ) -> None:
        """Make tensors beside the model part of the training state: an EMA copy, a teacher.

        `tensors`: a module (its parameters and buffers), or a dictionary of tensors by name. They
        are pulled by joiners, saved, resumed and hashed with the state; they keep their shapes.
        `update(model)` is called after every step, on every node, with the model that `Trainer()`
        was given and `iteration` already counted, without gradients; not after a skipped step.
        It must follow from the state alone: no random numbers, and no memory of its own but
        in `tensors`. Without `update` they never change. Anywhere else they must not change: a node
        without a share does not run the loop's body, nor has a joiner run it before, so only what
        the trainer calls itself happens on all nodes alike. For example
        `replicate("ema", ema, update=ema.update_parameters)` with an
        `ema = torch.optim.swa_utils.AveragedModel(model, ...)`.

        Call it before the first `loader()`. Raises `UsageError` if it is too late or if the tensors
        cannot be replicated.
        """
        if self._client is not None:
            raise UsageError("replicate() belongs before the first loader()")
        self._state.replicated.add(name, tensors, update, self._chosen)
        self._state.plan()

    def loader(
        self,
        dataset: Any,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        *,
        workers: int = 0,
        prefetch: int | None = None,
        sampler: Any = None,
        pin_memory: bool = False,
        worker_init_fn: Callable[[int], Any] | None = None,
        _until: int = 0,
    ) -> Iterator[Any]:
        """Join (at the first call) and return an iterator over this node's micro-batches.

        `dataset` has `__len__` and `__getitem__`, or is a `torch.utils.data.IterableDataset`, of
        which every device makes every sample (`stream.py`); they are put together by `collate_fn`
        (default: torch's `default_collate`) and, if `edgeagent run --device` chose one, moved to
        `device`. Rounds in which this node has no share run inside `next()`; a micro-batch that
        another node did not finish may be yielded after the others. Ends on all nodes at `steps`,
        and on this one when it has left.

        `workers`: processes of torch's `DataLoader` that fetch and collate, each `prefetch` (2)
        micro-batches ahead; 0 fetches in the script. They are this device's own matter: samples and
        their random numbers are the same with any number of them (from the global generators of
        `random`, numpy and torch; a generator that the data set keeps is its own).
        `sampler`: a `torch.utils.data.Sampler` of single samples without `generator=`, the same on
        all nodes; each epoch is what it gives with all generators seeded for that epoch.
        `pin_memory`, `worker_init_fn`: as in torch.

        Raises `UsageError` for an unusable data set or sampler, `EdgeAgentError` (`AgentLost` among
        them) if training cannot begin or go on.
        """
        options = LoaderOptions(workers, prefetch, pin_memory, worker_init_fn)
        batches = (self._global_batch, self._micro_batch)
        data = self._data = training_data(self._data, dataset, sampler, self._streams, *batches)
        source = data.source(collate_fn, options, self._chosen, lambda: self._steps)
        if self._client is None:
            self._join(data)
        return self._micro_batches(source, _until)

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
        self._state.guards.script_ran()
        try:
            self._state.collect(micro_batch, loss)
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
        asked = (
            self._client.leave_asked
            or self._exit_sent
            or any(isinstance(message, End) for message in self._client.waiting())
        )
        computed = self._round >= 0 and bool(self._state.micro_batches)
        busy = self._current is not None or self._pending or computed
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

    def stop(self) -> None:
        """End training on all nodes with the running iteration, as if its number were `steps`.

        Called when `update()` has returned True, that is the iteration after it; what this node
        computes of an iteration brings the wish to all the others at once. Each of them applies
        that iteration, saves and ends with exit status 0; `end_reason` is "steps". Any script may
        call it, and one is enough. Returns at once: go on with the loop until the loader ends.
        Raises `UsageError` before the first `loader()`.
        """
        if self._client is None:
            raise UsageError("stop() belongs after the first loader()")
        self._state.stop = True

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Take no share while the block runs, for example to evaluate between two iterations.

        The others go on meanwhile. The agent keeps the updates that this trainer misses, and the
        trainer catches up when the block ends; if they become too many to keep, the device leaves
        the cluster and joins it again then. Others compute what it had begun of an iteration.
        """
        self._tell(Away(True))
        try:
            yield
        finally:
            self._tell(Away(False))

    def save(self, path: str) -> None:
        """Write the training state after the last update to `path`, whole or not at all, as --save
        does; at any time from the first `loader()` on. A file that is there is replaced.

        Raises `UsageError` if it is too early or if nothing can be written there, `EdgeAgentError`
        if writing fails.
        """
        if self._client is None:
            raise UsageError("save() belongs after the first loader()")
        self._saving.now(path)

    def report(self, name: str, value: float) -> None:
        """Have the agent show this node's figure of merit, for example `report("accuracy", x)`."""
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
            self._hang_up(error or self._saving.error)
        if self._saving.error:
            raise endings.AgentRefused(self._saving.error, 1, self._agent_speaks)

    # Joining.

    def _join(self, data: TrainingData) -> None:
        settings = {
            "max_grad_norm": self._max_grad_norm,
            "global batch": self._global_batch,
            "micro batch": self._micro_batch,
            "seed": self._seed,
            "grad_scaler": self._state.scaling.state(),
        }
        fields = job_fields(self._state, self._optimizer, self._scheduler, settings)
        job = (*fields, *data.fields())
        if self._config.dry_run:
            self._agent = self._agent or connect_agent()
            self._client = Rehearsal(self._agent, self._state, self._micro_batch)
        self._memory = self._saving.memory = self._state.share()
        if self._config.resume:
            resume(self._config.resume, self._state, self._memory.state.view())
        batches = (self._global_batch, self._micro_batch)
        hello = introduce(self._state, job, *batches, self._steps, self._config.save)
        self._saving.begin(hello.meta, writes=not self._config.dry_run)
        endings.say(work_in_words(hello))
        agent = self._agent = self._agent or connect_agent()
        self._interrupts = Interrupts(agent.plain)
        wake = self._interrupts.wake
        self._client = self._client or AgentClient(agent.connection, wake, self._pass_interrupt_on)
        endings.end_fast()
        atexit.register(self._close_at_exit)
        with ended_with_a_reason(agent):
            self._client.greet(hello, self._memory)
            self._memory.close_descriptors()
            while not self._began and self._ended is None:
                self._advance()
        endings.agent_speaks(self._agent_speaks and self._ended is None)

    # Serving the agent.

    def _micro_batches(self, source: MicroBatchSource, until: int) -> Iterator[Any]:
        """Yield what is to be computed before iteration `until`, 0 for all."""
        self._source = source
        try:
            while self._goes_on(until) and self._next_is_ready() and self._goes_on(until):
                yield self._fetched(source)
        finally:
            source.close()

    def _goes_on(self, until: int) -> bool:
        """Whether `until` is still to come; after the last step the agent's word is awaited."""
        done = self._state.iteration
        return not 0 < until <= done or 0 < self._steps <= done

    def _next_is_ready(self) -> bool:
        """Wait for something to compute; False at the end."""
        self._state.guards.script_ran()
        if self._current is not None:
            raise UsageError(
                "update(loss) was not called for the last micro-batch: call it after each of them."
                " The trainer accumulates gradients by itself, over global_batch= samples"
            )
        self._settle_early()
        while not self._pending and self._ended is None:
            self._advance()
            self._settle_early()
        return self._ended is None

    def _fetched(self, source: MicroBatchSource) -> Any:
        self._current = self._pending.popleft()
        iteration = self._state.iteration
        self._state.start_micro_batch()
        try:
            batch = source.fetch(iteration, self._current, self._pending)
            self._streams.enter(iteration, self._current)
        except BaseException:
            self._streams.leave()
            raise
        return batch

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
            self._saving.applied(applied.meta)
        elif isinstance(message, SaveAside):
            client.send(self._saving.aside(message.keep))
        elif isinstance(message, End):
            self._on_end(message)
        else:
            raise EdgeAgentError(f"the agent sent {type(message).__name__}, which it never should")

    def _on_begin(self, begin: Begin) -> None:
        if begin.adopt:
            self._state.adopt(begin.iteration, begin.meta)
            self._saving.changed(begin.meta)
            self._loss = math.nan  # that of the last iteration is not known here
        elif begin.iteration != self._state.iteration:
            raise EdgeAgentError("the agent began at another iteration than the trainer's")
        self._began = True
        self._steps = begin.steps
        self._pending.clear()
        self._round = -2  # nothing was stepped: update() must not take this for a step

    def _on_work(self, client: AgentClient, work: Work) -> None:
        if not self._began or work.iteration != self._state.iteration:
            raise EdgeAgentError("the agent gave work of another iteration than the trainer's")
        if (self._round, self._turn) != (work.iteration, work.turn):
            self._state.start_iteration(work.turn)
            self._round, self._turn = work.iteration, work.turn
            self._pending.clear()
        if not self._leaving:
            self._pending.extend(work.micro_batches)
        if not self._pending:
            client.send(self._state.contribution())

    def _on_end(self, end: End) -> None:
        self._ended = end
        self._tell(EndHeard())
        self._pending.clear()
        self._state.guards.release()
        endings.agent_speaks(False)
        if self._interrupts is not None:
            self._interrupts.restore()
        if self._began and end.whole:
            self._state.buffers.restore()  # a micro-batch that was handed back has changed them
            self._saving.at_end()
        self._tell(Saved(self._saving.saved, self._saving.error))
        if end.why == "error":
            raise endings.AgentRefused(end.message, end.exit_status, shown=True)
        if end.exit_status and not self._agent_speaks:  # expelled: the loader ends, the model stays
            endings.fail_at_exit(end.exit_status)

    def _settle_early(self) -> bool:
        """Apply the round if it was completed without this node's help; return whether it was."""
        client = self._client
        if client is None:
            return False
        client.poll()
        if not any(self._decides(message) for message in client.waiting()):
            return False
        before = self._state.iteration
        self._pending.clear()
        while self._undecided(before) and client.waiting():
            self._advance()
        return True

    def _decides(self, message: Message) -> bool:
        """Return whether what this trainer still has to compute is of no use after `message`."""
        if isinstance(message, Work):
            return message.turn != self._turn
        return isinstance(message, Reduced | Begin | End)

    def _undecided(self, before: int) -> bool:
        """Return whether `update()` has still to wait for the round of iteration `before`."""
        same = self._state.iteration == before and self._round == before
        return same and not self._pending and self._ended is None

    # Leaving.

    def _leave(self) -> None:
        self._leaving = True
        self._pending.clear()
        self._state.guards.script_ran()
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
        open_still = self._agent is not None and self._agent.connection.fileno() >= 0
        if self._client is not None and open_still:
            self._client.send(message)

    def _hang_up(self, error: str) -> None:
        self._streams.leave()
        if self._source is not None:
            self._source.close()
        if self._client is not None and self._agent is not None:
            self._client.send(Finished(error, self._saving.saved))
            self._client.close()
            self._agent.finish()
        if self._interrupts is not None:
            self._interrupts.restore()

    def _close_at_exit(self) -> None:
        try:
            self.close()
        except EdgeAgentError as error:
            if not (isinstance(error, endings.AgentRefused) and error.shown):
                endings.say(str(error))
            endings.fail_at_exit(error.exit_status)

    @property
    def _agent_speaks(self) -> bool:
        """Whether the agent is what the user started, and shows what ends the training."""
        return self._agent is not None and not self._agent.plain
