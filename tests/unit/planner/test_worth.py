"""Which devices cost more time than they save, and whether all together are slower than one."""

from __future__ import annotations

import pytest

from edgeagent.planner.shares import ShareRule
from edgeagent.planner.standard import StandardPlanner
from edgeagent.planner.worth import worth
from protocols.cluster.view import make_view
from protocols.network.measures import Measures, Rate, Times
from tests.unit.protocols.records import LINEAGE, member, node, view_of

A, B, C, D = (node(k) for k in range(1, 5))
MBIT = 1e6 / 8
BYTES = 250_000
MICRO_BATCHES = 16


def rates(
    count: int, slow: dict[bytes, float], fast: float = 200.0
) -> dict[tuple[bytes, bytes], Rate]:
    """Every link carries what the slower of its ends does, in Mbit/s."""
    nodes = [node(k) for k in range(1, count + 1)]
    return {
        (a, b): Rate(0.001, min(slow.get(a, fast), slow.get(b, fast)) * MBIT)
        for a in nodes
        for b in nodes
        if a != b
    }


def measures(count: int, slow: dict[bytes, float], **speeds: float) -> Measures:
    """`speeds`: seconds a micro-batch of a, b, c, d; 20 ms without."""
    each = {node(k): speeds.get("abcd"[k - 1], 0.02) for k in range(1, count + 1)}
    return Measures(rates(count, slow), each)


def times(count: int, sync_s: float, compute_s: float = 0.1) -> dict[bytes, Times]:
    return {node(k): Times(compute_s, sync_s) for k in range(1, count + 1)}


def test_a_device_with_a_slow_link_costs_more_than_it_gives() -> None:
    known = measures(3, {C: 2.0})
    found = worth(view_of(3), MICRO_BATCHES, known, times(3, 1.0), BYTES, step_s=1.2)
    assert found is not None
    assert found.left_out == (C,)
    assert found.alone == A
    assert found.alone_s == pytest.approx(0.32 + 0.1)
    # 8 micro-batches of 20 ms, 10 ms of gradients and two delays, and what else a step took
    assert found.without_s == pytest.approx(0.16 + 0.01 + 0.002 + 0.1)
    assert found.step_s == 1.2


def test_two_devices_with_slow_links_are_left_out_together() -> None:
    known = measures(4, {C: 2.0, D: 3.0})
    found = worth(view_of(4), MICRO_BATCHES, known, times(4, 1.0), BYTES, step_s=1.1)
    assert found is not None
    assert found.left_out == (C, D)


def test_together_may_be_slower_than_alone() -> None:
    known = measures(2, {B: 2.0}, a=0.005, b=0.02)
    found = worth(view_of(2), MICRO_BATCHES, known, times(2, 1.0), BYTES, step_s=1.1)
    assert found is not None
    assert (found.alone, found.left_out) == (A, (B,))
    assert found.without_s == pytest.approx(16 * 0.005)


def test_the_fastest_device_is_the_one_that_is_better_alone_whatever_its_links() -> None:
    known = measures(3, {A: 1.0, B: 2.0, C: 2.0}, a=0.001)
    found = worth(view_of(3), MICRO_BATCHES, known, times(3, 2.0), BYTES, step_s=2.1)
    assert found is not None
    assert (found.alone, found.left_out) == (A, (B, C))


def test_the_device_that_is_faster_alone_is_one_of_those_who_stay() -> None:
    known = measures(3, {C: 2.0}, c=0.019)
    found = worth(view_of(3), MICRO_BATCHES, known, times(3, 1.0), BYTES, step_s=1.2)
    assert found is not None
    assert (found.left_out, found.alone) == ((C,), A)


def test_who_stays_may_be_several_although_none_is_faster_alone() -> None:
    known = measures(3, {C: 2.0}, a=0.06, b=0.06, c=0.06)
    found = worth(view_of(3), MICRO_BATCHES, known, times(3, 0.5), BYTES, step_s=1.0)
    assert found is not None
    assert (found.left_out, found.alone) == ((C,), b"")


def test_who_gives_as_much_as_it_costs_is_not_named() -> None:
    known = measures(3, {}, c=0.05)
    assert worth(view_of(3), MICRO_BATCHES, known, times(3, 0.01), BYTES, step_s=0.12) is None


