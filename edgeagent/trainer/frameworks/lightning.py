"""`EdgeStrategy`: Lightning's `Trainer` with the cluster's update in the place of one process's.

Lightning calls `training_step` for each batch and then the strategy's `optimizer_step`. Here a
batch is a micro-batch of this device's share, and `optimizer_step` hands it in; Lightning's counter
of steps is set to the cluster's, so `max_steps`, logs and callbacks mean updates of the cluster.
What Lightning would do to the optimizer beside that is mapped to the trainer's own, or refused by
name before anything is joined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities.model_helpers import is_overridden

from edgeagent.errors import UsageError
from edgeagent.trainer.backward import BackwardNotes
from edgeagent.trainer.dataloaders import batches_as_told, epochs_to_steps, loader_arguments
from edgeagent.trainer.prepared import EpochSchedule, PreparedLoader
from edgeagent.trainer.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from edgeagent.trainer.dataloaders import LoaderArguments
    from edgeagent.trainer.process import AgentConnection


class EdgeStrategy(SingleDeviceStrategy):  # type: ignore[misc]  # seen as Any: not followed by mypy
    """`Trainer(strategy=EdgeStrategy(global_batch=64))` trains with the other nodes of the cluster.

    Args:
        global_batch: samples of an update of the whole cluster, a multiple of the `batch_size` of
            the train `DataLoader`, which is the size of a micro-batch.
        device: where the model is, as for `SingleDeviceStrategy`.
        seed, save_every, keep: as for edgeagent's `Trainer`, which is `edge` once fitting begins.

    Mapped: `max_steps` and `max_epochs` (an epoch is as many updates of the cluster as the data set
    has global batches), `gradient_clip_val`, one optimizer, one schedule stepped once a step or
    once an epoch, `precision="bf16-mixed"`. A device's epoch has as many batches as its share.
    Checkpoints that callbacks write are this device's; those of edgeagent are `save_every`.

    `fit()` raises `UsageError` before anything is joined for what cannot be had.
    """

    def __init__(
        self,
        global_batch: int,
        device: str | torch.device = "cpu",
        *,
        seed: int | None = None,
        save_every: int | None = None,
        keep: int | None = None,
        _agent: AgentConnection | None = None,
    ) -> None:
        super().__init__(device)
        self.edge: Trainer | None = None
        self._global_batch = global_batch
        self._options: dict[str, Any] = {
            "seed": seed,
            "save_every": save_every,
            "keep": keep,
            "_agent": _agent,
        }
        self._batches: _Batches | None = None
        self._schedules: list[Any] = []
        self.lr_scheduler_configs: list[Any] = []

    def setup(self, trainer: Any) -> None:
        """Take the schedule from Lightning, which would step it for this device alone."""
        super().setup(trainer)
        if trainer.state.fn == "fit":
            _check(trainer, self)
            self._schedules = list(self.lr_scheduler_configs)
            self.lr_scheduler_configs = []

    def process_dataloader(self, dataloader: object) -> object:
        """Return this device's micro-batches in the place of the train loader."""
        module = self.lightning_module
        trainer = None if module is None else module.trainer
        if trainer is None or trainer.state.fn != "fit":
            return dataloader
        if not trainer.training:
            raise UsageError(
                "validation within fit() would run on each device at another moment: call"
                " trainer.validate() after fit(), and give Trainer(limit_val_batches=0)"
            )
        if self.edge is not None:
            raise UsageError("fit() was called before, or reloads its data: make another strategy")
        if not self.optimizers:
            raise UsageError(
                "estimated_stepping_batches is not known with EdgeStrategy: give the schedule its"
                " number of steps, max_steps or epochs * samples / global_batch"
            )
        given = loader_arguments(dataloader)
        size, micro_batch = batches_as_told(self._global_batch, given.micro_batch)
        length = given.iterations(size)
        self.edge = Trainer(
            module,
            self.optimizers[0],
            size,
            _schedule(self._schedules, length),
            trainer.gradient_clip_val or None,
            micro_batch,
            _steps(trainer, length),
            **self._options,
            _caller="EdgeStrategy",
        )
        notes = BackwardNotes([p for p in module.parameters() if p.requires_grad])
        micro_batches = size // micro_batch
        self._batches = _Batches(self.edge, given, length, notes, micro_batches, self._ended)
        return self._batches

    def optimizer_step(
        self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **_: Any
    ) -> Any:
        """Compute the micro-batch and hand it in; returns its loss."""
        batches, edge = self._batches, self.edge
        if batches is None or edge is None:
            raise UsageError("EdgeStrategy trains in fit() only")
        loss = closure()
        if loss is None:
            raise UsageError("training_step() returned no loss: every micro-batch needs one")
        batches.update(loss)
        loops = self.lightning_module.trainer.fit_loop.epoch_loop
        steps = loops.automatic_optimization.optim_progress.optimizer.step.total
        steps.ready, steps.completed = edge.iteration, edge.iteration - 1  # it adds 1 right away
        loops._batches_that_stepped = max(0, edge.iteration - 1)  # and to this, the loggers' count
        return loss

    def batch_to_device(
        self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0
    ) -> Any:
        """Move a batch to where the model is, which `edgeagent run --device` may have chosen."""
        target = device if self.edge is None else self.edge.device
        return super().batch_to_device(batch, target, dataloader_idx)

    def load_optimizer_state_dict(self, checkpoint: Any) -> None:
        """Refuse: what a device goes on from comes from the cluster."""
        raise UsageError(
            "fit(ckpt_path=...) would give this device another state than the others: go on from"
            " a file with edgeagent run --resume FILE"
        )

    def _ended(self) -> None:
        """Training is over, perhaps before `max_steps`: Lightning would ask for epoch after epoch
        of nothing."""
        trainer = self.lightning_module.trainer
        trainer.fit_loop.epoch_loop.max_steps = trainer.global_step

    def on_train_end(self) -> None:
        """Wait for the end that all devices have agreed on, if the last step was done."""
        if self._batches is not None:
            self._batches.finish()


