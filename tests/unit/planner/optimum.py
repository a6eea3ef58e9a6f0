"""The best assignment of shards, found by trying all of them or by an integer program.

Nothing here shares a formula with the planner. `tried` tries every assignment. `solved` solves the
mixed-integer program P3 of Chaos with HiGHS, in which shards of equal size are counted instead of
named; its value is computed again from the whole numbers that were found.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from edgeagent.planner.shards import Source


def end_s(
    owners: Iterable[int], shards: Sequence[int], sources: Sequence[Source], overhead_s: float
) -> float:
    """Return when the last shard arrives if source `owners[k]` sends shard k."""
    clock = {u: s.delay_s + s.start_s for u, s in enumerate(sources)}
    latest = 0.0
    for u, size in zip(owners, shards, strict=True):
        if sources[u].rate < 1:
            return math.inf
        clock[u] += size / sources[u].rate + overhead_s
        latest = max(latest, clock[u])
    return latest


def tried(shards: Sequence[int], sources: Sequence[Source], overhead_s: float = 0.0) -> float:
    """Return the least `end_s` over all assignments."""
    every = product(range(len(sources)), repeat=len(shards))
    return min(end_s(owners, shards, sources, overhead_s) for owners in every)


def solved(shards: Sequence[int], sources: Sequence[Source], overhead_s: float = 0.0) -> float:
    """Return the least `end_s` as scipy's HiGHS finds it (gap 1e-7).

    Variables: how many shards of size class c source u sends, whether u sends at all, and theta.
    Without presolve, which once called a plan optimal that was 0.25 % above the optimum (the case
    is in `test_shards.py`).
    Raises RuntimeError if HiGHS does not prove an optimum.
    """
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("scipy is missing; pip install 'edgeagent[bench]'") from error
    usable = [s for s in sources if s.rate >= 1]
    classes = sorted(Counter(shards).items())
    each = np.array([[size / s.rate + overhead_s for size, _ in classes] for s in usable])
    offset = np.array([s.delay_s + s.start_s for s in usable])
    many, kinds = each.shape
    scale = max(offset) + each.max() * len(shards) / many  # theta near 1, whatever the units
    width = many * kinds + many + 1
    theta = width - 1
    rows, low, high = [], [], []
    for u in range(many):
        time, sends = np.zeros(width), np.zeros(width)
        time[u * kinds : (u + 1) * kinds] = each[u] / scale
        time[many * kinds + u], time[theta] = offset[u] / scale, -1
        sends[u * kinds : (u + 1) * kinds], sends[many * kinds + u] = 1, -len(shards)
        rows += [time, sends]
        low += [-np.inf, -np.inf]
        high += [0, 0]
    for c, (_, count) in enumerate(classes):
        whole = np.zeros(width)
        whole[c : many * kinds : kinds] = 1
        rows.append(whole)
        low.append(count)
        high.append(count)
    top = np.array([count for _, count in classes] * many + [1] * many + [np.inf])
    found = milp(
        np.eye(width)[theta],
        integrality=np.array([1] * theta + [0]),
        bounds=Bounds(0, top),
        constraints=LinearConstraint(np.array(rows), low, high),
        options={"mip_rel_gap": 1e-7, "presolve": False},
    )
    if found.status != 0:
        raise RuntimeError(f"HiGHS: {found.message}")
    counts = np.rint(found.x[: many * kinds]).reshape(many, kinds)
    ends = offset + (counts * each).sum(axis=1)
    return float(max(end for end, n in zip(ends, counts.sum(axis=1), strict=True) if n))
