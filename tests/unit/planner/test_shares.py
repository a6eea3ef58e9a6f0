"""Shares by speed compared with every way to deal out a few micro-batches, and under noise."""

from __future__ import annotations

from itertools import product
from math import isclose
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from edgeagent.planner.shares import (
    IDLE_LIMIT,
    LEAST_GAIN,
    LEAST_GAIN_OF_ROUNDS,
    STEPS_OF_ALL,
    ShareRule,
    measured_shares,
)
from edgeagent.planner.standard import StandardPlanner
from edgeagent.planner.work_cost import WorkCost
from protocols.network.measures import Measures, Rate
from tests.unit.protocols.records import node, view_of

NOISE = 0.08
ROUND_NOISE = 0.03
ROUNDS = ShareRule(least_gain=LEAST_GAIN_OF_ROUNDS)
Nodes = tuple[bytes, ...]

speeds_of = st.lists(st.integers(1, 12).map(lambda k: k / 4), min_size=1, max_size=4)
costs = st.sampled_from([WorkCost(), WorkCost(square=0.6), WorkCost(square=1.0)])


def nodes_of(count: int) -> Nodes:
    return tuple(node(k) for k in range(1, count + 1))


def known(nodes: Nodes, seconds: list[float]) -> dict[bytes, float]:
    return dict(zip(nodes, seconds, strict=True))


def every_way(count: int, micro_batches: int) -> list[tuple[int, ...]]:
    every = product(range(micro_batches + 1), repeat=count)
    return [shares for shares in every if sum(shares) == micro_batches]


def time(shares: tuple[int, ...], seconds: list[float]) -> float:
    return max(a * b for a, b in zip(shares, seconds, strict=True))


def even_shares(
    nodes: tuple[bytes, ...], micro_batches: int, away: tuple[bytes, ...]
) -> tuple[int, ...]:
    """Return the shares in the order of `nodes`; those of present nodes differ by at most one."""
    present = [n for n in nodes if n not in away] or list(nodes)
    each, rest = divmod(micro_batches, len(present))
    extra = dict.fromkeys(present[:rest], 1)
    return tuple(each + extra.get(n, 0) if n in present else 0 for n in nodes)


@given(speeds_of, st.integers(1, 7))
def test_no_shares_end_sooner(seconds: list[float], micro_batches: int) -> None:
    nodes = nodes_of(len(seconds))
    plan = measured_shares(nodes, micro_batches, (), known(nodes, seconds))
    every = every_way(len(nodes), micro_batches)
    assert plan.shares in every
    assert plan.predicted_s == time(plan.shares, seconds) == min(time(s, seconds) for s in every)
    assert plan.ideal_s is not None
    assert isclose(plan.ideal_s, micro_batches / sum(1 / s for s in seconds))
    assert plan.ideal_s <= plan.predicted_s * (1 + 1e-9)


