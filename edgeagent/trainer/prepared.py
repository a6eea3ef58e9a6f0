"""`prepare()`: a script in the shape of DistributedDataParallel's trains with a `Trainer`.

Such a script goes over epochs and batches and calls `optimizer.zero_grad()`, `loss.backward()` and
`optimizer.step()` itself. What `prepare` returns has the same methods, and they do what is right
for the cluster: the loader gives this device's micro-batches, `step()` is the trainer's `update()`,
and what the trainer does by itself (clearing gradients, stepping the schedule, scaling) is asked of
it in vain. An epoch is a number of updates of the whole cluster, so it holds for all devices,
although each computes its own part of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from edgeagent.errors import UsageError
from edgeagent.trainer.backward import BackwardNotes
from edgeagent.trainer.dataloaders import batches_as_told, epochs_to_steps, loader_arguments
from edgeagent.trainer.trainer import Trainer

_UPDATES = "edgeagent_updates"

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgeagent.trainer.dataloaders import LoaderArguments
    from edgeagent.trainer.process import AgentConnection


def prepare(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: Any,
    lr_scheduler: Any = None,
    grad_scaler: Any = None,
    *,
    global_batch: int,
    epochs: float | None = None,
    steps: int | None = None,
    schedule_every: str = "iteration",
    max_grad_norm: float | None = None,
    seed: int | None = None,
    save_every: int | None = None,
    keep: int | None = None,
    _agent: AgentConnection | None = None,
) -> tuple[Any, ...]:
    """Return `model, optimizer, loader`, then schedule and scaler if given, for a loop like DDP's.

    Args:
        model: a `torch.nn.Module`, without DistributedDataParallel. What is returned calls it and
            has it as `module`, as DistributedDataParallel does.
        optimizer: as for `Trainer`. What is returned steps the whole cluster's update in `step()`.
        loader: a `torch.utils.data.DataLoader` over all samples, not those of one rank: with
            `shuffle=True`, or with a sampler (`DistributedSampler(data, 1, 0)` is one). Its batches
            are the micro-batches.
        lr_scheduler: stepped by the trainer; `step()` of what is returned does nothing.
        grad_scaler: as for `Trainer`; what is returned only scales.
        global_batch: samples of an update of the whole cluster: what was `batch_size` times
            processes, times accumulated batches. A multiple of the loader's `batch_size`.
        epochs: how many the script's loop has, so that all devices end at the same update; or
            `steps`, the number of updates. With neither, a device leaves when its script ends.
        schedule_every: "iteration", or "epoch" if the script steps the schedule once an epoch.
        max_grad_norm, seed, save_every, keep: as for `Trainer`, which is `loader.trainer`.

    Raises `UsageError`, before anything is joined, for what cannot be used. The cluster is joined
    when the loader is first iterated.
    """
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise UsageError("prepare() takes the model without DistributedDataParallel: leave it away")
    given = loader_arguments(loader)
    size, micro_batch = batches_as_told(global_batch, given.micro_batch)
    length = given.iterations(size)
    schedule = _schedule(lr_scheduler, schedule_every, length)
    trainer = Trainer(
        model,
        optimizer,
        size,
        schedule,
        max_grad_norm,
        micro_batch,
        _steps(epochs, steps, length),
        seed,
        grad_scaler,
        save_every,
        keep,
        _caller="prepare()",
        _agent=_agent,
    )
    notes = BackwardNotes([p for p in model.parameters() if p.requires_grad])
    epoch = PreparedLoader(trainer, given, length, notes)
    stepped = PreparedOptimizer(epoch, optimizer, notes)
    prepared: list[Any] = [PreparedModel(model), stepped, epoch]
    if lr_scheduler is not None:
        prepared.append(PreparedSchedule(lr_scheduler, epoch, schedule_every))
    if grad_scaler is not None:
        prepared.append(PreparedScaler(grad_scaler, notes))
    return tuple(prepared)


class PreparedModel(torch.nn.Module):
    """Calls `module`, and has DistributedDataParallel's other names for what can be had."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Return what the model returns."""
        return self.module(*inputs, **options)

    def no_sync(self) -> Any:
        """Refuse: gradients are not accumulated over several steps of the script."""
        raise UsageError(
            "no_sync() accumulates gradients, which the trainer does: call optimizer.step() after"
            " each backward(), and give prepare() a global_batch= of all accumulated samples"
        )


