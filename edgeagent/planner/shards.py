"""Which neighbour sends which shard of the training state to a joiner.

Every shard is assigned to exactly one source. A source without a rate sends nothing, unless no
source has one. For shards of equal size the plan is optimal, also if the last one is smaller.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from edgeagent.planner.bounds import fluid_bound

Runs = tuple[tuple[range, ...], ...]

MAX_NAMED = 4  # a reason names this many sources and sums up the others
MIN_RATE = 1.0  # bytes/s; a slower source counts as one without a rate
MAX_VALUE = 1e15  # bound of seconds and bytes/s, so that sums and products stay finite


@dataclass(frozen=True, slots=True)
class Source:
    """A neighbour that can send shards.

    `delay_s` is the propagation delay to the joiner (t_prop in Chaos) and `start_s` the time at
    which it can begin (tau_sync). `rate` is in bytes/s towards the joiner (1 / t_trans); below
    `MIN_RATE` it is not known or of no use. Raises ValueError unless all three are within 0 to
    `MAX_VALUE`.
    """

    delay_s: float
    start_s: float
    rate: float
    name: str = ""

    def __post_init__(self) -> None:
        if not all(0 <= value <= MAX_VALUE for value in (self.delay_s, self.start_s, self.rate)):
            raise ValueError(f"delays and rates must be within 0 to {MAX_VALUE:g}")

    @property
    def offset_s(self) -> float:
        """The time (s) at which its first byte can arrive."""
        return self.delay_s + self.start_s

    @property
    def usable(self) -> bool:
        """Whether it has a rate to plan with."""
        return self.rate >= MIN_RATE


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Who sends what, and when it should arrive; tuples are in the order of the sources.

    `runs` has each source's shards as ranges. `finish_s` is when a source's last shard arrives, 0
    if it sends nothing. `objective_s` is when everything has arrived (theta in Chaos). `bound_s` is
    `fluid_bound`, which no plan can beat. Times are infinite if no source has a rate. `reason` says
    in words why the plan is as it is.
    """

    runs: Runs
    finish_s: tuple[float, ...]
    objective_s: float
    bound_s: float
    reason: str

    def shards(self, source: int) -> Iterator[int]:
        """Yield the numbers of the shards of a source in ascending order."""
        for run in self.runs[source]:
            yield from run


@dataclass(slots=True)
class Load:
    """What is assigned to a source so far."""

    size: int = 0  # bytes
    shards: int = 0


def alone_s(source: Source, load: Load, overhead_s: float) -> float:
    """Return when the load has arrived if only the source's own rate limits it.

    This is `t_prop + tau_sync + sum of (size * t_trans + overhead_s)` over its shards, the left
    side of (15) in Chaos's P3. Infinite without a rate.
    """
    return source.offset_s + busy_s(source, load, overhead_s)


def busy_s(source: Source, load: Load, overhead_s: float) -> float:
    """Return how many seconds the load takes once the source's first byte can arrive."""
    if not source.usable:
        return math.inf
    return load.size / source.rate + load.shards * overhead_s


