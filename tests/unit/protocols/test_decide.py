"""What fences decide for any reports: members, kept chunks, micro-batches, quorums.

The second implementation computes each chunk and each micro-batch separately.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols import limits
from protocols.cluster.view import edge, is_quorum
from protocols.rounds import control_word
from protocols.scheduler.fence import attempt_id, decide, open_links, share_out
from protocols.wire.messages import FenceReport, Restart

from .records import node, plain, star_policy, view_of
from .reports import BATCH, BEFORE, CHUNKS, EPOCH, PLANNER, RUNNING, report_of

if TYPE_CHECKING:
    import random

    from protocols.cluster.policy import Policy

ONE, TWO, THREE = (node(k) for k in range(1, 4))
ALL = control_word.bits(tuple(range(CHUNKS)))


def decided(policy: Policy, reports: dict[bytes, FenceReport], *, forks: bool = False) -> Restart:
    """Return the decision of node 1."""
    return decide(policy, reports, EPOCH, CHUNKS, BATCH, PLANNER, ONE, forks=forks)


def chosen(bitmap: bytes) -> tuple[int, ...]:
    """Return the numbers that are set."""
    return control_word.numbers(bitmap, 64)


# --- links and quorums ----------------------------------------------------------------------------


@given(st.integers(1, 6), st.data())
def test_a_link_is_open_if_both_ends_say_so(count: int, data: st.DataObject) -> None:
    policy = star_policy(6)
    some = st.lists(st.sampled_from([*policy.view.nodes, node(9)]), unique=True).map(tuple)
    reports = {node(k): report_of(policy, links=data.draw(some)) for k in range(1, count + 1)}
    both = [
        edge(a, b)
        for a, b in combinations(reports, 2)
        if b in reports[a].links and a in reports[b].links
    ]
    assert sorted(open_links(reports), key=lambda e: (e.low, e.high)) == both


@pytest.mark.parametrize(
    ("size", "here", "expected"),
    [
        (1, (1,), True),
        (2, (1,), True),
        (2, (2,), False),
        (3, (1,), False),
        (3, (2, 3), True),
        (4, (1, 4), True),
        (4, (3, 4), False),
        (4, (2, 3, 4), True),
        (3, (1, 8, 9), False),
        (3, (), False),
    ],
)
def test_a_majority_or_the_half_with_the_smallest_id_is_a_quorum(
    size: int, here: tuple[int, ...], expected: bool
) -> None:
    assert is_quorum(view_of(size).nodes, dict.fromkeys(map(node, here))) is expected


@given(st.integers(1, 7), st.data())
def test_never_are_two_separate_groups_both_a_quorum(size: int, data: st.DataObject) -> None:
    view = view_of(size)
    here = data.draw(st.sets(st.sampled_from(view.nodes)))
    there = [n for n in view.nodes if n not in here]
    verdicts = [is_quorum(view.nodes, dict.fromkeys(sorted(group))) for group in (here, there)]
    assert verdicts.count(True) == 1


def test_an_attempts_name_tells_lineage_policy_and_attempt() -> None:
    tags = [
        (b"L", (1, 1), 2),
        (b"M", (1, 1), 2),
        (b"L", (2, 1), 2),
        (b"L", (1, 1), 3),
        (b"L", (1, 12), 3),
        (b"L", (1, 1), 23),
        (b"L", (11, 2), 3),
    ]
    assert len({attempt_id(*tag) for tag in tags}) == len(tags)


# --- who computes what ----------------------------------------------------------------------------


@st.composite
def works(draw: st.DrawFn) -> tuple[list[set[int]], list[int], int]:
    """What each member works on, all shares, and the number of micro-batches."""
    count, batch = draw(st.integers(1, 5)), draw(st.integers(1, 24))
    owner = draw(st.lists(st.integers(0, count), min_size=batch, max_size=batch))
    cuts = sorted(draw(st.lists(st.integers(0, batch), min_size=count - 1, max_size=count - 1)))
    shares = [b - a for a, b in zip([0, *cuts], [*cuts, batch], strict=True)]
    return [{m for m in range(batch) if owner[m] == k} for k in range(count)], shares, batch


@given(works())
def test_each_micro_batch_is_one_members_and_nobody_works_in_vain(
    case: tuple[list[set[int]], list[int], int],
) -> None:
    working, shares, batch = case
    nodes = tuple(node(k) for k in range(len(working)))
    bitmaps = {n: control_word.bits(tuple(w)) for n, w in zip(nodes, working, strict=True)}
    work = share_out(nodes, bitmaps, tuple(shares), batch)
    assert sorted(m for found in work.values() for m in found) == list(range(batch))
    over = [len(before) - share for before, share in zip(working, shares, strict=True)]
    for k, n in enumerate(nodes):
        assert working[k] <= set(work[n])
        if max(over) <= 0:
            assert len(work[n]) == shares[k]


def test_a_member_that_does_more_than_its_share_gets_nothing_new() -> None:
    working = {ONE: control_word.bits((0, 1, 2)), TWO: b"", THREE: control_word.bits((9,))}
    work = share_out((ONE, TWO, THREE), working, (2, 2, 2), 6)
    assert work == {ONE: (0, 1, 2), TWO: (3, 5), THREE: (4,)}  # there is no micro-batch 9


# --- decisions ------------------------------------------------------------------------------------


@st.composite
def situations(draw: st.DrawFn) -> tuple[Policy, dict[bytes, FenceReport]]:
    """A policy in force and reports of connected members, as honest members may send them: no
    micro-batch is in two contributions, and no member is more than one iteration ahead."""
    count = draw(st.integers(1, 6))
    policy = star_policy(count)
    stay = draw(st.sets(st.sampled_from(policy.view.nodes), min_size=1))
    names = sorted(stay)
    near: dict[bytes, set[bytes]] = {n: set() for n in names}
    for k, n in enumerate(names[1:], 1):
        other = names[draw(st.integers(0, k - 1))]
        near[n].add(other)
        near[other].add(n)
    rounds = [(5, 0), (5, 1), (5, 2), (6, 0), (6, 1)]
    owners = [draw(st.lists(st.integers(0, 7), min_size=BATCH, max_size=BATCH)) for _ in range(2)]
    reports = {}
    for k, n in enumerate(names):
        iteration, attempt = draw(st.sampled_from(rounds))
        whole = draw(st.integers(0, 5)) == 0
        some = tuple(draw(st.sets(st.integers(0, CHUNKS - 1))))
        reports[n] = report_of(
            policy,
            iteration=iteration,
            attempt=attempt,
            have=tuple(range(CHUNKS)) if whole else some,
            working=tuple(m for m in range(BATCH) if owners[iteration - 5][m] == k),
            links=tuple(sorted(near[n])),
            newest=draw(st.integers(0, 9)),
        )
    return policy, reports


@given(situations(), st.booleans(), st.randoms(use_true_random=False))
def test_equal_reports_give_equal_decisions_whatever_their_order(
    situation: tuple[Policy, dict[bytes, FenceReport]], forks: bool, chance: random.Random
) -> None:
    policy, reports = situation
    order = list(reports)
    chance.shuffle(order)
    again = {n: reports[n] for n in order}
    assert decided(policy, again, forks=forks) == decided(policy, reports, forks=forks)


@given(situations())
def test_the_new_view_is_those_who_reported_with_their_links(
    situation: tuple[Policy, dict[bytes, FenceReport]],
) -> None:
    policy, reports = situation
    after = decided(policy, reports).policy
    view = after.view
    assert view.nodes == tuple(sorted(reports))
    assert (view.lineage, view.number) == (policy.view.lineage, policy.view.number + 1)
    assert list(view.edges) == sorted(open_links(reports), key=lambda e: (e.low, e.high))
    assert after.key > max((policy.term, r.newest) for r in reports.values())
    assert (after.term, after.pulls, sum(after.shares)) == (EPOCH[0], (), BATCH)
    assert after.version > max(r.newest for r in reports.values())


@given(situations())
def test_only_chunks_of_the_newest_attempt_are_kept_and_a_whole_result_is_applied(
    situation: tuple[Policy, dict[bytes, FenceReport]],
) -> None:
    policy, reports = situation
    restart = decided(policy, reports)
    first = min(r.iteration for r in reports.values())
    behind = {n: r for n, r in reports.items() if r.iteration == first}
    newest = max(r.attempt for r in behind.values())
    whole = [n for n, r in behind.items() if r.attempt == newest and r.have == ALL]
    assert restart.iteration == first
    assert restart.applied == (bool(whole) or len(behind) < len(reports))
    for n, have in zip(sorted(reports), restart.have, strict=True):
        told = reports[n]
        if told.iteration > first:
            assert chosen(have) == tuple(range(CHUNKS))
        else:
            valid = chosen(told.have) if told.attempt == newest else ()
            assert chosen(have) == tuple(c for c in valid if c or restart.applied)
    assert restart.finish > newest
    if restart.applied:
        assert restart.attempt_id in (RUNNING, BEFORE)
        assert any(chosen(have) == tuple(range(CHUNKS)) for have in restart.have)
    else:
        assert restart.attempt_id == bytes(32)
    assert restart.redo == max(
        (r.attempt + 1 for r in reports.values() if r.iteration == first + restart.applied),
        default=0,
    )


@given(situations())
def test_each_micro_batch_of_the_round_done_again_is_in_exactly_one_members_work(
    situation: tuple[Policy, dict[bytes, FenceReport]],
) -> None:
    policy, reports = situation
    restart = decided(policy, reports)
    work = [chosen(found) for found in restart.work]
    assert sorted(m for found in work for m in found) == list(range(BATCH))
    again = restart.iteration + restart.applied
    for n, found in zip(sorted(reports), work, strict=True):
        if reports[n].iteration == again:
            assert set(chosen(reports[n].working)) <= set(found)


def test_the_result_that_exists_is_named_by_whoever_has_it() -> None:
    policy = star_policy(2)
    ahead = report_of(policy, iteration=6, working=(0, 5))
    late = report_of(policy, attempt=1, have=(1,), working=(0, 1, 2))
    restart = decided(policy, {ONE: late, TWO: ahead})
    assert (restart.applied, restart.iteration, restart.attempt_id) == (True, 5, BEFORE)
    assert (restart.finish, restart.redo) == (2, 1)
    assert [chosen(w) for w in restart.work] == [(1, 2, 3), (0, 4, 5)]
    ready = report_of(policy, attempt=1, have=tuple(range(CHUNKS)))
    restart = decided(policy, {ONE: late, TWO: ready})
    assert (restart.applied, restart.attempt_id, restart.redo) == (True, RUNNING, 0)


def test_chunks_that_are_whole_only_together_are_kept_and_not_called_applied() -> None:
    policy = star_policy(2)
    reports = {ONE: report_of(policy, have=(0, 1)), TWO: report_of(policy, have=(2, 3))}
    restart = decided(policy, reports)
    assert not restart.applied
    assert [chosen(have) for have in restart.have] == [(1,), (2, 3)]  # the word is said anew


def test_a_whole_result_of_an_older_attempt_is_none() -> None:
    policy = star_policy(2)
    old = report_of(policy, have=tuple(range(CHUNKS)))
    restart = decided(policy, {ONE: old, TWO: report_of(policy, attempt=1)})
    assert not restart.applied
    assert restart.have == (b"", b"")


def test_a_fork_has_a_lineage_that_tells_who_made_it_when() -> None:
    policy = star_policy(3)
    reports = {TWO: report_of(policy), THREE: report_of(policy)}
    made = []
    for leader, epoch in ((TWO, (3, 7)), (THREE, (3, 7)), (TWO, (3, 8)), (TWO, (4, 7))):
        restart = decide(policy, reports, epoch, CHUNKS, BATCH, PLANNER, leader, forks=True)
        made.append(restart.policy.view.lineage)
        assert len(made[-1]) == limits.LINEAGE_BYTES
    assert len({policy.view.lineage, *made}) == 5


def test_a_decision_covers_every_member() -> None:
    whole = plain(Restart)
    for change in ({"have": whole.have[:1]}, {"work": (*whole.work, b"")}):
        with pytest.raises(ValueError, match="every member"):
            replace(whole, **change)  # type: ignore[arg-type]
