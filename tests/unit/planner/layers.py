"""Chaos's Algorithms 1 and 2: shards of any size, cut from the tensors of a model.

They are as in the paper, with three additions: an overhead for each shard, the joiner's own rate
in the prediction, and no shard for a source without a rate. edgeagent cuts its state into equal
shards, for which `edgeagent/planner/shards.py` is faster and at least as good; tests and
`scripts/planner` compare the two.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from edgeagent.planner.shards import Load, ShardPlan, Source, check, planned, unmeasured


@dataclass(frozen=True, slots=True)
class SizedPlan:
    """The outcome of `searched_shards`: the size, all shards in bytes, and who sends which."""

    size: int
    shards: tuple[int, ...]
    plan: ShardPlan


def greedy_shards(
    shards: Sequence[int],
    sources: Sequence[Source],
    overhead_s: float = 0.0,
    down_rate: float = math.inf,
) -> ShardPlan:
    """Chaos's Algorithm 2: each shard in turn to the source that would be done with it first.

    `shards`: sizes in bytes. `overhead_s` (seconds for each shard) is added to `size * t_trans`.
    `down_rate` (bytes/s) counts in the prediction only. Of equal shards in a row, which are
    interchangeable, each source gets consecutive ones; of equally early sources the first is taken.
    O(K log U) for equal shards, O(K U) at worst.

    How near the optimum: equal shards, exactly at it. In general no shard ends later than
    `fluid_bound + (U - 1) * largest / (sum of rates)` over the U sources that the bound uses, if
    there is no overhead. Graham's (4/3 - 1/(3 U)) times the optimum, which the paper names, is
    proven for sources that are all alike and shards in falling order; it does not hold beyond (two
    equal sources, shards of 1, 1 and 2: 3/2). Raises ValueError for a shard of no bytes, no
    sources, a negative overhead or a rate of the joiner below `MIN_RATE`.
    """
    check(sources, overhead_s, down_rate)
    if min(shards, default=1) <= 0:
        raise ValueError("a shard has 1 byte or more")
    owners = [u for u, source in enumerate(sources) if source.usable]
    if not owners:
        return unmeasured(len(shards), len(sources))
    runs: list[list[range]] = [[] for _ in sources]
    loads = [Load() for _ in sources]
    free = [_Free(sources[u].offset_s, sources[u].rate, loads[u]) for u in owners]
    at = 0
    for size, group in groupby(shards):
        taken = _deal(sum(1 for _ in group), size, free, overhead_s)
        for u, more in zip(owners, taken, strict=True):
            if more:
                joined = bool(runs[u]) and runs[u][-1].stop == at
                runs[u].append(range(runs[u].pop().start if joined else at, at + more))
                at += more
    return planned(tuple(map(tuple, runs)), loads, sources, overhead_s, down_rate)


class _Free(NamedTuple):
    """A usable source: when it begins, how fast it sends, what it has got so far."""

    offset_s: float
    rate: float
    load: Load


def _deal(count: int, size: int, free: list[_Free], overhead_s: float) -> list[int]:
    """Add `count` shards of `size` bytes to the loads; return how many each source got."""
    taken = [0] * len(free)
    after = [  # l_u + s * t_trans(u), as `alone_s` has it
        offset + ((load.size + size) / rate + (load.shards + 1) * overhead_s)
        for offset, rate, load in free
    ]
    if count == 1:
        taken[after.index(min(after))] = 1
    else:
        heap = list(zip(after, range(len(free)), strict=True))
        heapq.heapify(heap)
        for _ in range(count):
            k = heap[0][1]
            taken[k] += 1
            offset, rate, load = free[k]
            total, shards = load.size + (taken[k] + 1) * size, load.shards + taken[k] + 1
            heapq.heapreplace(heap, (offset + (total / rate + shards * overhead_s), k))
    for (_, _, load), more in zip(free, taken, strict=True):
        load.size += more * size
        load.shards += more
    return taken


def cut(tensors: Sequence[int], size: int) -> tuple[int, ...]:
    """Cut tensors of so many bytes into shards of `size` bytes, the last of each tensor smaller."""
    shards: list[int] = []
    for tensor in tensors:
        whole, rest = divmod(tensor, size)
        shards += [size] * whole
        if rest:
            shards.append(rest)
    return tuple(shards)


def searched_shards(
    tensors: Sequence[int],
    sources: Sequence[Source],
    overhead_s: float = 0.0,
    down_rate: float = math.inf,
) -> SizedPlan:
    """Chaos's Algorithm 1: binary search for the size of the shards.

    `tensors`: their sizes in bytes. Searches between the smallest and the largest of them, cuts
    every tensor (`cut`), asks Algorithm 2; a better objective leads to smaller shards, another to
    larger ones. The objective is not monotonic in the size, so what is found need not be the best.
    O(K U log S): the smallest tensor decides how many shards K there may be. Raises ValueError as
    `greedy_shards`, and for no tensors.
    """
    if not tensors or min(tensors) <= 0:
        raise ValueError("there must be tensors, of 1 byte or more each")
    low, high = min(tensors), max(tensors)
    best: SizedPlan | None = None
    while low <= high:
        size = (low + high) // 2
        shards = cut(tensors, size)
        plan = greedy_shards(shards, sources, overhead_s, down_rate)
        if best is None or plan.objective_s < best.plan.objective_s:
            best = SizedPlan(size, shards, plan)
            high = size - 1
        else:
            low = size + 1
    assert best is not None  # low <= high at first
    return best