@given(speeds_of, st.integers(1, 7), st.data())
def test_no_shares_end_sooner_that_try_whom_they_must(
    seconds: list[float], micro_batches: int, data: st.DataObject
) -> None:
    nodes = nodes_of(len(seconds))
    some = st.lists(st.sampled_from(nodes), unique=True).map(tuple)
    away, silent = data.draw(some), data.draw(some)
    present = [n for n in nodes if n not in away] or list(nodes)
    speeds = {n: s for n, s in known(nodes, seconds).items() if n not in silent}
    measured = sorted(speeds[n] for n in present if n in speeds)
    plan = measured_shares(nodes, micro_batches, away, speeds)
    assert plan == measured_shares(nodes, micro_batches, away, speeds)
    if not measured:
        assert plan.shares == even_shares(nodes, micro_batches, away)
        assert (plan.predicted_s, plan.ideal_s) == (None, None)
        assert plan.reason.endswith("evenly: no speed is measured yet")
        return
    typical = (measured[len(measured) // 2] + measured[(len(measured) - 1) // 2]) / 2
    takes = [speeds.get(n, typical) for n in nodes]
    tried = [n for n in present if n not in speeds][:micro_batches]
    valid = [
        shares
        for shares in every_way(len(nodes), micro_batches)
        if all(s == 0 for n, s in zip(nodes, shares, strict=True) if n not in present)
        and all(s > 0 for n, s in zip(nodes, shares, strict=True) if n in tried)
    ]
    assert plan.shares in valid
    assert plan.predicted_s == time(plan.shares, takes) == min(time(s, takes) for s in valid)


def test_equal_nodes_are_served_in_order() -> None:
    nodes = nodes_of(3)
    speeds = dict.fromkeys(nodes, 0.5)
    for micro_batches in range(1, 9):
        plan = measured_shares(nodes, micro_batches, (), speeds)
        assert plan.shares == even_shares(nodes, micro_batches, ())
    turned = dict(reversed(list(speeds.items())))
    assert measured_shares(nodes, 4, (), turned).shares == (2, 1, 1)


def test_a_reason_says_what_granularity_costs_and_who_gets_none() -> None:
    nodes = nodes_of(3)
    speeds = known(nodes, [1.0, 1.0, 20.0])
    names = {node(3): "pi"}
    plan = measured_shares(nodes, 9, (), speeds, names=names)
    assert plan.shares == (5, 4, 0)
    assert plan.ideal_s == pytest.approx(9 / 2.05)
    assert plan.reason == (
        "9 micro-batches over 2 devices by speed: 5 s, 12% of it lost to granularity; "
        "none for pi (20 s for one)"
    )
    guessed = measured_shares(nodes, 9, (), {node(1): 1.0, node(2): 3.0}, names=names)
    assert guessed.shares == (6, 1, 2)  # all but the last slot are earlier than 6 s
    assert guessed.reason.endswith("; pi taken as typical (2 s for one)")


def test_a_slow_node_loses_its_share_and_a_faster_one_gets_it_back() -> None:
    nodes, speeds = nodes_of(2), {node(1): 1.0, node(2): 30.0}
    present = measured_shares(nodes, 8, (), speeds).shares
    assert present == (8, 0)
    assert measured_shares(nodes, 8, (), speeds, present).shares == present
    assert measured_shares(nodes, 8, (), speeds, (7, 1)).shares == present
    faster = dict(speeds) | {node(2): 2.0}
    assert measured_shares(nodes, 8, (), faster, present).shares == (6, 2)


def test_shares_in_force_that_are_not_possible_any_more_give_way() -> None:
    nodes, speeds = nodes_of(3), known(nodes_of(3), [1.0, 1.0, 1.0])
    good = (3, 3, 3)
    assert measured_shares(nodes, 9, (), speeds, (4, 3, 2)).shares == good
    kept = measured_shares(nodes, 90, (), speeds, (31, 30, 29))
    assert kept.shares == (31, 30, 29)
    assert kept.predicted_s == 31.0
    assert kept.reason == (
        "90 micro-batches over 3 devices by speed: 31 s, 3% of it lost to granularity "
        "and to keeping them, as others would not save 15%"
    )
    for present in ((30, 30, 29), (31, 31, 28, 0), (91, 30, -31)):
        assert measured_shares(nodes, 90, (), speeds, present).shares == (30, 30, 30)
    assert measured_shares(nodes, 90, (node(3),), speeds, (31, 30, 29)).shares == (45, 45, 0)
    unknown = {node(1): 1.0, node(2): 1.0}
    assert measured_shares(nodes, 90, (), unknown, (45, 45, 0)).shares == (30, 30, 30)
    assert measured_shares(nodes, 90, (), {}, (31, 30, 29)).shares == (31, 30, 29)


def test_a_node_that_comes_back_works_again_however_many_there_are() -> None:
    nodes = nodes_of(30)
    speeds = dict.fromkeys(nodes, 1.0)
    without = measured_shares(nodes, 300, (node(30),), speeds).shares
    assert without[-1] == 0
    assert measured_shares(nodes, 300, (), speeds, without).shares == (10,) * 30
    # but a member that hardly gains anything is not given a share again
    slow = speeds | {node(30): 11 * (IDLE_LIMIT + 0.05)}
    assert measured_shares(nodes, 300, (), slow).shares[-1] == 1
    assert measured_shares(nodes, 300, (), slow, without).shares == without


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=8), st.integers(1, 64), st.data())
def test_right_shares_withstand_any_noise(
    seconds: list[float], micro_batches: int, data: st.DataObject
) -> None:
    nodes = nodes_of(len(seconds))
    right = measured_shares(nodes, micro_batches, (), known(nodes, seconds)).shares
    factors = [
        data.draw(st.sampled_from([1 - NOISE, 1 + NOISE]) | st.floats(1 - NOISE, 1 + NOISE))
        for _ in seconds
    ]
    noisy = known(nodes, [s * f for s, f in zip(seconds, factors, strict=True)])
    assert measured_shares(nodes, micro_batches, (), noisy, right).shares == right
    assert 1 - (1 - NOISE) / (1 + NOISE) < LEAST_GAIN  # so noise never seems to be a gain


