"""Samples from the data set, collated into micro-batches.

Samples are fetched and collated under random streams that follow from (seed, iteration,
micro-batch) alone (`streams.py`). This holds in the script's own thread as well as in a worker
process (`workers.py`), so a micro-batch is the same whoever fetched it, and devices with different
numbers of workers can train together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.utils.data import default_collate

from edgeagent.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgeagent.trainer.order import SampleOrder
    from edgeagent.trainer.streams import RandomStreams

# The label of the streams under which samples are fetched; those of the computation have none.
SAMPLES = "samples"
# How many micro-batches each worker fetches ahead, as many as torch's DataLoader does.
DEFAULT_PREFETCH = 2


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    """How samples are fetched: by `workers` processes, each of them `prefetch` micro-batches ahead.

    Without workers the script's own thread fetches them. `pin_memory` puts them into page-locked
    memory, from which a GPU copies faster. `worker_init_fn` is called in each worker with its
    number. Raises `UsageError` if the numbers cannot be used.
    """

    workers: int = 0
    prefetch: int | None = None
    pin_memory: bool = False
    worker_init_fn: Callable[[int], Any] | None = None

    def __post_init__(self) -> None:
        for name, value, least in (("workers", self.workers, 0), ("prefetch", self.prefetch, 1)):
            if not is_number(value, least) and (name, value) != ("prefetch", None):
                raise UsageError(f"{name} is {value}; it must be a whole number from {least} on")
        for name, given in (
            ("prefetch", self.prefetch),
            ("worker_init_fn", self.worker_init_fn),
        ):
            if given is not None and not self.workers:
                raise UsageError(f"{name} is of use with workers only: give workers=, too")


def is_number(value: Any, least: int) -> bool:
    """Return whether `value` is a whole number from `least` on."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


class Samples:
    """Fetches and collates samples of `dataset`, in whatever process it is called."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any] | None) -> None:
        self.dataset = dataset
        self._collate = collate or default_collate

    def collated(self, indices: list[int]) -> Any:
        """Return one micro-batch: the samples with these `indices`, collated."""
        # A data set may fetch several samples at once, by a method that torch's DataLoader uses.
        several = getattr(self.dataset, "__getitems__", None)
        samples = several(indices) if several else [self.dataset[k] for k in indices]
        return self._collate(samples)


class MicroBatchSource(Protocol):
    """Where the trainer gets micro-batches from."""

    def fetch(self, iteration: int, micro_batch: int, pending: Sequence[int]) -> Any:
        """Return the samples of a micro-batch.

        `pending` has the micro-batches of the same iteration that this node has to compute after
        it. The global random generators may be in any state afterwards.
        """

    def close(self) -> None:
        """Give up what the source holds, for nothing is fetched any more; idempotent."""


class InProcess:
    """Fetches each micro-batch when it is asked for, in this process."""

    def __init__(self, samples: Samples, order: SampleOrder, streams: RandomStreams) -> None:
        self._samples = samples
        self._order = order
        self._streams = streams

    def fetch(self, iteration: int, micro_batch: int, _pending: Sequence[int]) -> Any:
        """Fetch the micro-batch now and return it."""
        indices = self._order.indices(iteration, micro_batch)
        self._streams.enter(iteration, micro_batch, SAMPLES)
        return self._samples.collated(indices)

    def close(self) -> None:
        """Do nothing, because this source holds nothing."""


class Delivered:
    """Brings the micro-batches of another source to the device where the model is.

    They stay on the CPU if `device` is None. `pin` copies them into page-locked memory first, from
    which a GPU copies faster; it is for a source that does not do so itself.
    """

    def __init__(self, source: MicroBatchSource, device: torch.device | None, *, pin: bool) -> None:
        self._source = source
        self._device = device
        self._pin = pin and torch.cuda.is_available()
        self.close = source.close

    def fetch(self, iteration: int, micro_batch: int, pending: Sequence[int]) -> Any:
        """Fetch the micro-batch from the other source, move it and return it."""
        batch = self._source.fetch(iteration, micro_batch, pending)
        if self._pin:
            batch = mapped(batch, torch.Tensor.pin_memory)
        return batch if self._device is None else moved(batch, self._device)


def moved(batch: Any, device: torch.device) -> Any:
    """Return `batch` with every tensor in its lists, tuples and dictionaries on `device`."""
    return mapped(batch, lambda tensor: tensor.to(device, non_blocking=tensor.is_pinned()))


def mapped(batch: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return `batch` with every tensor in its lists, tuples and dictionaries changed."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, dict):
        return {key: mapped(value, change) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(mapped(value, change) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(mapped(value, change) for value in batch)
    return batch


def default_micro_batch(global_batch: int) -> int:
    """Return the smallest divisor of `global_batch` that is at least 8 and at least 1/64 of it.

    Small micro-batches can be shared out more evenly, but each costs a call of the script's loop.
    """
    for count in range(min(64, global_batch // 8), 0, -1):
        if global_batch % count == 0:
            return global_batch // count
    return global_batch


def local_batch(global_batch: int) -> int:
    """Return the samples of a local step if nobody says how many: a quarter of `global_batch`, as
    if four devices shared it, or another part of about that size if it cannot be divided by 4."""
    return next(global_batch // parts for parts in (4, 3, 5, 2, 1) if global_batch % parts == 0)


def sample_numbers(length: int, count: int) -> Sequence[int]:
    """Return `count` indices spread evenly over a data set, both ends included."""
    return [k * (length - 1) // max(1, count - 1) for k in range(count)]