def even_runs(count: int, sources: int) -> list[range]:
    """Divide 0 to `count` into consecutive runs, one per source, of lengths at most one apart."""
    cuts = [count * k // sources for k in range(sources + 1)]
    return [range(a, b) for a, b in pairwise(cuts)]


def assign(
    shards: Sequence[int],
    sources: Sequence[Source],
    overhead_s: float = 0.0,
    down_rate: float = math.inf,
) -> ShardPlan:
    """Assign the shards of a training state, of which only the last may be smaller.

    `shards` are their sizes in bytes. `overhead_s` is the time each shard costs its source beside
    its bytes. `down_rate` is what the joiner can receive in all, in bytes/s. The result is the same
    optimum as that of `equal_shards`. If no source has a rate, all get equally many shards and the
    reason says so. Raises ValueError for other sizes, for no sources, for a negative overhead, and
    for a `down_rate` below `MIN_RATE`.
    """
    if not shards:
        return equal_shards(0, 1, sources, overhead_s, down_rate)
    size, last = shards[0], shards[-1]
    if any(other != size for other in shards[:-1]) or not 0 < last <= size:
        raise ValueError("all shards but the last must have one size, the last one no more")
    return _cut_equally(len(shards), size, last, sources, overhead_s, down_rate)


def equal_shards(
    count: int,
    size: int,
    sources: Sequence[Source],
    overhead_s: float = 0.0,
    down_rate: float = math.inf,
) -> ShardPlan:
    """Assign `count` shards of `size` bytes so that no other assignment is done earlier.

    Source u can complete shards at `offset + j (size / rate + overhead)`, j = 1, 2, ...; the
    optimum are the `count` earliest of all these moments, which Chaos's Algorithm 2 takes one by
    one. Here the fluid bound tells where nearly all of them are, and a heap finds the rest, in time
    O(U log U) for U sources, whatever `count` is. If the joiner's own rate is the limit, it is
    divided fairly among the sources that send; the plan is then near the optimum but not always at
    it. Each source gets consecutive shards. Raises ValueError as `assign` does.
    """
    if count < 0 or size <= 0:
        raise ValueError("a state has no fewer than 0 shards, of 1 byte or more")
    return _cut_equally(count, size, size, sources, overhead_s, down_rate)


def _cut_equally(
    count: int,
    size: int,
    last: int,
    sources: Sequence[Source],
    overhead_s: float,
    down_rate: float,
) -> ShardPlan:
    """Assign `count - 1` shards of `size` bytes and one of `last`.

    The full shards are placed first, as if they were all; the last one then goes where it is done
    first. This is optimal: in a plan that has the last one done earlier, its source has fewer
    shards before it, so that another source sends one full shard more than here. Where one full
    shard more is done first, the last one, which is no larger, is done no later.
    """
    check(sources, overhead_s, down_rate)
    if not any(source.usable for source in sources):
        return unmeasured(count, len(sources))
    slots = _Slots(size, sources, overhead_s, down_rate)
    whole = slots.earliest(count - 1 if count else 0)
    loads = [Load(k * size, k) for k in whole]
    owner = -1
    if count:
        owner = min(range(len(sources)), key=lambda u: slots.done_s(u, whole[u], last))
        loads[owner] = Load(whole[owner] * size + last, whole[owner] + 1)
    runs, at = [range(0)] * len(sources), 0
    for u in sorted(range(len(sources)), key=lambda u: u == owner):  # the last shard's comes last
        runs[u], at = range(at, at + loads[u].shards), at + loads[u].shards
    return planned(tuple((r,) if r else () for r in runs), loads, sources, overhead_s, down_rate)


def check(sources: Sequence[Source], overhead_s: float, down_rate: float) -> None:
    """Raise ValueError for arguments that no plan can be made for."""
    if not sources:
        raise ValueError("no source to send anything")
    if not 0 <= overhead_s < math.inf:
        raise ValueError("the overhead of a shard must be finite and not negative")
    if not down_rate >= MIN_RATE:
        raise ValueError(f"the joiner's own rate must be at least {MIN_RATE:g} byte/s")


# When shards can arrive


def fair_rates(rates: Sequence[float], down_rate: float) -> list[float]:
    """Divide `down_rate` max-min fairly among senders of at most `rates` (all in bytes/s)."""
    if sum(rates) <= down_rate:
        return list(rates)
    fair, left = [0.0] * len(rates), down_rate
    order = sorted(range(len(rates)), key=rates.__getitem__)
    for place, u in enumerate(order):
        fair[u] = min(rates[u], left / (len(rates) - place))
        left -= fair[u]
    return fair


class _Slots:
    """When each source can complete its 1st, 2nd, ... shard while all sources keep sending."""

    def __init__(
        self, size: int, sources: Sequence[Source], overhead_s: float, down_rate: float
    ) -> None:
        self._size = size
        self._sources = sources
        self._overhead_s = overhead_s
        self._down = down_rate / size  # shards/s
        self._offsets = [s.offset_s for s in sources]
        each_s = [busy_s(s, Load(size, 1), overhead_s) for s in sources]
        self._rates = [1 / each for each in each_s]  # shards/s
        self._curves = self._divided() if sum(self._rates) > self._down else []

    def _divided(self) -> list[list[tuple[float, float, float]]]:
        """Return for each source (time, shards sent by then, rate from then on), times rising."""
        curves: list[list[tuple[float, float, float]]] = [[] for _ in self._rates]
        usable = [u for u, rate in enumerate(self._rates) if rate > 0]
        for time in sorted(dict.fromkeys(self._offsets[u] for u in usable)):
            active = [u for u in usable if self._offsets[u] <= time]
            fair = fair_rates([self._rates[u] for u in active], self._down)
            for u, rate in zip(active, fair, strict=True):
                curve = curves[u]
                sent = curve[-1][1] + curve[-1][2] * (time - curve[-1][0]) if curve else 0.0
                curve.append((time, sent, rate))
        return curves

    def sent(self, source: int, time: float) -> float:
        """Return how many shards have arrived by `time`, including the part of an unfinished
        one."""
        if not self._curves:
            return max(0.0, time - self._offsets[source]) * self._rates[source]
        curve = self._curves[source]
        at = bisect_right(curve, time, key=lambda point: point[0]) - 1
        if at < 0:
            return 0.0
        begin, shards, rate = curve[at]
        return shards + rate * (time - begin)

    def done_s(self, source: int, whole: int, last: int) -> float:
        """Return when `whole` shards and then one of `last` bytes have arrived."""
        if not self._curves:
            load = Load(whole * self._size + last, whole + 1)
            return alone_s(self._sources[source], load, self._overhead_s)
        curve = self._curves[source]
        if not curve:
            return math.inf
        shards = whole + last / self._size
        begin, before, rate = curve[bisect_right(curve, shards, key=lambda point: point[1]) - 1]
        return begin + (shards - before) / rate

    def earliest(self, count: int) -> list[int]:
        """Return how many of the `count` earliest completions belong to each source."""
        theta = fluid_bound(count, self._rates, self._offsets, self._down)
        # One less than fits: through rounding, one more might not be among the earliest.
        taken, left = [], count
        for u in range(len(self._rates)):
            taken.append(min(left, max(0, math.floor(self.sent(u, theta)) - 1)))
            left -= taken[u]
        heap = [(self.done_s(u, k, self._size), u) for u, k in enumerate(taken)]
        heapq.heapify(heap)
        for _ in range(left):
            u = heap[0][1]
            taken[u] += 1
            heapq.heapreplace(heap, (self.done_s(u, taken[u], self._size), u))
        return taken


# What a plan comes to


def planned(
    runs: Runs,
    loads: Sequence[Load],
    sources: Sequence[Source],
    overhead_s: float,
    down_rate: float,
) -> ShardPlan:
    """Predict when the loads arrive and say why; `runs` and `loads` are in order of the sources."""
    total = sum(load.size for load in loads)
    rates = [s.rate if s.usable else 0.0 for s in sources]
    offsets = [s.offset_s for s in sources]
    finish = _finish_s(loads, sources, overhead_s, down_rate)
    theta = max(finish)
    bound = fluid_bound(total, rates, offsets, down_rate)
    own = bound > fluid_bound(total, rates, offsets)
    plan = ShardPlan(runs, tuple(finish), theta, bound, "")
    return replace(plan, reason=_reason(plan, loads, sources, own))


def unmeasured(count: int, sources: int) -> ShardPlan:
    """Return the plan for `count` shards while no source has a rate: equally many from each."""
    runs = tuple((run,) if run else () for run in even_runs(count, sources))
    finish = tuple(math.inf if run else 0.0 for run in runs)
    theta = max(finish)
    reason = (
        f"{_number(count, 'shard')} evenly over {_number(sources, 'neighbour')}: no rate towards "
        "the joiner has been measured, so no time can be predicted"
    )
    return ShardPlan(runs, finish, theta, theta, reason)


def _finish_s(
    loads: Sequence[Load], sources: Sequence[Source], overhead_s: float, down_rate: float
) -> list[float]:
    finish = [
        alone_s(source, load, overhead_s) if load.shards else 0.0
        for source, load in zip(sources, loads, strict=True)
    ]
    busy = [u for u, load in enumerate(loads) if load.shards]
    rates = {u: loads[u].size / busy_s(sources[u], loads[u], overhead_s) for u in busy}
    if sum(rates.values()) <= down_rate:
        return finish
    # The joiner's own rate is divided among the senders anew each time a source starts or ends.
    left = {u: float(loads[u].size) for u in busy}
    time = 0.0
    while left:
        active = [u for u in left if sources[u].offset_s <= time]
        starts = [sources[u].offset_s for u in left if sources[u].offset_s > time]
        fair = fair_rates([rates[u] for u in active], down_rate)
        ends = [time + left[u] / rate for u, rate in zip(active, fair, strict=True)]
        now = min(ends + starts)
        for u, rate, end in zip(active, fair, ends, strict=True):
            left[u] -= rate * (now - time)
            if end <= now:
                finish[u] = now
                del left[u]
        time = now
    return finish


def _reason(plan: ShardPlan, loads: Sequence[Load], sources: Sequence[Source], own: bool) -> str:
    names = [source.name or f"neighbour {u + 1}" for u, source in enumerate(sources)]
    busy = sorted((u for u, load in enumerate(loads) if load.shards), key=lambda u: -loads[u].size)
    if not busy:
        return "there is nothing to send"
    parts = [f"{names[u]} sends {_load(loads[u])}" for u in busy[:MAX_NAMED]]
    if rest := busy[MAX_NAMED:]:
        load = Load(sum(loads[u].size for u in rest), sum(loads[u].shards for u in rest))
        parts.append(f"{_number(len(rest), 'other')} together {_load(load)}")
    last = max(busy, key=lambda u: plan.finish_s[u])
    limit = "the joiner's own rate is the limit" if own else f"{names[last]} is the last"
    parts.append(f"all is there after {_time(plan.objective_s)}, {limit}")
    idle = [u for u, load in enumerate(loads) if not load.shards]
    if dead := [names[u] for u in idle if not sources[u].usable]:
        parts.append(f"{_some(dead)} nothing, without a rate towards the joiner")
    if late := [names[u] for u in idle if sources[u].usable]:
        parts.append(f"{_some(late)} nothing, since a shard from there would come later")
    gap = max(0.0, plan.objective_s / plan.bound_s - 1)
    above = f"{gap:.1%} above the bound of {_time(plan.bound_s)}"
    parts.append(above if gap >= 0.0005 else "no other plan could be 0.1% earlier")
    return "; ".join(parts)


def _some(names: list[str]) -> str:
    if len(names) > MAX_NAMED:
        return f"{', '.join(names[: MAX_NAMED - 1])} and {len(names) - MAX_NAMED + 1} others send"
    return f"{' and '.join(names)} {'sends' if len(names) == 1 else 'send'}"


def _load(load: Load) -> str:
    size = f"{load.size / 1e6:,.1f} MB" if load.size >= 100_000 else _number(load.size, "byte")
    return f"{_number(load.shards, 'shard')} ({size})"


def _number(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 0.1 else f"{seconds:,.2f} s"
