"""Which member the others wait for, and when a user is told so."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, permutations

import pytest

from protocols.cluster.policy import Policy, Pull
from protocols.cluster.ways import Way
from protocols.events import Measured
from protocols.network.measures import KeepingUp, Measures, Rate, Times
from protocols.network.waiting import (
    AGAIN_S,
    LASTS_S,
    MOST_AGAIN_S,
    OVER_S,
    Cause,
    Standing,
    Telling,
    Waiting,
    waited_for,
    waiting_of,
)

from .records import member, node, star_policy, view_of
from .test_monitor import three

A, B, C = node(1), node(2), node(3)
MBIT = 1e6 / 8
BYTES = 100_000


def star(
    fast: float = 200.0, slow: float = 2.0, delay_s: float = 0.08
) -> dict[tuple[bytes, bytes], Rate]:
    """Return the measures of a star around A in which C has slow links; rates in Mbit/s."""
    links = {}
    for a, b in ((A, B), (A, C), (B, C)):
        here = Rate(delay_s, slow * MBIT) if C in (a, b) else Rate(0.001, fast * MBIT)
        links[a, b] = links[b, a] = here
    return links


def standing(
    times: dict[bytes, tuple[float, float]], policy: Policy | None = None, **others: object
) -> Standing:
    """Return what is known if members took `times` for computing and for summing."""
    policy = policy or star_policy(3)
    known = {n: Times(*pair) for n, pair in times.items()}
    found = Standing(policy, known, measures=Measures(star()), vector_bytes=BYTES)
    return replace(found, **others)  # type: ignore[arg-type]


def test_a_slow_link_is_named_with_its_rate_and_the_badly_connected_end() -> None:
    found = waited_for(standing({A: (0.008, 0.87), B: (0.007, 0.88), C: (0.012, 0.87)}))
    assert found == Waiting(
        Cause.LINK, C, 0.87, 0.012 + 0.87, A, 2 * MBIT, 0.08, shared=False, late=False
    )


def test_the_parent_is_named_if_it_is_the_one_that_is_badly_connected() -> None:
    links = {**star(), (B, C): Rate(0.001, 200 * MBIT), (C, B): Rate(0.001, 200 * MBIT)}
    links |= dict.fromkeys([(A, B), (B, A)], Rate(0.08, 2 * MBIT))
    found = waited_for(standing({A: (0.008, 0.9), B: (0.007, 0.9)}, measures=Measures(links)))
    assert found is not None
    assert (found.node, found.peer) == (A, B)


def test_transfer_beside_computing_is_what_is_waited_for() -> None:
    """The transfer takes 3.1 s and the computing 160 ms."""
    found = waited_for(standing({A: (0.05, 3.2), B: (0.05, 3.2), C: (0.16, 3.125)}))
    assert found is not None
    assert (found.cause, found.node, found.seconds) == (Cause.LINK, C, 3.125)


def test_with_several_ways_the_link_that_takes_longest_is_named() -> None:
    """Three quarters of the chunks go from C over B to A, the others from both to A; all come back
    along the chain. So B and C wait for their link, and A and C hardly use theirs."""
    links = {(a, b): Rate(0.001, 8 * MBIT) for a, b in permutations((A, B, C), 2)}
    links |= dict.fromkeys([(A, B), (B, A)], Rate(0.001, 16 * MBIT))
    chain, star_of_a = bytes([0, 0, 1]), bytes([0, 0, 0])
    ways = (Way(chain, chain, 3), Way(star_of_a, chain, 1))
    policy = replace(star_policy(3), ways=ways)

    def named(slower: dict[tuple[bytes, bytes], Rate]) -> set[bytes]:
        times = {A: (0.01, 0.3), B: (0.01, 0.3), C: (0.01, 0.3)}
        found = waited_for(standing(times, policy, measures=Measures(links | slower)))
        assert found is not None
        assert found.cause is Cause.LINK
        return {found.node, found.peer}

    assert named({}) == {B, C}
    assert named({(A, C): Rate(0.001, 0.1 * MBIT)}) == {B, C}, "nothing flows in that direction"
    assert named({(C, A): Rate(0.001, 3 * MBIT)}) == {B, C}, "it carries a quarter"
    assert named({(C, A): Rate(0.001, 1 * MBIT)}) == {A, C}


def test_the_only_link_of_two_is_both_of_theirs() -> None:
    policy = star_policy(2)
    links = dict.fromkeys([(A, B), (B, A)], Rate(0.001, 2 * MBIT))
    known = standing({A: (0.01, 0.4), B: (0.01, 0.4)}, policy, measures=Measures(links))
    found = waited_for(known)
    assert found is not None
    assert found.shared
    assert {found.node, found.peer} == {A, B}


def test_a_link_that_is_only_late_is_said_to_be() -> None:
    links = dict.fromkeys([(A, B), (B, A)], Rate(0.5, 1000 * MBIT))
    links = {**star(1000, 1000, 0.001), **links}
    found = waited_for(standing({A: (0.01, 1.0), B: (0.01, 1.0)}, measures=Measures(links)))
    assert found is not None
    assert (found.cause, found.node, found.late) == (Cause.LINK, B, True)


def test_a_link_that_costs_a_part_of_a_step_counts_beyond_the_others() -> None:
    links = {**star(200, 50, 0.0)}
    times = {A: (0.5, 0.2), B: (0.5, 0.2), C: (0.5, 0.2)}
    found = waited_for(standing(times, measures=Measures(links)))
    assert found is not None
    assert found.seconds == pytest.approx(0.2 * (1 - 6 / 16))
    alike = {A: (0.066, 0.027), B: (0.069, 0.027), C: (0.066, 0.027)}
    assert waited_for(standing(alike, measures=Measures(star(200, 181, 0.001)))) is None


def test_a_link_is_known_from_one_direction() -> None:
    one_way = {ends: rate for ends, rate in star().items() if ends[0] == C}
    found = waited_for(standing({A: (0.01, 0.9), B: (0.01, 0.9)}, measures=Measures(one_way)))
    assert found is not None
    assert found.rate == 2 * MBIT


def test_who_computes_longest_is_named_if_that_costs_a_tenth() -> None:
    nothing = Measures()
    times = {A: (0.2, 0.01), B: (0.5, 0.01), C: (0.3, 0.01)}
    found = waited_for(standing(times, measures=nothing))
    assert found == Waiting(Cause.COMPUTING, B, 0.5 - 0.3, 0.5 + 0.01)
    times[C] = (0.47, 0.01)
    assert waited_for(standing(times, measures=nothing)) is None
    late = {B: (KeepingUp.LATE, 3.0)}  # the others do its work
    found = waited_for(standing(times, measures=nothing, trainers=late))
    assert found is not None
    assert found.node == C


def test_nobody_waits_where_nothing_is_known_or_nobody_else_is() -> None:
    assert waited_for(standing({})) is None
    assert waited_for(standing({A: (1.0, 0.0)})) is None
    assert waited_for(standing({A: (1.0, 0.0)}, star_policy(1))) is None


def test_a_trainer_that_does_not_answer_comes_before_what_is_usual() -> None:
    slow = {A: (KeepingUp.SLOW, 3.0), B: (KeepingUp.SLOW, 7.0), C: (KeepingUp.PROMPT, 0.0)}
    found = waited_for(standing({A: (0.01, 0.9), C: (0.01, 0.9)}, trainers=slow))
    assert found == Waiting(Cause.COMPUTING, B, 7.0, trainer=True, more=1)


def test_a_step_that_stands_is_because_of_who_is_not_heard() -> None:
    times = {A: (0.01, 0.9), C: (0.01, 0.9)}
    slow = {A: (KeepingUp.SLOW, 3.0)}
    found = waited_for(standing(times, trainers=slow, silent=(B, C), stands_s=6.0, usual_s=0.9))
    assert found == Waiting(Cause.SILENCE, B, 6.0, more=1)
    usual = waited_for(standing(times, silent=(B,), stands_s=1.5, usual_s=0.9))
    assert usual is not None
    assert usual.cause is Cause.LINK


def test_a_step_that_stands_is_because_of_a_joiner() -> None:
    pulls = (Pull(1, member(4), (A,), A), Pull(2, member(5), (A,), A))
    policy = star_policy(3, pulls)
    found = waited_for(standing({}, policy, stands_s=4.0, usual_s=0.1))
    assert found == Waiting(Cause.JOINER, node(4), 4.0, more=1)
    assert waited_for(standing({}, policy, stands_s=4.0, usual_s=2.5)) is None


def test_a_step_that_stands_for_what_is_usual_or_not_known() -> None:
    times = {A: (0.01, 0.9), C: (0.01, 0.9)}
    found = waited_for(standing(times, stands_s=12.0, usual_s=0.9))
    assert found == Waiting(Cause.LINK, C, 12.0, 0.0, A, 2 * MBIT, 0.08)
    assert waited_for(standing({}, stands_s=12.0)) == Waiting(Cause.UNKNOWN, b"", 12.0)


def test_a_member_says_whom_it_waits_for() -> None:
    hosts, nodes = three()
    first, other = nodes[0], hosts[1].me.node
    first.context.pace.applied(1000.0)
    assert first.context.pace.since(999.0) == 0.0
    first.context.now = 1001.0
    assert waiting_of(first) is None
    first.context.now = 1010.0
    assert waiting_of(first, (other, first.context.node, b"nobody")) == Waiting(
        Cause.SILENCE, other, 10.0
    )
    nodes[1].handle(1010.0, Measured((), 0.1, 0.5, 0.1))
    first.context.policy, kept = None, first.context.policy
    assert waiting_of(first) is None
    assert first.recovery.unheard == ()
    first.context.policy = kept
    first.cycle.leave("left", "")
    assert waiting_of(first) is None


def test_who_is_no_member_waits_for_nobody() -> None:
    _, nodes = three()
    nodes[0].context.policy = replace(star_policy(2), view=view_of(2))
    assert waiting_of(nodes[0]) is None


LINK = Waiting(Cause.LINK, C, 0.8, 0.9)
SLOW = Waiting(Cause.COMPUTING, B, LASTS_S, trainer=True)


def test_what_lasts_is_told_once_then_ever_more_seldom() -> None:
    telling = Telling()
    told = [t for t in range(int(4 * MOST_AGAIN_S)) if telling.look(float(t), LINK)]
    assert told[0] == LASTS_S
    gaps = [b - a for a, b in pairwise(told)]
    assert gaps[:3] == [AGAIN_S, 2 * AGAIN_S, 4 * AGAIN_S]
    assert gaps[-1] == MOST_AGAIN_S
    assert telling.over(0.0, LINK) is None


def test_a_step_that_stands_is_told_after_a_moment_and_its_end_too() -> None:
    telling = Telling()
    assert not telling.look(0.0, replace(SLOW, seconds=LASTS_S - 1))
    assert telling.over(0.5, None) is None, "nothing was told"
    assert telling.look(1.0, SLOW)
    assert not telling.look(1.5, replace(SLOW, seconds=LASTS_S + 1))
    assert not telling.look(2.0, None)
    assert telling.over(2.0, None) is None
    assert telling.over(3.0, SLOW) is None, "it is waited for again"
    assert telling.over(4.0, LINK) is None
    assert telling.over(4.0 + OVER_S, None) == B
    assert telling.over(5.0 + OVER_S, None) is None


def test_another_cause_is_told_anew_and_a_small_cost_not_at_all() -> None:
    telling = Telling()
    assert not any(telling.look(float(t), replace(LINK, seconds=0.2)) for t in range(100))
    assert telling.look(100.0, LINK), "it has lasted, and costs more now"
    assert telling.look(101.0, SLOW)
    assert not telling.look(102.0, LINK)
