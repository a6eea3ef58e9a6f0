"""Which units of a layer belong to which device in one round of independent subnets.

The micro-batches of a round are **cells**: each stands for the same part of every layer that is
divided. A layer's units (neurons, heads, residual blocks) are put into a random order, which is
another one for each layer, and after every so many rounds (the period, usually 1). Cell c of M has
the units in the c-th M-th of that order. Where a layer has few units, such as heads or blocks, that
is rounded by an offset that is drawn with the order: so a device has more of them in one round and
fewer in another, and as many as its share on average. A device that is dealt some cells trains the
subnet of all their units. Since the cells of a round are dealt out once each, no two devices train
the same unit, and none is left out, whatever shares the devices have.

The order follows from (seed, round // period, layer) alone, by raw numbers of numpy's Philox
generator, which numpy guarantees in all versions. So a device keeps its units in all rounds of a
period in which it has the same cells. It has as many as its share, behind those of the members
before it, so a share that changes moves the cells of the members behind it, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from edgeagent.trainer.streams import derived_seed

# Devices that deal out units in another way would train some twice and others never. So this is
# part of the job, and has to grow with every change below.
CELLS_VERSION = 2
_OFFSET_BITS = 16
Units = np.ndarray[Any, np.dtype[np.int64]]


def units_of(
    cells: Iterable[int], cells_in_all: int, size: int, seed: int, number: int, layer: str
) -> Units:
    """Return the units of `layer` that belong to `cells`, in ascending order.

    `size`: how many units the layer has, `number`: that of the order, which is round // period. If
    a layer has fewer units than there are cells, some cells have none of it.
    """
    key = derived_seed(seed, "subnet", number, layer)
    drawn = np.random.Philox(key=key).random_raw(size + 1)
    order = np.argsort(drawn[:size], kind="stable")
    # The cell of the k-th unit is floor((k + offset) * M / size), with an offset from 0 to 1; in
    # integers, so that it is the same everywhere.
    offset = int(drawn[size] >> np.uint64(64 - _OFFSET_BITS))
    places = (np.arange(size, dtype=np.int64) << _OFFSET_BITS) + offset
    cell_of = places * cells_in_all // (size << _OFFSET_BITS)
    mine = np.isin(cell_of, np.fromiter(cells, np.int64))
    units: Units = np.sort(order[mine])
    return units