class _Batches(PreparedLoader):
    """A prepared loader that says how many batches an epoch has at most: Lightning fetches one
    batch ahead of a loader of unknown length, before the last one was handed in."""

    def __init__(
        self,
        trainer: Trainer,
        given: LoaderArguments,
        iterations: int,
        notes: BackwardNotes,
        micro_batches: int,
        ended: Callable[[], None],
    ) -> None:
        super().__init__(trainer, given, iterations, notes)
        self._most = (iterations + max(1, iterations // 10)) * micro_batches  # some done again
        self._ended = ended

    def __iter__(self) -> Iterator[Any]:
        """Yield what this device computes of the next epoch; say so if it is the last of all."""
        yield from super().__iter__()
        if self.trainer.end_reason:
            self._ended()

    def __len__(self) -> int:
        """Return the bound."""
        return self._most if self._iterations else _ENDLESS

    def update(self, loss: Any) -> None:
        """Hand in the micro-batch, of whose loss Lightning has a copy."""
        self._notes.take()
        super().update(loss)


_ENDLESS = 1 << 40


def _check(trainer: Any, strategy: EdgeStrategy) -> None:
    """Raise `UsageError` for what cannot be had."""
    module = strategy.lightning_module
    precision = strategy.precision_plugin
    refused = (
        (
            not module.automatic_optimization,
            "automatic_optimization=False steps by itself, also several optimizers",
        ),
        (
            trainer.accumulate_grad_batches != 1,
            "accumulate_grad_batches is the trainer's business: leave it away, and give"
            " EdgeStrategy a global_batch of all accumulated samples",
        ),
        (
            isinstance(precision, MixedPrecision) and precision.scaler is not None,
            "precision='16-mixed' scales on one device: use 'bf16-mixed', or a loop of your own"
            " with edgeagent's Trainer(grad_scaler=...)",
        ),
        (
            bool(trainer.gradient_clip_val) and trainer.gradient_clip_algorithm == "value",
            "gradient_clip_algorithm='value' cannot be had: use 'norm'",
        ),
        (trainer.reload_dataloaders_every_n_epochs > 0, "the train loader cannot be reloaded"),
        (trainer.overfit_batches > 0, "overfit_batches: give a smaller data set"),
        (
            trainer.limit_train_batches != 1.0 or isinstance(trainer.limit_train_batches, int),
            "limit_train_batches, fast_dev_run: use max_steps",
        ),
        *(
            (
                is_overridden(hook, module),
                f"{hook}() of {type(module).__name__} would not be called: the step is the"
                " cluster's (gradient_clip_val clips its mean gradient)",
            )
            for hook in (
                "configure_gradient_clipping",
                "on_before_optimizer_step",
                "lr_scheduler_step",
            )
        ),
    )
    for found, said in refused:
        if found:
            raise UsageError(f"Lightning with EdgeStrategy: {said}")


def _schedule(configs: list[Any], length: int) -> Any:
    """Return what the trainer steps in each iteration."""
    if not configs:
        return None
    config = configs[0]
    plateau = isinstance(config.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
    if len(configs) > 1 or plateau or config.reduce_on_plateau:
        raise UsageError("EdgeStrategy takes one schedule, which does not follow a monitored value")
    if config.interval == "step":
        return (
            config.scheduler
            if config.frequency == 1
            else EpochSchedule(config.scheduler, config.frequency)
        )
    if not length:
        raise UsageError("an IterableDataset has no epochs: give the schedule interval 'step'")
    return EpochSchedule(config.scheduler, length * config.frequency)


def _steps(trainer: Any, length: int) -> int | None:
    """Return the last step, None for no end."""
    limits = []
    if trainer.max_steps not in (None, -1):
        limits.append(int(trainer.max_steps))
    if trainer.max_epochs not in (None, -1) and (length or not limits):
        limits.append(epochs_to_steps(trainer.max_epochs, length))
    return min(limits, default=None)