@pytest.mark.parametrize(
    "seconds", [(1, 1), (1, 1, 1, 1), (1, 1, 2, 4), (1, 1.3, 1.7, 2, 3, 5), (1,) * 16]
)
@pytest.mark.parametrize("micro_batches", [16, 64, 256])
@pytest.mark.parametrize(("noise", "rule"), [(NOISE, STEPS_OF_ALL), (ROUND_NOISE, ROUNDS)])
def test_noise_does_not_turn_shares_back_and_forth(
    seconds: tuple[float, ...], micro_batches: int, noise: float, rule: ShareRule
) -> None:
    nodes = nodes_of(len(seconds))
    for seed in range(5):
        chance = Random(seed)
        present: tuple[int, ...] | None = None
        seen: list[tuple[int, ...]] = []
        for _ in range(60):
            noisy = [s * (1 + chance.uniform(-noise, noise)) for s in seconds]
            plan = measured_shares(
                nodes, micro_batches, (), known(nodes, noisy), present, rule=rule
            )
            if plan.shares != present:
                seen.append(plan.shares)
            present = plan.shares
        assert len(seen) <= 2, seed  # the first may be off by the noise of one measurement
        halved = [s / 2 if k == 0 else s for k, s in enumerate(seconds)]
        after = measured_shares(nodes, micro_batches, (), known(nodes, halved), present, rule=rule)
        assert present is not None
        best = measured_shares(nodes, micro_batches, (), known(nodes, halved)).predicted_s
        assert best is not None
        assert after.predicted_s is not None
        assert after.predicted_s * (1 - rule.least_gain) <= best * (1 + 1e-9)


@given(speeds_of, st.integers(1, 7), st.data())
def test_shares_are_kept_just_as_long_as_others_would_not_pay(
    seconds: list[float], micro_batches: int, data: st.DataObject
) -> None:
    nodes = nodes_of(len(seconds))
    present = data.draw(st.sampled_from(every_way(len(nodes), micro_batches)))
    assume(all(present))
    fresh = measured_shares(nodes, micro_batches, (), known(nodes, seconds))
    plan = measured_shares(nodes, micro_batches, (), known(nodes, seconds), present)
    assert fresh.predicted_s is not None
    pays = fresh.predicted_s < time(present, seconds) * (1 - LEAST_GAIN)
    assert plan.shares == (fresh.shares if pays else present)
    assert plan.predicted_s == time(plan.shares, seconds)


def test_speeds_are_positive() -> None:
    for seconds in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="positive"):
            Measures({}, {node(1): seconds})
    assert Measures({}, {node(1): 0.5}).speeds == {node(1): 0.5}


