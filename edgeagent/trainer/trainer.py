"""The `Trainer`: what a training script uses.

It has the script's loop: which micro-batch is computed next, and when an iteration is complete.
What the agent wants meanwhile is done in `service.py`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from typing import TYPE_CHECKING, Any

from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.handover import (
    Away,
    End,
    Evaluated,
)
from edgeagent.trainer import endings
from edgeagent.trainer.checkpoint import resume, resumed_text
from edgeagent.trainer.client import AgentClient
from edgeagent.trainer.composition import Composition
from edgeagent.trainer.data import training_data
from edgeagent.trainer.devices import place_as_told
from edgeagent.trainer.fingerprint import job_fields
from edgeagent.trainer.gradient_arithmetic import gradient_arithmetic
from edgeagent.trainer.interrupts import Interrupts
from edgeagent.trainer.introduction import introduce, work_in_words
from edgeagent.trainer.loader import LoaderOptions
from edgeagent.trainer.local_steps import check_local_steps
from edgeagent.trainer.options import DEFAULT_GLOBAL_BATCH, resolve_options
from edgeagent.trainer.own_steps import own_steps
from edgeagent.trainer.own_threads import OwnThreads, why_fixed
from edgeagent.trainer.process import connect_agent, ended_with_a_reason
from edgeagent.trainer.rehearsal import Rehearsal
from edgeagent.trainer.saving import Saving
from edgeagent.trainer.service import Service
from edgeagent.trainer.slot_files import in_words, load_slots
from edgeagent.trainer.state import TrainingState
from edgeagent.trainer.stream import is_stream
from edgeagent.trainer.streams import RandomStreams
from edgeagent.trainer.subnets.steps import SubnetSteps
from edgeagent.trainer.validation import check_job, settle_implementation
from protocols.cluster.stripes import OnLost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from edgeagent.shared_memory import SharedMemory
    from edgeagent.trainer.data import TrainingData
    from edgeagent.trainer.loader import MicroBatchSource
    from edgeagent.trainer.process import AgentConnection
    from edgeagent.trainer.subnets.layers import Division


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
        wire: how gradients travel between devices: "full" (None), as they are, "bf16", rounded to
            bfloat16, which halves the bytes, or "exact", as integers, so that the result has the
            same bits on any number of devices of one kind, whatever joins and fails meanwhile.
        overlap: let gradients leave while `backward()` still computes others, on the CPU. For
            scripts that leave gradients alone between `backward()` and `update()`; None is False.
        local_steps: an iteration becomes a round, which has the samples of so many global batches.
            Each micro-batch of it is a step that the device which computes it takes by itself with
            `optimizer`; then the cluster averages how far the devices came. `max_grad_norm` clips
            each local step; `steps` and `lr_scheduler` count rounds. None has no local steps.
        outer: what the cluster does with that average: "average" (None) makes it the new weights,
            "nesterov" takes it for the gradient of SGD with a rate of 0.7 and Nesterov's momentum
            0.9 (DiLoCo), and a function makes any other optimizer of the parameters it is given.
        subnets: what `edgeagent.subnets.fully_connected(model)`, `residual(model, ...)` or
            `transformer(model)` returns: in each round every device trains a part of the model of
            its own, as large as it is fast, for `local_steps` steps of `global_batch` samples. The
            loop computes with `trainer.model`, which is that part; `model` stays whole.
        subnet_scale: "inverse" (None) multiplies what a divided layer gives to the next one by the
            inverse of the part that is there, "sqrt" by the root of that, "none" does not.
        subnet_minimum: the smallest part of the model that a device gets, from 0 (None) to 1, so
            that a slow one, too, learns something; with too many devices for it each gets as much.
        subnet_period: after so many rounds neurons are dealt out in another random order; until
            then a device keeps those that its part of the model allows. None is 1.
        subnet_ewma: how much the last round counts in a device's speed, above 0 and up to 1; the
            rest is its speed before (exponentially weighted moving average). None is 0.8.
        shard_optimizer: no device keeps all of the optimizer's state. Each part of it lies on one
            device, its owner, which makes the new weights, and on `copies` others, so that it
            survives if so many devices are lost at once. For optimizers that treat each element by
            itself, of float32 parameters on the CPU. None is False.
        copies: see `shard_optimizer`; None is 1.
        on_lost: what this device does if more are lost, and parts of that state with them: "wait"
            (None) until these devices are back, "stop" and save what is here, or "fresh", go on
            with these parts as at the beginning.

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
        wire: str | None = None,
        overlap: bool | None = None,
        local_steps: int | None = None,
        outer: Any = None,
        subnets: Division | None = None,
        subnet_scale: str | None = None,
        shard_optimizer: bool | None = None,
        copies: int | None = None,
        on_lost: str | None = None,
        *,
        subnet_minimum: float | None = None,
        subnet_period: int | None = None,
        subnet_ewma: float | None = None,
        _caller: str = "",
        _agent: AgentConnection | None = None,
        _mirror: bool = False,
    ) -> None:
        endings.watch_for_crashes()
        batches = (global_batch, micro_batch, steps, seed, save_every, keep, wire, overlap)
        modes = (local_steps, outer, subnets, shard_optimizer, copies, on_lost)
        parts = {"subnet_scale": subnet_scale, "subnet_minimum": subnet_minimum}
        parts |= {"subnet_period": subnet_period, "subnet_ewma": subnet_ewma}
        options = self._options = resolve_options(os.environ, *batches, *modes, parts)
        config = self._config = options.config
        self._global_batch, self._micro_batch = options.round_batch, options.micro_batch
        self._seed, self._wire = options.seed, options.wire
        check_job(model, optimizer, lr_scheduler, max_grad_norm, is_replicated=options.replicates)
        threads = OwnThreads(config.threads, why_fixed(model, optimizer, options))
        self._settle(model, optimizer, grad_scaler, _caller)
        self._composition = Composition(model, optimizer)
        local = own_steps(options, model, optimizer, max_grad_norm)
        self._own_model = local.net if isinstance(local, SubnetSteps) else model
        self._optimizer = optimizer
        self._scheduler, self._max_grad_norm = lr_scheduler, max_grad_norm
        self._state = TrainingState(
            model,
            optimizer,
            lr_scheduler,
            max_grad_norm,
            grad_scaler=grad_scaler,
            mirror=_mirror,
            overlap=options.overlap,
            local=local,
            exact_count=options.exact_count,
            shards=options.shard_optimizer,
        )
        self._chosen = self._state.device if config.device else None  # with `run --device`
        self._streams = RandomStreams(self._seed, self._state.devices)
        self._saving = Saving(options, self._state, endings.say)
        self._service = Service(self._state, self._saving, options.steps)
        self._service.agent, self._service.threads = _agent, threads
        self._memory: SharedMemory | None = None
        self._data: TrainingData | None = None
        self._source: MicroBatchSource | None = None
        self._current: int | None = None  # handed to the script, update() not yet called
        self._closed = False

    def _settle(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, scaler: Any, caller: str
    ) -> None:
        """Decide how the optimizer steps, and move model and optimizer to where they were told to
        be."""
        if self._options.local_steps:
            check_local_steps(scaler, caller)
        else:
            settle_implementation(optimizer, stacklevel=4)  # where the script makes its Trainer
        place_as_told(self._config.device, model, optimizer)

    # What the script reads.

    @property
    def device(self) -> torch.device:
        """Return the device that the model is on: that of `edgeagent run --device`, if given."""
        return self._state.device

    @property
    def model(self) -> torch.nn.Module:
        """Return what the loop has to compute with: with subnets this device's part of the model,
        which is another one in each round, else the model that `Trainer()` was given."""
        return self._own_model

    @property
    def iteration(self) -> int:
        """Return how many iterations the training state has behind it."""
        return self._state.iteration

    @property
    def loss(self) -> float:
        """Return the cluster's mean loss in the last iteration; NaN before the first that was
        applied here, also after a join: a list of it has gaps where `iteration` has."""
        return self._service.loss

    @property
    def skipped(self) -> int:
        """Return how many steps were skipped on all nodes because a gradient was not finite."""
        return self._state.skipped

    @property
    def steps(self) -> int:
        """Return the iteration at which training ends, 0 for never."""
        return self._service.steps

    @property
    def end_reason(self) -> str:
        """Return why the loader ended: "steps", "left" or "error"; "" while training."""
        ended = self._service.ended
        return "" if ended is None else ended.why

    # What the script calls.

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
        if self._service.client is not None:
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
        `pin_memory`, `worker_init_fn`: as in torch; samples that show whether two devices have the
        same data are read by one more worker, which ends before the others begin.

        Raises `UsageError` for an unusable data set or sampler, `EdgeAgentError` (`AgentLost` among
        them) if training cannot begin or go on.
        """
        options = LoaderOptions(workers, prefetch, pin_memory, worker_init_fn)
        batches = self._options.sample_batches
        if self._options.subnets is not None and is_stream(dataset):
            raise UsageError("subnets take samples by number: an IterableDataset has no numbers")
        data = self._data = training_data(self._data, dataset, sampler, self._streams, *batches)
        source = data.source(collate_fn, options, self._chosen, lambda: self._service.steps)
        if self._service.client is None:
            self._join(data, options)
        return self._micro_batches(source, _until)

    def update(self, loss: Any) -> bool | None:
        """Take in the micro-batch whose `backward()` was just called.

        `loss`: the mean over its samples, one number. Returns True when the iteration was stepped
        (summed over the cluster, clipped, stepped, scheduled, gradients None), else None: more
        micro-batches of this iteration follow, now or after a failure elsewhere.
        """
        service, micro_batch = self._service, self._current
        client = service.client
        if micro_batch is None or client is None:
            raise UsageError("update() belongs after each micro-batch of loader(), once")
        self._current = None
        self._state.guards.script_ran()
        try:
            self._state.collect(micro_batch, loss)
        finally:
            self._streams.leave()
        before = self._state.iteration
        if not service.settle_early():
            if service.pending:
                service.gets_on()
                return None
            service.tell_cost()
            client.send(self._state.contribution())
            while service.is_undecided(before):
                service.advance()
        return True if self._state.iteration == before + 1 and service.was_stepped else None

    def check_state_replication(self) -> None:
        """Notice what the agent has said meanwhile; never waits.

        Joiners are served by the agent itself, so calling this is optional.
        """
        if self._service.client is not None and self._service.ended is None:
            self._service.client.poll()

    def capture_exit_event(self) -> bool:
        """Return whether somebody wants this node to leave; True only between two iterations.

        That is: Ctrl+C or `edgeagent leave`, noticed when `update()` has returned True (or before
        the first micro-batch). A script that never asks leaves all the same: its loader ends.
        """
        service = self._service
        client = service.client
        if client is None:
            return False
        if service.ended is not None:
            return service.ended.why == "left"
        client.poll()
        service.pass_interrupt_on()
        asked = (
            client.leave_asked
            or service.exit_sent
            or any(isinstance(message, End) for message in client.waiting())
        )
        busy = self._current is not None or service.pending or service.has_computed
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
        service = self._service
        if service.client is None or service.ended is not None:
            return
        service.ask_exit()
        if self._current is None and not service.pending:
            service.leave()

    def stop(self) -> None:
        """End training on all nodes with the running iteration, as if its number were `steps`.

        Called when `update()` has returned True, that is the iteration after it; what this node
        computes of an iteration brings the wish to all the others at once. Each of them applies
        that iteration, saves and ends with exit status 0; `end_reason` is "steps". Any script may
        call it, and one is enough. Returns at once: go on with the loop until the loader ends.
        Raises `UsageError` before the first `loader()`.
        """
        if self._service.client is None:
            raise UsageError("stop() belongs after the first loader()")
        self._state.stop = True

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Take no share while the block runs, for example to evaluate between two iterations.

        The others go on meanwhile. The agent keeps the updates that this trainer misses, and the
        trainer catches up when the block ends; if they become too many to keep, the device leaves
        the cluster and joins it again then. Others compute what it had begun of an iteration.
        """
        self._service.settle_slots()
        self._service.tell(Away(True))
        try:
            yield
        finally:
            self._service.tell(Away(False))

    def save(self, path: str) -> None:
        """Write the training state after the last update to `path`, whole or not at all, as --save
        does; at any time from the first `loader()` on. A file that is there is replaced.

        Raises `UsageError` if it is too early or if nothing can be written there, `EdgeAgentError`
        if writing fails.
        """
        if self._service.client is None:
            raise UsageError("save() belongs after the first loader()")
        self._saving.now(path)

    def report(self, name: str, value: float, *, quiet: bool = False) -> None:
        """Have the agent show a figure of this device, for example `report("accuracy", x)`, and
        write it to the events. With `quiet` it is only written there."""
        self._service.tell(Evaluated(self._state.iteration, name, float(value), quiet))

    def close(self) -> None:
        """Leave if that is still to be done, and end the agent's service; idempotent.

        Called at the end of the script by itself. Raises `EdgeAgentError` if saving failed.
        """
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self._close_at_exit)
        service = self._service
        error = endings.crash() or service.failure
        try:
            if service.client is not None and service.ended is None and not error:
                service.ask_exit()
                service.leave()
        except EdgeAgentError as failure:
            error = str(failure)
            raise
        finally:
            self._hang_up(error or self._saving.error)
        if self._saving.error:
            raise endings.AgentRefused(self._saving.error, 1, service.agent_speaks)

    # Joining.

    def _join(self, data: TrainingData, loading: LoaderOptions) -> None:
        self._composition.check()
        settings = {
            "max_grad_norm": self._max_grad_norm,
            **self._options.batch_fields,
            "seed": self._seed,
            "wire": self._wire,
            "grad_scaler": self._state.scaling.state(),
        }
        local_steps, subnets = self._options.local_steps, self._options.subnets
        if local_steps:
            settings["local steps"] = local_steps
        if subnets is not None:
            settings |= subnets.fields
        if self._options.shard_optimizer:
            settings["shard optimizer"] = f"{self._options.copies} copies"
        if self._options.exact_count:
            settings["gradient arithmetic"] = gradient_arithmetic(self._state.device)
        fields = job_fields(self._state, self._optimizer, self._scheduler, settings)
        job = (self._options.job_field, *fields, *data.fields(loading))
        service = self._service
        if self._options.without_effect:
            endings.say(self._options.without_effect)
        if self._config.dry_run:
            service.agent = service.agent or connect_agent()
            copies = self._options.copies
            service.client = Rehearsal(service.agent, self._state, self._micro_batch, copies)
        self._memory = self._saving.memory = self._state.share()
        if self._config.more_parts and self._state.shards is None:
            raise UsageError("only with --shard-optimizer are there several files for --resume")
        lacking = self._resume(self._memory) if self._config.resume else 0
        hello = introduce(
            self._state,
            job,
            self._global_batch,
            self._micro_batch,
            service.steps,
            self._config.save,
            rounds=self._wire == "bf16",
            local_steps=local_steps,
            subnets=subnets,
            copies=self._options.copies,
            on_lost=self._options.on_lost,
            lacking=lacking,
        )
        self._saving.begin(hello.meta, writes=not self._config.dry_run)
        if self._config.overlap and local_steps:
            endings.say("no gradients travel with local steps: --overlap changes nothing")
        elif self._config.overlap and not self._state.overlaps:
            endings.say(f"gradients leave together: --overlap is for the CPU, not {self.device}")
        endings.say(work_in_words(hello))
        agent = service.agent = service.agent or connect_agent()
        service.interrupts = Interrupts(agent.plain)
        wake, passed_on = service.interrupts.wake, service.pass_interrupt_on
        client = service.client = service.client or AgentClient(agent.connection, wake, passed_on)
        endings.end_fast()
        atexit.register(self._close_at_exit)
        with ended_with_a_reason(agent):
            client.greet(hello, self._memory)
            self._memory.close_descriptors()
            while not service.began and service.ended is None:
                service.advance()
        endings.agent_speaks(service.agent_speaks and service.ended is None)

    def _resume(self, memory: SharedMemory) -> int:
        """Go on from the files that the user has named; return how many parts of a divided
        optimizer's state are in none of them and have to come from other devices."""
        only_joins = False
        resume(self._config.resume, self._state, memory.state.view())
        lacking: tuple[int, ...] = ()
        if (shards := self._state.shards) is not None:
            files = (self._config.resume, *self._config.more_parts)
            anew = self._options.on_lost is OnLost.FRESH
            only_joins = self._config.continues and not anew
            at, mark = self.iteration, shards.mark(memory.state.view(), self._state.layout)
            lacking = load_slots(files, shards, at, mark, anew=anew or only_joins)
            shards.keep(range(shards.layout.stripes))
            self._state.begin_anew(lacking)
            if lacking:
                endings.say(in_words(len(lacking), shards.layout.stripes, only_joins=only_joins))
        local = bool(self._options.local_steps)
        endings.say(resumed_text(self._config.resume, self.iteration, self.steps, rounds=local))
        return len(lacking) if only_joins else 0

    # The loop.

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
        return not 0 < until <= done or 0 < self._service.steps <= done

    def _next_is_ready(self) -> bool:
        """Wait for something to compute; False at the end."""
        service = self._service
        self._state.guards.script_ran()
        if self._current is not None:
            raise UsageError(
                "update(loss) was not called for the last micro-batch: call it after each of them."
                " The trainer accumulates gradients by itself, over global_batch= samples"
            )
        service.settle_early()
        while not service.pending and service.ended is None:
            service.advance()
            service.settle_early()
        return service.ended is None

    def _fetched(self, source: MicroBatchSource) -> Any:
        pending = self._service.pending
        self._current = pending.popleft()
        iteration = self._state.iteration
        client = self._service.client
        say = client.send if client is not None and not pending else None
        self._state.model.zero_grad()  # what a trial backward() of the script may have left
        self._state.start_micro_batch(self._current, say)
        try:
            batch = source.fetch(iteration, self._current, pending)
            self._streams.enter(iteration, self._current)
        except BaseException:
            self._streams.leave()
            raise
        return batch

    # The end.

    def _hang_up(self, error: str) -> None:
        self._streams.leave()
        if self._source is not None:
            self._source.close()
        self._service.hang_up(error)
        self._saving.finish()

    def _close_at_exit(self) -> None:
        try:
            self.close()
        except EdgeAgentError as error:
            if not (isinstance(error, endings.AgentRefused) and error.shown):
                endings.say(str(error))
            endings.fail_at_exit(error.exit_status)
