"""What a `Trainer` trains on: a data set with numbered samples, or a stream (`stream.py`).

Both answer the same two questions, what other devices must have in common (`fields`) and where
micro-batches come from (`source`), so that the trainer need not know which of them it has.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from edgeagent.errors import UsageError
from edgeagent.trainer.fingerprint import dataset_fields, said_fields, sample_digest
from edgeagent.trainer.loader import Samples
from edgeagent.trainer.order import sample_order
from edgeagent.trainer.stream import StreamData, is_stream
from edgeagent.trainer.streams import RandomStreams
from edgeagent.trainer.validation import check_dataset
from edgeagent.trainer.workers import done_in_a_worker, fetching

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from edgeagent.trainer.fingerprint import Fields
    from edgeagent.trainer.loader import LoaderOptions, MicroBatchSource


class TrainingData(Protocol):
    """A data set with the order of its samples."""

    dataset: Any
    sampler: Any

    def fields(self, options: LoaderOptions) -> Fields:
        """Return what members must have in common, for the job's fingerprint; samples are fetched
        for it as `options` say."""

    def source(
        self,
        collate: Callable[[list[Any]], Any] | None,
        options: LoaderOptions,
        device: torch.device | None,
        steps: Callable[[], int],
    ) -> MicroBatchSource:
        """Return where micro-batches come from. `device`: where their tensors are moved, None for
        nowhere; `steps()`: how many iterations there are, 0 for no end. Raises `UsageError` for
        options that cannot be used."""


class NumberedData:
    """A data set with `__len__` and `__getitem__`; raises `UsageError` for an unusable one."""

    def __init__(
        self,
        dataset: Any,
        sampler: Any,
        streams: RandomStreams,
        global_batch: int,
        micro_batch: int,
    ) -> None:
        self.dataset, self.sampler = dataset, sampler
        self._length = check_dataset(dataset)
        self._streams = streams
        batches = (global_batch, micro_batch)
        self._order = sample_order(sampler, self._length, streams, streams.seed, *batches)

    def fields(self, options: LoaderOptions) -> Fields:
        """Return the number of samples, a hash of some of them, and what the sampler does.

        With workers no sample is fetched in this process: a data set may open files at its first
        sample, and processes that are forked afterwards would share the place where they read.
        """
        said = said_fields(self.dataset)
        if options.workers:
            task = partial(_digest_by_seed, self._length, self._streams.seed)
            digest = done_in_a_worker(task, self.dataset, options)
        else:
            digest = sample_digest(self.dataset, self._length, self._streams)
        return (*dataset_fields(said, self._length, digest), *self._order.fields())

    def source(
        self,
        collate: Callable[[list[Any]], Any] | None,
        options: LoaderOptions,
        device: torch.device | None,
        steps: Callable[[], int],
    ) -> MicroBatchSource:
        """Return where micro-batches come from: this process, or workers."""
        samples = Samples(self.dataset, collate)
        return fetching(samples, self._order, self._streams, options, device, steps)


def _digest_by_seed(length: int, seed: int, dataset: Any) -> str:
    return sample_digest(dataset, length, RandomStreams(seed, ()))


def training_data(
    before: TrainingData | None,
    dataset: Any,
    sampler: Any,
    streams: RandomStreams,
    global_batch: int,
    micro_batch: int,
) -> TrainingData:
    """Return `dataset` as the trainer uses it, which is `before` if there is that already.

    Raises `UsageError` if the data set or the sampler cannot be used, or differs from before.
    """
    if before is None:
        kind = StreamData if is_stream(dataset) else NumberedData
        return kind(dataset, sampler, streams, global_batch, micro_batch)
    if dataset is not before.dataset or sampler is not before.sampler:
        raise UsageError("a Trainer trains on one data set and sampler; make another Trainer")
    return before
