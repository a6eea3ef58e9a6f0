"""Samples from the data set, collated into micro-batches.

Law: samples are fetched and collated inside random streams that follow from (seed, iteration,
micro-batch) alone, whether in the script's own process and thread or in a worker (`workers.py`):
which of them did it cannot be told from what comes out.
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

SAMPLES = "samples"  # label of the streams in which a micro-batch's samples are fetched
DEFAULT_PREFETCH = 2  # micro-batches that each worker is ahead, as in torch


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    """How samples are fetched: `workers` processes, each of them `prefetch` micro-batches ahead.

    Raises `UsageError` if the numbers cannot be used.
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
        self._dataset = dataset
        self._collate = collate or default_collate

    def collated(self, indices: list[int]) -> Any:
        """Return one micro-batch."""
        several = getattr(self._dataset, "__getitems__", None)  # as torch's own DataLoader
        samples = several(indices) if several else [self._dataset[k] for k in indices]
        return self._collate(samples)


class MicroBatchSource(Protocol):
    """Where the trainer gets micro-batches from."""

    def fetch(self, iteration: int, micro_batch: int, pending: Sequence[int]) -> Any:
        """Return a micro-batch's samples. `pending`: what this node has to compute of the same
        iteration after it. Leaves the global generators in any state."""

    def close(self) -> None:
        """Nothing is fetched any more; idempotent."""


class InProcess:
    """Fetches each micro-batch when it is asked for, in this process."""

    def __init__(self, samples: Samples, order: SampleOrder, streams: RandomStreams) -> None:
        self._samples = samples
        self._order = order
        self._streams = streams

    def fetch(self, iteration: int, micro_batch: int, _pending: Sequence[int]) -> Any:
        """Fetch it now."""
        indices = self._order.indices(iteration, micro_batch)
        self._streams.enter(iteration, micro_batch, SAMPLES)
        return self._samples.collated(indices)

    def close(self) -> None:
        """Nothing is held."""


class Delivered:
    """Brings what another source fetched to where the model is.

    `device`: moved there, None for nowhere. `pin`: through page-locked memory, if the source does
    not do that itself.
    """

    def __init__(self, source: MicroBatchSource, device: torch.device | None, *, pin: bool) -> None:
        self._source = source
        self._device = device
        self._pin = pin and torch.cuda.is_available()
        self.close = source.close

    def fetch(self, iteration: int, micro_batch: int, pending: Sequence[int]) -> Any:
        """Fetch and move it."""
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
    """Return the smallest divisor of `global_batch` that is at least 8 and 1/64 of it."""
    for count in range(min(64, global_batch // 8), 0, -1):
        if global_batch % count == 0:
            return global_batch // count
    return global_batch


def sample_numbers(length: int, count: int) -> Sequence[int]:
    """Return `count` indices spread evenly over a data set, both ends included."""
    return [k * (length - 1) // max(1, count - 1) for k in range(count)]
