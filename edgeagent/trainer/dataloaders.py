"""What a torch `DataLoader` was told, as arguments of `Trainer.loader()`.

Scripts that were written for another way of training on several devices have a `DataLoader`. Its
data set, collation, workers and sampler are taken over; its batches become micro-batches. What the
trainer cannot do as the `DataLoader` would is refused by name before anything is joined.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    default_collate,
)

from edgeagent.errors import UsageError
from edgeagent.trainer.options import resolve_options
from edgeagent.trainer.stream import is_stream


@dataclass(frozen=True, slots=True)
class LoaderArguments:
    """`options`: keyword arguments of `Trainer.loader()`. `micro_batch`: samples of a batch.
    `samples`: how many an epoch has, 0 if the loader does not know; `drop_last` as in torch."""

    options: dict[str, Any]
    micro_batch: int
    samples: int
    drop_last: bool

    def iterations(self, global_batch: int) -> int:
        """Return how many updates an epoch has, 0 if that is not known."""
        return iterations_of_an_epoch(self.samples, global_batch, self.drop_last)


def iterations_of_an_epoch(samples: int, global_batch: int, drop_last: bool) -> int:
    """Return how many updates an epoch of so many samples has; 0 of 0, which are not known."""
    whole, rest = divmod(samples, global_batch)
    return max(1, whole + (rest > 0 and not drop_last)) if samples else 0


def loader_arguments(loader: Any) -> LoaderArguments:
    """Return what `loader` says; raise `UsageError`, by name, for what cannot be had."""
    if not isinstance(loader, DataLoader):
        raise UsageError(f"the loader is a {type(loader).__name__}, not a torch DataLoader")
    _check(loader)
    stream = is_stream(loader.dataset)
    sampler = None if stream or _is_plain_shuffle(loader.sampler) else loader.sampler
    workers = loader.num_workers
    collate = None if loader.collate_fn is default_collate else loader.collate_fn
    options = {
        "dataset": loader.dataset,
        "collate_fn": collate,
        "workers": workers,
        "prefetch": loader.prefetch_factor if workers else None,
        "sampler": sampler,
        "pin_memory": loader.pin_memory,
        "worker_init_fn": loader.worker_init_fn if workers else None,
    }
    samples = 0 if stream else len(loader.sampler)  # type: ignore[arg-type]  # samplers have it
    return LoaderArguments(options, int(loader.batch_size or 1), samples, loader.drop_last)


def batches_as_told(global_batch: Any, micro_batch: int) -> tuple[int, int]:
    """Return the samples of an update and of a micro-batch, as `edgeagent run` may have said.

    Raises `UsageError` unless batches of `micro_batch` samples make up `global_batch`.
    """
    if not isinstance(global_batch, int) or global_batch < 1 or global_batch % micro_batch:
        raise UsageError(
            f"global_batch is {global_batch}; it must be a multiple of the DataLoader's batch_size"
            f" {micro_batch}: batch_size times processes times accumulated batches of before"
        )
    told = resolve_options(os.environ, global_batch, micro_batch, None, None, None, None)
    return told.global_batch, told.micro_batch


def _check(loader: DataLoader[Any]) -> None:
    if loader.batch_size is None:
        kind = type(loader.batch_sampler).__name__ if loader.batch_sampler is not None else "None"
        raise UsageError(
            f"the DataLoader has no batch_size (batch_sampler {kind}): the trainer makes batches"
            " itself, so give it batch_size= and, if samples are to be chosen, sampler="
        )
    if loader.generator is not None:
        raise UsageError(
            "the DataLoader has a generator of its own, with which a device that joins later would"
            " draw other samples: leave generator= away, the trainer's seed decides"
        )
    if loader.timeout or loader.multiprocessing_context is not None:
        raise UsageError(
            "the DataLoader has timeout= or multiprocessing_context=, which the trainer's workers"
            " do not have: leave them away"
        )


def _is_plain_shuffle(sampler: Any) -> bool:
    """Whether it is what `shuffle=True` makes, for which the trainer has an order of its own."""
    if type(sampler) is DistributedSampler and sampler.num_replicas == 1:
        return bool(sampler.shuffle)
    if type(sampler) is not RandomSampler or sampler.generator is not None:
        return False
    data: Any = sampler.data_source
    return not sampler.replacement and sampler.num_samples == len(data)


def epochs_to_steps(epochs: Any, iterations: int) -> int:
    """Return how many updates so many epochs have; raise `UsageError` if that is not known."""
    if not isinstance(epochs, int | float) or not math.isfinite(epochs) or epochs <= 0:
        raise UsageError(f"epochs is {epochs}; it must be a positive number")
    if not iterations:
        raise UsageError(
            "an IterableDataset has no length: give the number of steps, not of epochs"
        )
    return math.ceil(epochs * iterations)