def test_parts_of_a_model_follow_the_rules_of_adaptrain() -> None:
    """Where a subnet costs the square of its part, as in a fully connected net, the parts go by the
    square roots of the devices' speeds; where it costs the part itself they go by the speeds."""
    slowdowns = (1.0, 1.93, 3.5, 2.85)
    nodes = tuple(bytes([k]) * 16 for k in range(4))
    for exponent in (1, 2):
        speeds = dict(zip(nodes, slowdowns, strict=True))
        rule = ShareRule(WorkCost(square=exponent - 1.0))
        plan = measured_shares(nodes, 6400, (), speeds, rule=rule)
        weights = [s ** (-1 / exponent) for s in slowdowns]
        right = [6400 * w / sum(weights) for w in weights]
        assert all(abs(a - b) <= 1 for a, b in zip(plan.shares, right, strict=True))
        assert plan.predicted_s is not None
        assert plan.ideal_s is not None
        assert plan.ideal_s <= plan.predicted_s <= plan.ideal_s * 1.01
        ends = [s**exponent * speeds[n] for s, n in zip(plan.shares, nodes, strict=True)]
        assert max(ends) < 1.01 * min(ends)


def test_a_device_that_is_too_slow_for_what_is_not_divided_gets_no_part() -> None:
    nodes = nodes_of(3)
    rule = ShareRule(WorkCost(fixed=0.5))
    names = {nodes[2]: "slow"}
    plan = measured_shares(nodes, 64, (), known(nodes, [1.0, 1.0, 2.0]), rule=rule, names=names)
    assert plan.shares == (32, 32, 0)
    assert plan.predicted_s == 48  # half of it for what is not divided, half of the rest
    assert "none for slow (65 s for one)" in plan.reason
    kept = measured_shares(nodes, 64, (), known(nodes, [1.0, 1.0, 2.0]), (32, 32, 0), rule=rule)
    assert kept.shares == (32, 32, 0)


def test_a_device_that_is_a_little_slower_keeps_a_part_where_little_is_divided() -> None:
    """Alone the faster one would be done a little sooner, but then the other one does nothing."""
    nodes = nodes_of(2)
    rule = ShareRule(WorkCost(fixed=0.9), least_gain=LEAST_GAIN_OF_ROUNDS)
    speeds = known(nodes, [1.0, 1.15])
    for present in (None, (32, 32), (64, 0)):
        shares = measured_shares(nodes, 64, (), speeds, present, rule=rule).shares
        assert shares[1] >= 1, present
    far = known(nodes, [1.0, 2.5])
    for present in (None, (32, 32), (64, 0)):
        assert measured_shares(nodes, 64, (), far, present, rule=rule).shares == (64, 0)
    near = known(nodes, [1.0, 1.9])  # worth it, but not so clearly that it begins again
    assert measured_shares(nodes, 64, (), near, (63, 1), rule=rule).shares == (63, 1)
    assert measured_shares(nodes, 64, (), near, (64, 0), rule=rule).shares == (64, 0)
    three = nodes_of(3)
    few = measured_shares(three, 2, (), known(three, [1.0, 1.0, 1.0]), rule=rule)
    assert few.shares == (1, 1, 0), "there are no more"


def test_rounds_follow_smaller_gains() -> None:
    nodes = nodes_of(2)
    speeds = known(nodes, [1.0, 1.2])
    assert measured_shares(nodes, 64, (), speeds, (32, 32)).shares == (32, 32)
    rule = ROUNDS
    plan = measured_shares(nodes, 64, (), speeds, (32, 32), rule=rule)
    assert plan.shares == (35, 29)
    kept = measured_shares(nodes, 64, (), speeds, (34, 30), rule=rule)
    assert kept.shares == (34, 30)
    short = known(nodes, [0.01, 0.012])
    assert measured_shares(nodes, 64, (), short, (32, 32), rule=rule).shares == (32, 32)
    assert "others would not save 6%" in kept.reason


