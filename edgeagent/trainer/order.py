"""Which samples a micro-batch consists of.

Law: global batch i takes positions [i*G, (i+1)*G) of the endless sequence of epochs; epoch e is a
permutation of the data set that follows from (seed, e, length) alone: the order of numpy's raw
Philox output, whose stream numpy guarantees. Nothing depends on the number of nodes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np

from edgeagent.trainer.streams import derived_seed

_EPOCHS_KEPT = 2


class SampleOrder:
    """Maps (iteration, micro-batch) to sample indices of a data set of `length` samples."""

    def __init__(self, seed: int, length: int, global_batch: int, micro_batch: int) -> None:
        self._seed = seed
        self._length = length
        self._global_batch = global_batch
        self._micro_batch = micro_batch
        self._epochs: OrderedDict[int, np.ndarray[Any, Any]] = OrderedDict()

    def indices(self, iteration: int, micro_batch: int) -> list[int]:
        """Return the indices of micro-batch `micro_batch` (0-based) of `iteration`, in order."""
        first = iteration * self._global_batch + micro_batch * self._micro_batch
        return [self._index(first + k) for k in range(self._micro_batch)]

    def _index(self, position: int) -> int:
        epoch, place = divmod(position, self._length)
        return int(self._epoch(epoch)[place])

    def _epoch(self, epoch: int) -> np.ndarray[Any, Any]:
        if epoch not in self._epochs:
            key = derived_seed(self._seed, "epoch", epoch, self._length)
            raw = np.random.Philox(key=key).random_raw(self._length)
            self._epochs[epoch] = np.argsort(raw, kind="stable")
            while len(self._epochs) > _EPOCHS_KEPT:
                self._epochs.popitem(last=False)
        return self._epochs[epoch]
