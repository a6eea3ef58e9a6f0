"""Plans for shards compared with all assignments, integer programs and a simulated link."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeagent.planner.bounds import fluid_bound
from edgeagent.planner.shards import (
    MAX_VALUE,
    ShardPlan,
    Source,
    assign,
    equal_shards,
    fair_rates,
)
from tests.unit.planner.layers import cut, greedy_shards, searched_shards
from tests.unit.planner.optimum import end_s, solved, tried

SLACK = 1 + 1e-9  # rounding

delays = st.one_of(st.just(0.0), st.floats(0, 5))
rates = st.one_of(st.sampled_from([0.0, 10.0, 20.0]), st.floats(1, 100))
overheads = st.one_of(st.just(0.0), st.floats(0, 3))
any_source = st.builds(Source, delays, delays, rates)


def sources(most: int) -> st.SearchStrategy[list[Source]]:
    """A few sources, at least one of them with a rate."""
    some = st.lists(any_source, min_size=1, max_size=most)
    return some.filter(lambda found: any(s.rate for s in found))


def owners(plan: ShardPlan, count: int) -> list[int]:
    """Return the source of each shard; fail unless each shard is sent exactly once."""
    found = {shard: u for u in range(len(plan.runs)) for shard in plan.shards(u)}
    assert sum(len(run) for part in plan.runs for run in part) == count
    assert sorted(found) == list(range(count))
    return [found[shard] for shard in range(count)]


def check(
    plan: ShardPlan, shards: Sequence[int], among: Sequence[Source], overhead_s: float = 0.0
) -> None:
    """Check that the plan has all shards, and that its own figures are right."""
    who = owners(plan, len(shards))
    assert plan.objective_s == pytest.approx(end_s(who, shards, among, overhead_s), rel=1e-9)
    assert plan.objective_s == max(plan.finish_s)
    for u, source in enumerate(among):
        mine = [size for k, size in enumerate(shards) if who[k] == u]
        assert source.rate or not mine
        end = end_s([u] * len(mine), mine, among, overhead_s)
        assert plan.finish_s[u] == pytest.approx(end, rel=1e-9)
    assert plan.bound_s <= plan.objective_s * SLACK
    offsets = [s.delay_s + s.start_s for s in among]
    assert plan.bound_s == fluid_bound(sum(shards), [s.rate for s in among], offsets)


# Optimality


@given(st.integers(0, 6), st.integers(1, 100), sources(3), overheads)
def test_equal_shards_are_placed_as_well_as_can_be(
    count: int, size: int, among: list[Source], overhead_s: float
) -> None:
    plan = equal_shards(count, size, among, overhead_s)
    shards = [size] * count
    check(plan, shards, among, overhead_s)
    assert plan.objective_s == pytest.approx(tried(shards, among, overhead_s), rel=1e-9)
    assert all(len(part) <= 1 for part in plan.runs)


@given(st.integers(1, 6), st.integers(1, 100), st.data(), sources(3), overheads)
def test_a_smaller_last_shard_is_placed_as_well_as_can_be(
    count: int, size: int, data: st.DataObject, among: list[Source], overhead_s: float
) -> None:
    shards = [size] * (count - 1) + [data.draw(st.integers(1, size))]
    plan = assign(shards, among, overhead_s)
    check(plan, shards, among, overhead_s)
    assert plan.objective_s == pytest.approx(tried(shards, among, overhead_s), rel=1e-9)
    assert plan.objective_s == greedy_shards(shards, among, overhead_s).objective_s
    assert all(len(part) <= 1 for part in plan.runs)


@settings(max_examples=60)
@given(st.integers(1, 400), st.integers(1, 100), st.data(), sources(6), overheads)
def test_many_shards_are_placed_as_an_integer_program_does(
    count: int, size: int, data: st.DataObject, among: list[Source], overhead_s: float
) -> None:
    shards = [size] * (count - 1) + [data.draw(st.integers(1, size))]
    plan = assign(shards, among, overhead_s)
    check(plan, shards, among, overhead_s)
    best = solved(shards, among, overhead_s)
    assert plan.objective_s == pytest.approx(best, rel=2e-6)


@given(st.integers(0, 2000), st.integers(1, 1 << 40), sources(12), overheads)
def test_equal_shards_end_when_algorithm_2_ends(
    count: int, size: int, among: list[Source], overhead_s: float
) -> None:
    plan = equal_shards(count, size, among, overhead_s)
    greedy = greedy_shards([size] * count, among, overhead_s)
    owners(greedy, count)
    assert plan.objective_s == greedy.objective_s
    assert plan.bound_s == greedy.bound_s


@settings(max_examples=60)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), sources(3), overheads)
def test_the_program_and_trying_all_agree(
    shards: list[int], among: list[Source], overhead_s: float
) -> None:
    best = tried(shards, among, overhead_s)
    assert solved(shards, among, overhead_s) == pytest.approx(best, rel=2e-6)


def test_the_program_finds_what_its_presolve_lost() -> None:
    among = [
        Source(0.024633061364126595, 0.014172779903528188, 75124241.42283714),
        Source(0.010613819465686448, 0.04562706625629984, 16170935.572388373),
        Source(0.0102081551728848, 0.06081528290031211, 111565450.36422569),
        Source(0.009253543615174734, 0.08001435887685138, 37447764.57242082),
        Source(0.014374819691863636, 0.19012839418899516, 110385444.33854687),
        Source(0.026706555345869146, 0.07724159516924511, 93018637.14077401),
    ]
    shards = [4534330] * 3
    assert solved(shards, among) == pytest.approx(tried(shards, among), rel=1e-6)


# Algorithms 2 and 1


@given(st.lists(st.integers(1, 60), max_size=30), sources(5), overheads)
def test_algorithm_2_takes_who_is_done_first(
    shards: list[int], among: list[Source], overhead_s: float
) -> None:
    plan = greedy_shards(shards, among, overhead_s)
    check(plan, shards, among, overhead_s)
    load = [s.delay_s + s.start_s for s in among]
    for size in shards:  # as the paper writes it
        after = [
            l_u + size / s.rate + overhead_s if s.rate else math.inf
            for l_u, s in zip(load, among, strict=True)
        ]
        u = after.index(min(after))
        load[u] = after[u]
    used = [u for u, part in enumerate(plan.runs) if part]
    # Equally early sources may have been taken in another order, which gives another result.
    if len(dict.fromkeys(map(repr, among))) == len(among) and not _near_ties(shards, among):
        assert plan.objective_s == pytest.approx(max((load[u] for u in used), default=0.0))


def _near_ties(shards: Sequence[int], among: Sequence[Source]) -> bool:
    load = [s.delay_s + s.start_s for s in among]
    for size in shards:
        after = sorted(
            (l_u + size / s.rate, u)
            for u, (l_u, s) in enumerate(zip(load, among, strict=True))
            if s.rate
        )
        if len(after) > 1 and math.isclose(after[0][0], after[1][0], rel_tol=1e-9):
            return True
        load[after[0][1]] = after[0][0]
    return False


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), sources(5))
def test_algorithm_2_is_within_its_shards_of_the_fluid_bound(
    shards: list[int], among: list[Source]
) -> None:
    plan = greedy_shards(shards, among)
    open_ = [s for s in among if s.rate and s.delay_s + s.start_s < plan.bound_s]
    more = (len(open_) - 1) * max(shards) / sum(s.rate for s in open_)
    assert plan.bound_s <= plan.objective_s * SLACK
    assert plan.objective_s <= (plan.bound_s + more) * SLACK


@given(st.lists(st.integers(1, 60), min_size=1, max_size=7), st.integers(1, 3), st.floats(1, 100))
def test_equal_sources_and_falling_shards_keep_grahams_bound(
    shards: list[int], count: int, rate: float
) -> None:
    among = [Source(0, 0, rate)] * count
    falling = sorted(shards, reverse=True)
    theta = greedy_shards(falling, among).objective_s
    assert theta <= (4 / 3 - 1 / (3 * count)) * tried(falling, among) * SLACK


@pytest.mark.parametrize(
    ("shards", "among", "ratio"),
    [
        ([1, 1, 2], [Source(0, 0, 1)] * 2, 3 / 2),
        ([4, 3], [Source(0, 0, 4), Source(0, 0, 3)], 1.0),
        ([3, 2, 2], [Source(0, 0, 4), Source(0, 0, 3)], 5 / 4),
        ([2], [Source(0, 0, 1), Source(1.5, 0, 4)], 1.0),
        ([100, 280], [Source(0, 0, 100), Source(0, 0, 178)], 1.3571428),
    ],
)
def test_beyond_it_algorithm_2_can_be_worse(
    shards: list[int], among: list[Source], ratio: float
) -> None:
    found = greedy_shards(shards, among).objective_s / tried(shards, among)
    assert found == pytest.approx(ratio)


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=6), sources(4), st.floats(0, 1), overheads
)
def test_algorithm_1_searches_as_the_paper_does(
    tensors: list[int], among: list[Source], part: float, overhead_s: float
) -> None:
    found = searched_shards(tensors, among, overhead_s)
    assert found.shards == cut(tensors, found.size)
    assert found.plan == greedy_shards(found.shards, among, overhead_s)
    assert min(tensors) <= found.size <= max(tensors)
    low, high, theta, best = min(tensors), max(tensors), math.inf, 0
    while low <= high:
        size = (low + high) // 2
        now = greedy_shards(cut(tensors, size), among, overhead_s).objective_s
        if now < theta:
            theta, best, high = now, size, size - 1
        else:
            low = size + 1
    assert (found.size, found.plan.objective_s) == (best, theta)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=6), st.integers(1, 300))
def test_every_tensor_is_cut_into_its_own_shards(tensors: list[int], size: int) -> None:
    left = list(cut(tensors, size))
    for tensor in tensors:
        while tensor:
            shard = left.pop(0)
            assert shard == min(size, tensor)
            tensor -= shard
    assert not left


def test_algorithm_1_prefers_smaller_shards_until_they_cost() -> None:
    among = [Source(0, 0, 100.0), Source(0, 0, 60.0)]
    free = searched_shards([1000, 10], among)
    dear = searched_shards([1000, 10], among, overhead_s=2.0)
    assert free.size < dear.size
    assert free.plan.objective_s < dear.plan.objective_s
    assert searched_shards([1000, 10], [Source(0, 0, 0)]).plan.objective_s == math.inf


# The joiner's own rate


@given(st.lists(st.floats(0, 100), max_size=8), st.floats(1, 300))
def test_a_fair_division_raises_the_lowest(limits: list[float], down_rate: float) -> None:
    fair = fair_rates(limits, down_rate)
    assert sum(fair) == pytest.approx(min(sum(limits), down_rate))
    for rate, limit in zip(fair, limits, strict=True):
        assert 0 <= rate <= limit
        assert rate == limit or rate >= max(fair) * (1 - 1e-9)


def watched(
    plan: ShardPlan, sizes: Sequence[int], among: Sequence[Source], down_rate: float, steps: int
) -> float:
    """Play the plan in small steps of time on a link that sources share evenly."""
    left = [float(sum(sizes[k] for k in plan.shards(u))) for u in range(len(among))]
    step = plan.objective_s / steps
    levels = [k * down_rate / 1000 for k in range(1001)]
    time = 0.0
    while any(left):
        active = [u for u, s in enumerate(among) if left[u] and s.delay_s + s.start_s <= time]
        level = levels[
            min(
                1000,
                bisect_left(
                    levels,
                    down_rate,
                    key=lambda at: sum(min(among[u].rate, at) for u in active),
                ),
            )
        ]
        for u in active:
            left[u] = max(0.0, left[u] - min(among[u].rate, level) * step)
        time += step
    return time


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(1, 50), sources(4), st.floats(2, 120))
def test_a_prediction_holds_where_the_joiner_is_the_limit(
    count: int, size: int, among: list[Source], down_rate: float
) -> None:
    for plan in (
        equal_shards(count, size, among, 0.0, down_rate),
        greedy_shards([size] * count, among, 0.0, down_rate),
    ):
        owners(plan, count)
        time = watched(plan, [size] * count, among, down_rate, 400)
        assert plan.objective_s == pytest.approx(time, rel=0.02)


@given(st.integers(0, 500), st.integers(1, 100), sources(6), st.floats(1, 300))
def test_a_plan_for_a_slow_joiner_is_near_its_bound(
    count: int, size: int, among: list[Source], down_rate: float
) -> None:
    plan = equal_shards(count, size, among, 0.0, down_rate)
    owners(plan, count)
    offsets = [s.delay_s + s.start_s for s in among]
    bound = fluid_bound(count * size, [s.rate for s in among], offsets, down_rate)
    assert plan.bound_s == bound
    assert bound <= plan.objective_s * SLACK
    usable = [s for s in among if s.rate]
    open_rate = sum(s.rate for s in usable if s.delay_s + s.start_s < bound)
    more = (len(usable) - 1) * size / min(down_rate, open_rate) if count else 0.0
    assert plan.objective_s <= (bound + more) * SLACK
    freely = equal_shards(count, size, among).objective_s
    assert freely <= plan.objective_s * SLACK


def test_a_slow_joiner_makes_all_sources_end_together() -> None:
    among = [Source(0, 0, 50.0), Source(0, 0, 30.0)]  # 30 each of its 60
    plan = equal_shards(1000, 6, among, down_rate=60.0)
    assert plan.finish_s == pytest.approx((100.0, 100.0))
    assert plan.objective_s == pytest.approx(plan.bound_s)
    waits = equal_shards(1000, 6, [among[0], Source(50, 0, 30.0)], down_rate=60.0)
    # 50 s at 50, then 60 together: 2500 + 60 (t - 50) = 6000
    assert waits.bound_s == pytest.approx(50 + 3500 / 60)
    assert waits.objective_s == pytest.approx(waits.bound_s, rel=2e-3)
    assert equal_shards(3, 6, among, down_rate=1000) == equal_shards(3, 6, among)


# Edges


@pytest.mark.parametrize("call", [equal_shards, lambda n, s, u: greedy_shards([s] * n, u)])
def test_without_any_rate_all_get_equally_many(call: object) -> None:
    assert callable(call)
    plan = call(7, 10, [Source(0, 0, 0), Source(1, 1, 0.5), Source(0, 0, 0)])
    assert plan.runs == ((range(2),), (range(2, 4),), (range(4, 7),))
    assert plan.finish_s == (math.inf,) * 3
    assert plan.objective_s == plan.bound_s == math.inf
    assert plan.reason == (
        "7 shards evenly over 3 neighbours: no rate towards the joiner has been measured, so no "
        "time can be predicted"
    )
    few = call(1, 10, [Source(0, 0, 0), Source(0, 0, 0)])
    assert few.runs == ((), (range(1),))
    assert few.finish_s == (0, math.inf)


def test_less_than_a_byte_a_second_is_no_rate() -> None:
    among = [Source(0, 0, 0.99), Source(0, 0, 1.0)]
    for plan in (equal_shards(100, 1, among), greedy_shards([1] * 100, among)):
        assert plan.runs == ((), (range(100),))
        assert plan.bound_s == plan.objective_s == 100
        assert "neighbour 1 sends nothing, without a rate" in plan.reason


def test_nothing_to_send() -> None:
    for plan in (assign([], [Source(0, 0, 5)]), greedy_shards([], [Source(0, 0, 5)])):
        assert plan == ShardPlan(((),), (0.0,), 0.0, 0.0, "there is nothing to send")
    assert assign([], [Source(0, 0, 0)]).objective_s == 0


def test_huge_states_and_far_sources() -> None:
    far = [Source(1e9, 0, 1e15), Source(1e9, 0, 1e15)]
    for count in (5, 130_000_000):  # these moments round to one, down and up
        plan = equal_shards(count, 1, far)
        assert sum(len(run) for part in plan.runs for run in part) == count
        assert plan.objective_s == pytest.approx(1e9)
    among = [Source(0.001 * k, 0, 1e6 * (k + 1)) for k in range(64)]
    plan = equal_shards(10**9, 4 << 20, among)
    assert sum(len(run) for part in plan.runs for run in part) == 10**9
    assert plan.objective_s == pytest.approx(plan.bound_s, rel=1e-6)


def test_what_cannot_be_planned_is_refused() -> None:
    good = [Source(0, 0, 5)]
    for bad in (-1.0, math.inf, math.nan, MAX_VALUE * 2):
        for values in ((bad, 0.0, 1.0), (0.0, bad, 1.0), (0.0, 0.0, bad)):
            with pytest.raises(ValueError, match="within 0 to 1e"):
                Source(*values)
    with pytest.raises(ValueError, match="no source"):
        equal_shards(1, 1, [])
    with pytest.raises(ValueError, match="no source"):
        assign([1], [])
    with pytest.raises(ValueError, match="no source"):
        greedy_shards([1], [])
    for overhead_s in (-1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="overhead"):
            equal_shards(1, 1, good, overhead_s)
    for down_rate in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="own rate"):
            equal_shards(1, 1, good, down_rate=down_rate)
    for count, size in ((-1, 1), (1, 0)):
        with pytest.raises(ValueError, match="1 byte or more"):
            equal_shards(count, size, good)
    for shards in ([2, 1, 2], [1, 2], [2, 0], [0], [-1]):
        with pytest.raises(ValueError, match="one size"):
            assign(shards, good)
    with pytest.raises(ValueError, match="1 byte"):
        greedy_shards([1, 0], good)
    for tensors in ([], [3, 0]):
        with pytest.raises(ValueError, match="tensors"):
            searched_shards(tensors, good)


# Reasons

MB = 1_000_000


def test_a_reason_names_who_sends_what_and_who_does_not() -> None:
    among = [
        Source(0.01, 0, 10 * MB, "laptop"),
        Source(0, 0, 100 * MB, "desk"),
        Source(0, 9, 50 * MB),
        Source(0, 0, 0, "jetson"),
    ]
    plan = assign([4 * MB] * 27 + [50], among)
    assert plan.reason == (
        "desk sends 25 shards (100.0 MB); laptop sends 3 shards (8.0 MB); all is there after "
        "1.00 s, desk is the last; jetson sends nothing, without a rate towards the joiner; "
        "neighbour 3 sends nothing, since a shard from there would come later; 1.8% above the "
        "bound of 0.98 s"
    )
    assert plan.objective_s == 1.0
    alone = assign([10], among[:1])
    assert alone.reason == (
        "laptop sends 1 shard (10 bytes); all is there after 10 ms, laptop is the last; "
        "no other plan could be 0.1% earlier"
    )
    slow = assign([4 * MB] * 1000, among, down_rate=20 * MB)
    assert "all is there after 200.01 s, the joiner's own rate is the limit" in slow.reason


def test_a_reason_stays_short() -> None:
    among = [Source(0, 0, MB, f"n{k}") for k in range(30)]
    idle = [Source(0, 0, 0, f"d{k}") for k in range(30)]
    late = [Source(0, 99, MB, f"l{k}") for k in range(2)]
    plan = equal_shards(30, MB, [*among, *idle, *late])
    assert plan.reason == (
        "n0 sends 1 shard (1.0 MB); n1 sends 1 shard (1.0 MB); n2 sends 1 shard (1.0 MB); "
        "n3 sends 1 shard (1.0 MB); 26 others together 26 shards (26.0 MB); all is there after "
        "1.00 s, n0 is the last; d0, d1, d2 and 27 others send nothing, without a rate towards "
        "the joiner; l0 and l1 send nothing, since a shard from there would come later; no other "
        "plan could be 0.1% earlier"
    )