@given(speeds_of, st.integers(1, 7), st.integers(1, 4), costs, st.data())
def test_nobody_gets_less_than_the_least_share_and_no_such_shares_end_sooner(
    seconds: list[float], micro_batches: int, least: int, cost: WorkCost, data: st.DataObject
) -> None:
    nodes = nodes_of(len(seconds))
    away = data.draw(st.lists(st.sampled_from(nodes), unique=True).map(tuple))
    present = [n for n in nodes if n not in away] or list(nodes)
    rule = ShareRule(cost, least)
    plan = measured_shares(nodes, micro_batches, away, known(nodes, seconds), rule=rule)
    lowest = min(least, micro_batches // len(present))

    def ends(shares: tuple[int, ...]) -> float:
        return max(cost.units(n, micro_batches) * s for n, s in zip(shares, seconds, strict=True))

    def fits(shares: tuple[int, ...]) -> bool:
        return all(
            s >= lowest if n in present else s == 0 for n, s in zip(nodes, shares, strict=True)
        )

    valid = [shares for shares in every_way(len(nodes), micro_batches) if fits(shares)]
    assert plan.shares in valid
    assert plan.predicted_s == ends(plan.shares) == min(ends(shares) for shares in valid)


def test_with_too_many_devices_for_the_least_share_all_have_equal_ones() -> None:
    for count in range(1, 71):
        nodes = nodes_of(count)
        speeds = known(nodes, [1.0 + k for k in range(count)])
        shares = measured_shares(
            nodes, 64, (), speeds, rule=ShareRule(WorkCost(square=1.0), 16)
        ).shares
        assert sum(shares) == 64
        if count <= 4:
            assert min(shares) >= 16
        elif count <= 64:
            assert min(shares) == 64 // count, "as equal as whole micro-batches allow"
        if 64 % count == 0 and count >= 4:
            assert shares == (64 // count,) * count


def test_a_new_device_gets_the_least_share_and_an_unmeasured_one_more_than_that() -> None:
    nodes = nodes_of(3)
    rule = ShareRule(least=8)
    slow = {node(1): 1.0, node(2): 1.0, node(3): 100.0}
    plan = measured_shares(nodes, 64, (), slow, rule=rule)
    assert plan.shares == (28, 28, 8)
    assert plan.reason == (
        "64 micro-batches over 3 devices by speed: 800 s, 96% of it lost to granularity and to"
        " shares of at least 8"
    )
    assert measured_shares(nodes, 64, (), {}, rule=rule).shares == (22, 21, 21)
    unknown = measured_shares(nodes, 64, (), {node(1): 1.0, node(2): 1.0}, rule=rule)
    assert unknown.shares == (22, 21, 21)
    # Shares in force below the least one give way, others are kept as ever.
    assert measured_shares(nodes, 64, (), slow, (29, 28, 7), rule=rule).shares == (28, 28, 8)
    assert measured_shares(nodes, 64, (), slow, (29, 27, 8), rule=rule).shares == (29, 27, 8)
    assert measured_shares(nodes, 64, (node(3),), slow, rule=rule).shares == (32, 32, 0)


def test_the_least_share_is_in_plans_predictions_and_traces() -> None:
    view = view_of(2)
    planner = StandardPlanner(rule=ShareRule(least=16))
    measures = Measures({}, {node(1): 1.0, node(2): 100.0})
    assert planner.plan(view, 64, (), None, measures).shares == (48, 16)
    assert planner.inputs["least"] == 16
    links = {(node(1), node(2)): Rate(0.001, 1e9), (node(2), node(1)): Rate(0.001, 1e9)}
    measures = Measures(links, measures.speeds)
    step_s = planner.step_s(view, 64, measures)
    assert step_s == pytest.approx(1600.0, rel=0.01)
    without = StandardPlanner().step_s(view, 64, measures)
    assert without == pytest.approx(64.0, rel=0.02)