class PreparedLoader:
    """This device's micro-batches, one epoch each time it is iterated.

    Epoch e holds updates [e*n, (e+1)*n) of the cluster, where n is `len()`. A device that joins in
    a later epoch gets nothing in those before, so the script's own count of epochs is right there,
    too. How many batches a device gets in an epoch depends on its share.
    """

    def __init__(
        self, trainer: Trainer, given: LoaderArguments, iterations: int, notes: BackwardNotes
    ) -> None:
        self.trainer = trainer
        self.sampler = given.options["sampler"]
        self.dataset = given.options["dataset"]
        self.is_within = False  # an epoch
        self._options = given.options
        self._iterations = iterations
        self._notes = notes
        self._epochs = 0
        self._is_out = False  # the script has a batch that it has not stepped with

    def __len__(self) -> int:
        """Return the updates of an epoch; raises `TypeError` for a stream, which has no end."""
        if not self._iterations:
            raise TypeError("an IterableDataset has no length")
        return self._iterations

    def __iter__(self) -> Iterator[Any]:
        """Yield what this device computes of the next epoch."""
        self._epochs += 1
        self.is_within = True
        try:
            until = self._epochs * self._iterations
            batches = self.trainer.loader(**self._options, _until=until)
            while True:
                self._check_stepped()
                self._notes.forget()
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                self._is_out = True
                yield batch
        finally:
            self.is_within = False

    def update(self, loss: Any) -> None:
        """Hand in the micro-batch that was given last."""
        self._is_out = False
        self.trainer.update(loss)

    def finish(self) -> None:
        """Wait for the end if the last step is done; a loop that counts steps ends before it."""
        trainer = self.trainer
        if 0 < trainer.steps <= trainer.iteration and not self._is_out:
            for _ in trainer.loader(**self._options):
                break

    def _check_stepped(self) -> None:
        if self._is_out:
            raise UsageError(
                "optimizer.step() was not called for the last batch. The trainer accumulates"
                " gradients itself: call step() after each backward(), do not divide the loss, and"
                " give prepare() a global_batch= of all accumulated samples"
            )


class PreparedOptimizer:
    """`step()` is the trainer's `update()`; the rest is the optimizer's own."""

    def __init__(
        self, loader: PreparedLoader, optimizer: torch.optim.Optimizer, notes: BackwardNotes
    ) -> None:
        self.optimizer = optimizer
        self._loader = loader
        self._notes = notes

    def step(self, closure: Any = None) -> None:
        """Hand in the micro-batch; when it was the last of this device's share, wait for the
        cluster and apply the update. Raises `UsageError` for a loop that cannot be trained."""
        if closure is not None:
            raise UsageError("optimizer.step(closure) evaluates the model by itself: call step()")
        self._loader.update(self._notes.take())

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients since the last step, which so are no part of the next one. The trainer
        has taken away all others."""
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        self._notes.forget()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["optimizer"], name)


class PreparedSchedule:
    """`step()` does nothing, where the trainer steps the schedule; the rest is the schedule's own.

    A step at another moment than `every` says is refused: the rates would be others than before.
    """

    def __init__(self, schedule: Any, loader: PreparedLoader, every: str) -> None:
        self.schedule = schedule
        self._loader = loader
        self._every = every

    def step(self, *_: Any) -> None:
        """Do nothing; raise `UsageError` at the wrong moment."""
        if self._loader.is_within != (self._every == "iteration"):
            found = "iteration" if self._loader.is_within else "epoch"
            raise UsageError(
                f"the script steps the lr_scheduler once in each {found}, and prepare() was told"
                f" {self._every}: give it schedule_every={found!r}"
            )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["schedule"], name)


class PreparedScaler:
    """`scale()` is the scaler's own; what sees one device's gradients only is the trainer's."""

    def __init__(self, scaler: Any, notes: BackwardNotes) -> None:
        self.scaler = scaler
        self._notes = notes

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the scaled loss."""
        result: torch.Tensor = self.scaler.scale(loss)
        self._notes.scaled(loss, result)
        return result

    def step(self, optimizer: Any) -> None:
        """Do as `optimizer.step()`; raise `UsageError` for an optimizer that is not prepared."""
        if not isinstance(optimizer, PreparedOptimizer):
            raise UsageError("scaler.step() takes the optimizer that prepare() has returned")
        optimizer.step()

    def unscale_(self, optimizer: Any) -> None:
        """Do nothing: the cluster's mean is unscaled, in the update."""

    def update(self, new_scale: Any = None) -> None:
        """Do nothing: the trainer lets the scale grow and shrink, on all devices alike."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["scaler"], name)


class EpochSchedule:
    """Steps `schedule` once in `length` updates; its state is the schedule's and a count."""

    def __init__(self, schedule: Any, length: int) -> None:
        self.schedule = schedule
        self.optimizer = schedule.optimizer
        self._length = length
        self._updates = 0

    def step(self) -> None:
        """Take in an update."""
        self._updates += 1
        if self._updates % self._length == 0:
            self.schedule.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the schedule's state and the number of updates."""
        return {**self.schedule.state_dict(), _UPDATES: self._updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        own = dict(state)
        self._updates = own.pop(_UPDATES)
        self.schedule.load_state_dict(own)


def _steps(epochs: float | None, steps: int | None, length: int) -> int | None:
    """Return the last step, None for no end."""
    if epochs is None:
        return steps
    if steps is not None:
        raise UsageError("prepare() takes epochs= or steps=, not both")
    return epochs_to_steps(epochs, length)


def _schedule(schedule: Any, every: str, length: int) -> Any:
    """Return what the trainer steps in each iteration."""
    if every not in ("iteration", "epoch"):
        raise UsageError(f"schedule_every is {every!r}; it must be 'iteration' or 'epoch'")
    if schedule is None or every == "iteration":
        return schedule
    if isinstance(schedule, ReduceLROnPlateau):
        raise UsageError(
            "ReduceLROnPlateau with schedule_every='epoch' would need a loss of the whole epoch:"
            " use 'iteration', with a patience in updates"
        )
    if not length:
        raise UsageError("an IterableDataset has no epochs for schedule_every='epoch'")
    return EpochSchedule(schedule, length)