def test_no_advice_without_figures() -> None:
    known, view, took = measures(2, {B: 2.0}), view_of(2), times(2, 1.0)
    assert worth(view, MICRO_BATCHES, known, took, BYTES, step_s=0.0) is None
    assert worth(view, MICRO_BATCHES, known, {}, BYTES, step_s=9.0) is None
    assert worth(view_of(1), MICRO_BATCHES, known, took, BYTES, step_s=9.0) is None
    nothing = Measures(known.links, {})
    assert worth(view, MICRO_BATCHES, nothing, took, BYTES, step_s=9.0) is None


def test_the_speed_of_who_would_be_left_out_need_not_be_known() -> None:
    known = measures(3, {C: 2.0})
    others = Measures(known.links, {A: 0.02, B: 0.02})
    found = worth(view_of(3), MICRO_BATCHES, others, times(3, 1.0), BYTES, step_s=1.2)
    assert found is not None
    assert found.left_out == (C,)


def test_a_device_that_connects_the_others_cannot_be_left_out() -> None:
    pairs = view_of(5, [(1, 4), (2, 5), (1, 3), (2, 3)])
    fast = Rate(0.001, 200 * MBIT)
    links = {(e.low, e.high): fast for e in pairs.edges if C not in (e.low, e.high)}
    slow = {(e.low, e.high): Rate(0.001, MBIT) for e in pairs.edges if C in (e.low, e.high)}
    both = {**links, **slow}
    both |= {(b, a): rate for (a, b), rate in both.items()}
    known = Measures(both, {node(k): 9.0 for k in range(1, 6)})
    assert worth(pairs, MICRO_BATCHES, known, times(5, 1.0), BYTES, step_s=40.0) is None


def test_links_that_are_not_measured_are_no_reason() -> None:
    view = make_view(LINEAGE, 1, [member(k) for k in (1, 2, 3)], view_of(3).edges)
    known = Measures({}, {A: 9.0, B: 9.0, C: 9.0})
    assert worth(view, MICRO_BATCHES, known, times(3, 1.0), BYTES, step_s=60.0) is None


# --- what a step takes ----------------------------------------------------------------------------


def test_several_ways_take_what_all_links_carry_together_and_one_tree_its_slowest_link() -> None:
    known = measures(4, {D: 8.0})  # 1 MB/s on each of its three links
    computing = MICRO_BATCHES / 4 * 0.02
    one = StandardPlanner(3_000_000, trees="one").step_s(view_of(4), MICRO_BATCHES, known)
    packed = StandardPlanner(3_000_000, trees="packed").step_s(view_of(4), MICRO_BATCHES, known)
    assert one == pytest.approx(computing + 3.0, rel=0.05)
    assert packed == pytest.approx(computing + 1.0, rel=0.05)


def test_a_step_alone_is_computing_and_without_measurements_it_is_not_known() -> None:
    planner = StandardPlanner(BYTES, trees="packed")
    assert planner.step_s(view_of(1), 4, measures(1, {})) == pytest.approx(0.08)
    assert planner.step_s(view_of(2), 4) is None
    assert planner.costly(view_of(2), 4, {}, 1.0) is None


def test_a_device_that_only_its_least_share_makes_slow_costs_more_than_it_gives() -> None:
    """So it may stand by, unless all devices have `--standby never`."""
    known = measures(3, {}, c=1.0)
    took = {A: Times(0.1, 0.01), B: Times(0.1, 0.01), C: Times(4.0, 0.01)}
    planner = StandardPlanner(BYTES, rule=ShareRule(least=4))
    found = planner.costly(view_of(3), MICRO_BATCHES, took, 4.1, known)
    assert found is not None
    assert found.left_out == (C,)
    step_s = planner.step_s(view_of(3), MICRO_BATCHES, known)
    assert step_s is not None
    assert step_s > 4.0
    # Whichever devices are slow, and not those whose ids come first.
    slow = {B: 1.0, D: 2.0}
    known = Measures(rates(4, {}), {n: slow.get(n, 0.02) for n in (A, B, C, D)})
    took = {n: Times(4 * seconds, 0.01) for n, seconds in known.speeds.items()}
    found = planner.costly(view_of(4), MICRO_BATCHES, took, 8.1, known)
    assert found is not None
    assert found.left_out == (D, B)
