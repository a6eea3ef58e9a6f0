"""Samples of an `IterableDataset`, numbered by the order in which the stream gives them.

A stream has no sample that one device could ask for by its number, so every device iterates all of
it and keeps what its own micro-batches need. Sample k of the endless sequence of passes over the
stream has position k: global batch i takes positions [i*G, (i+1)*G), as those of a numbered data
set do, and micro-batch m of it [i*G + m*M, i*G + (m+1)*M). Which samples a micro-batch consists of
then depends on the stream and on its position alone, and not on the number of devices.

What that costs: each device makes every sample, so the stream must be much cheaper than the
training step; the samples of one global batch are held in memory, because a micro-batch of the
running iteration may come to this device late; and a device that joins, or resumes, at iteration i
makes and drops i*G samples before its first. Going back to an earlier iteration begins the stream
again.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset, default_collate

from edgeagent.errors import UsageError
from edgeagent.trainer.endings import say
from edgeagent.trainer.fingerprint import SAMPLES_HASHED, digest_of_samples
from edgeagent.trainer.loader import SAMPLES, Delivered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

    from edgeagent.trainer.fingerprint import Fields
    from edgeagent.trainer.loader import LoaderOptions, MicroBatchSource
    from edgeagent.trainer.streams import RandomStreams

_TOLD = 10_000  # samples to be dropped; fewer take no time that anybody would ask about


def is_stream(dataset: Any) -> bool:
    """Return whether the samples of `dataset` can only be iterated."""
    return isinstance(dataset, IterableDataset)


class Stream:
    """The samples of `dataset` by their positions, in the order in which they can be had.

    While a sample is made, the global generators of `random`, numpy and torch are seeded by the
    trainer's seed and its position (the pass begins with the first one of it), so a stream that
    shuffles or augments with them gives the same on every device. A generator that the data set
    keeps for itself is the same on every device only if it is seeded with a fixed number.
    """

    def __init__(self, dataset: Any, streams: RandomStreams) -> None:
        self._dataset = dataset
        self._streams = streams
        self._kept: deque[Any] = deque()
        self._first = 0  # position of what is kept first
        self._pass = -1
        self._given = 0  # samples of this pass so far
        self._samples: Iterator[Any] = iter(())

    def between(self, first: int, begin: int, end: int) -> list[Any]:
        """Return the samples at positions [begin, end) and keep all from `first` on.

        Leaves the global generators in any state. Raises `UsageError` if a pass gives no sample;
        whatever the data set raises ends this device's training.
        """
        if first < self._first:
            self._begin_again()
        while self._first < first and self._kept:
            self._kept.popleft()
            self._first += 1
        if first - self._first >= _TOLD:
            say(f"making and dropping {first - self._first} samples of the stream that are past")
        while self._first < first:
            self._next()
            self._first += 1
        while self._first + len(self._kept) < end:
            self._kept.append(self._next())
        return [self._kept[position - self._first] for position in range(begin, end)]

    def _next(self) -> Any:
        """Make the sample behind those that are kept."""
        self._streams.enter("stream", self._first + len(self._kept), SAMPLES)
        for sample in self._samples:
            self._given += 1
            return sample
        if self._pass >= 0 and not self._given:
            raise UsageError(
                f"the stream {type(self._dataset).__name__} gave no sample in pass {self._pass}"
                " over it (the first is 0): iter() must begin it again each time"
            )
        self._pass += 1
        self._given = 0
        if callable(set_epoch := getattr(self._dataset, "set_epoch", None)):
            set_epoch(self._pass)
        self._samples = iter(self._dataset)
        return self._next()

    def _begin_again(self) -> None:
        self._kept.clear()
        self._first, self._pass, self._given = 0, -1, 0
        self._samples = iter(())


class StreamData:
    """What the trainer trains on if that is a stream; see `data.py`.

    Raises `UsageError` for a `sampler`, which has no numbers to choose from.
    """

    def __init__(
        self,
        dataset: Any,
        sampler: Any,
        streams: RandomStreams,
        global_batch: int,
        micro_batch: int,
    ) -> None:
        if sampler is not None:
            raise UsageError(
                f"the sampler {type(sampler).__name__} chooses samples by their numbers, which an"
                " IterableDataset has not: take sampler= out, and shuffle within the stream"
            )
        self.dataset, self.sampler = dataset, sampler
        self._streams = streams
        self._global_batch, self._micro_batch = global_batch, micro_batch
        self._stream = Stream(dataset, streams)

    def fields(self, _options: LoaderOptions) -> Fields:
        """Return the hash of the stream's first 16 samples, for the job's fingerprint."""
        try:
            samples = self._stream.between(0, 0, SAMPLES_HASHED)
        finally:
            self._streams.leave()
        return (("samples", "a stream"), ("sample digest", digest_of_samples(samples)))

    def source(
        self,
        collate: Callable[[list[Any]], Any] | None,
        options: LoaderOptions,
        device: torch.device | None,
        _steps: Callable[[], int],
    ) -> MicroBatchSource:
        """Return where micro-batches come from; raise `UsageError` for workers."""
        if options.workers:
            raise UsageError(
                f"{type(self.dataset).__name__} is an IterableDataset, of which each of the"
                f" {options.workers} workers would have to make every sample: take workers= out, or"
                " give a data set with __len__ and __getitem__"
            )
        source = _FromStream(
            self._stream, collate, self._streams, self._global_batch, self._micro_batch
        )
        return Delivered(source, device, pin=options.pin_memory)


class _FromStream:
    """Fetches each micro-batch when it is asked for, in the script's process."""

    def __init__(
        self,
        stream: Stream,
        collate: Callable[[list[Any]], Any] | None,
        streams: RandomStreams,
        global_batch: int,
        micro_batch: int,
    ) -> None:
        self._stream = stream
        self._collate = collate or default_collate
        self._streams = streams
        self._global_batch, self._micro_batch = global_batch, micro_batch

    def fetch(self, iteration: int, micro_batch: int, _pending: Sequence[int]) -> Any:
        """Iterate the stream up to the end of the micro-batch, and collate it."""
        first = iteration * self._global_batch
        begin = first + micro_batch * self._micro_batch
        samples = self._stream.between(first, begin, begin + self._micro_batch)
        self._streams.enter(iteration, micro_batch, SAMPLES)
        return self._collate(samples)

    def close(self) -> None:
        """The stream stays where it is, for a later loader."""
