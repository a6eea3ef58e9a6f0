"""Which samples a micro-batch consists of.

The epochs follow one another without end, and global batch i takes the positions [i*G, (i+1)*G) of
that sequence, G being its size. Epoch e is a permutation of the data set that follows from (seed,
e, length) alone: the order in which numbers of numpy's Philox generator would be sorted, because
numpy guarantees that generator's raw output in all versions. If the script gives a sampler of
torch's, the epoch is what it yields after all generators were seeded for that epoch. Nothing
depends on the number of nodes, nor on the epochs before, because a device that joins in epoch 7 has
drawn none of them.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import BatchSampler, DistributedSampler

from edgeagent.errors import UsageError
from edgeagent.trainer.streams import derived_seed

if TYPE_CHECKING:
    from edgeagent.trainer.streams import RandomStreams

# How many epochs' orders are kept: two, because a batch may begin in one and end in the next.
_EPOCHS_KEPT = 2


class SampleOrder:
    """Maps (iteration, micro-batch) to sample indices of a data set of `length` samples.

    `global_batch` and `micro_batch` are numbers of samples; the second divides the first.
    """

    def __init__(self, seed: int, length: int, global_batch: int, micro_batch: int) -> None:
        self._seed = seed
        self._length = length
        self._global_batch = global_batch
        self._micro_batch = micro_batch
        self._epochs: OrderedDict[int, np.ndarray[Any, Any]] = OrderedDict()

    def fields(self) -> tuple[tuple[str, str], ...]:
        """Return what members must have in common, as fields of the job's fingerprint."""
        return (("sampler", "none"),)

    def indices(self, iteration: int, micro_batch: int) -> list[int]:
        """Return the indices of micro-batch `micro_batch` (0-based) of `iteration`, in order."""
        first = iteration * self._global_batch + micro_batch * self._micro_batch
        return [self._index(first + k) for k in range(self._micro_batch)]

    def _index(self, position: int) -> int:
        epoch, place = divmod(position, self._length)
        return int(self._epoch(epoch)[place])

    def _epoch(self, epoch: int) -> np.ndarray[Any, Any]:
        if epoch not in self._epochs:
            self._epochs[epoch] = self._drawn(epoch)
            while len(self._epochs) > _EPOCHS_KEPT:
                self._epochs.popitem(last=False)
        return self._epochs[epoch]

    def _drawn(self, epoch: int) -> np.ndarray[Any, Any]:
        key = derived_seed(self._seed, "epoch", epoch, self._length)
        raw = np.random.Philox(key=key).random_raw(self._length)
        return np.argsort(raw, kind="stable")


class SamplerOrder(SampleOrder):
    """The order that `sampler` gives, over a data set of `samples` samples.

    The first epoch is drawn twice. Raises `UsageError`, naming the sampler, if the two differ,
    because the order must follow from the seed and the epoch alone.
    """

    def __init__(
        self,
        sampler: Any,
        samples: int,
        streams: RandomStreams,
        seed: int,
        global_batch: int,
        micro_batch: int,
    ) -> None:
        self._sampler = sampler
        self._samples = samples
        self._streams = streams
        self._name = type(sampler).__name__
        super().__init__(seed, _check_sampler(sampler), global_batch, micro_batch)
        first = self._epoch(0)
        if not np.array_equal(self._drawn(0), first):
            raise UsageError(
                f"the sampler {self._name} gives another order when it is asked again: it must"
                " follow from torch's, numpy's and Python's global generators (and set_epoch())"
            )

    def fields(self) -> tuple[tuple[str, str], ...]:
        """Return the sampler's name and the hash of the first epoch's order."""
        order = self._epoch(0).astype("<i8").tobytes()  # the same bytes on every processor
        digest = hashlib.sha256(order).hexdigest()
        return (("sampler", self._name), ("sampler order", digest))

    def _drawn(self, epoch: int) -> np.ndarray[Any, Any]:
        self._streams.enter("epoch", epoch)
        try:
            if callable(set_epoch := getattr(self._sampler, "set_epoch", None)):
                set_epoch(epoch)
            # One more than there should be shows a sampler that yields too many, or has no end.
            drawn = list(islice(iter(self._sampler), self._length + 1))
        finally:
            self._streams.leave()
        try:
            order = np.asarray([int(k) for k in drawn], dtype=np.int64)
        except (TypeError, ValueError):
            raise UsageError(f"the sampler {self._name} gives no numbers of samples") from None
        if len(order) != self._length:
            raise UsageError(f"the sampler {self._name} has not {self._length} samples in an epoch")
        if order.min() < 0 or order.max() >= self._samples:
            raise UsageError(f"the sampler {self._name} names samples that the data set has not")
        return order


def sample_order(
    sampler: Any,
    samples: int,
    streams: RandomStreams,
    seed: int,
    global_batch: int,
    micro_batch: int,
) -> SampleOrder:
    """Return the order that `sampler` gives, or the trainer's own if `sampler` is None."""
    if sampler is None:
        return SampleOrder(seed, samples, global_batch, micro_batch)
    return SamplerOrder(sampler, samples, streams, seed, global_batch, micro_batch)


def _check_sampler(sampler: Any) -> int:
    """Return how many samples an epoch has; raise `UsageError` if it cannot be used."""
    name = type(sampler).__name__
    if isinstance(sampler, DistributedSampler) and sampler.num_replicas != 1:
        raise UsageError(
            f"{name} divides the samples among devices, which the trainer does: leave it away, give"
            " it num_replicas=1 and rank=0, or give the sampler that chooses among all samples"
        )
    if isinstance(sampler, BatchSampler):
        raise UsageError(f"{name} makes batches, which the trainer does: give the sampler inside")
    if getattr(sampler, "generator", None) is not None:
        raise UsageError(
            f"{name} has a generator of its own, with which a device that joins later would draw"
            " other samples: leave generator= away, the trainer's seed decides"
        )
    try:
        length = len(sampler) if hasattr(sampler, "__iter__") else None
    except (TypeError, NotImplementedError):
        length = None
    if length is None:
        raise UsageError(f"the sampler {name} needs __iter__ and a length (__len__)")
    if length < 1:
        raise UsageError(f"the sampler {name} is empty")
    return length
