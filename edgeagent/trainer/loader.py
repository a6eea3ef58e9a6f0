"""Samples from the data set, collated into micro-batches.

Law: fetching happens inside the micro-batch's random streams, in the script's process and thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import default_collate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgeagent.trainer.order import SampleOrder


class MicroBatchSource:
    """Fetches, collates and, if `device` is given, moves the samples of a micro-batch."""

    def __init__(
        self,
        dataset: Any,
        order: SampleOrder,
        collate: Callable[[list[Any]], Any] | None,
        device: torch.device | None,
    ) -> None:
        self._dataset = dataset
        self._order = order
        self._collate = collate or default_collate
        self._device = device

    def fetch(self, iteration: int, micro_batch: int) -> Any:
        """Return what the script's loop receives for this micro-batch."""
        samples = [self._dataset[k] for k in self._order.indices(iteration, micro_batch)]
        batch = self._collate(samples)
        return batch if self._device is None else moved(batch, self._device)


def moved(batch: Any, device: torch.device) -> Any:
    """Return `batch` with every tensor in its lists, tuples and dictionaries on `device`."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: moved(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(moved(value, device) for value in batch)
    return batch


def default_micro_batch(global_batch: int) -> int:
    """Return the smallest divisor of `global_batch` that is at least 8 and 1/64 of it."""
    least = max(8, -(-global_batch // 64))
    for size in range(least, global_batch):
        if global_batch % size == 0:
            return size
    return global_batch


def sample_numbers(length: int, count: int) -> Sequence[int]:
    """Return `count` indices spread evenly over a data set, both ends included."""
    return [k * (length - 1) // max(1, count - 1) for k in range(count)]
