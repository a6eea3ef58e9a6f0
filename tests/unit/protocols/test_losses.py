"""Losses: what is out of reach, compared with reachability by brute force."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from protocols import limits
from protocols.cluster.view import View, edge
from protocols.recovery.losses import Losses
from protocols.scheduler.fence import Lost

from .records import node, view_of

ONE, TWO, THREE, FOUR = (node(k) for k in range(1, 5))
LATER = limits.LINK_CONFIRM_SECONDS
Report = tuple[bytes, bytes, bool]  # reporter, peer, by reset


def everything(
    view: View, me: bytes, mine: list[bytes], reports: list[Report]
) -> tuple[list[bytes], list[bytes]]:
    """Return which nodes are silent and which are dead, by merging groups of linked nodes."""
    if not reports:
        return [], []
    broken = {frozenset((a, b)) for a, b, _ in reports} | {frozenset((me, n)) for n in view.nodes}
    whole = [{e.low, e.high} for e in view.edges if frozenset((e.low, e.high)) not in broken]
    whole += [{me, n} for n in mine if n in view.nodes]
    here = {me}
    while grown := [pair for pair in whole if pair & here and not pair <= here]:
        here = here.union(*grown)
    silent: list[bytes] = []
    dead: list[bytes] = []
    for name in view.nodes:
        if name in here:
            continue
        near = [n for n in view.nodes if n in here and edge(n, name) in view.edges]
        resets = [any(r == (n, name, True) for r in reports) for n in near]
        (dead if near and all(resets) else silent).append(name)
    return silent, dead


@st.composite
def cases(draw: st.DrawFn) -> tuple[View, list[bytes], list[Report]]:
    """A connected view, the open links of node 1, and reports about links."""
    count = draw(st.integers(1, 6))
    pairs = list(combinations(range(1, count + 1), 2))
    tree = [(draw(st.integers(1, k - 1)), k) for k in range(2, count + 1)]
    more = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    view = view_of(count, [*tree, *more])
    ends = [(e.low, e.high) for e in view.edges] + [(e.high, e.low) for e in view.edges]
    told = st.lists(st.tuples(st.sampled_from(ends or [(b"", b"")]), st.booleans()), max_size=12)
    reports = [(a, b, reset) for (a, b), reset in draw(told)] if ends else []
    near = st.sampled_from([*view.neighbours(node(1)), node(9)])
    return view, draw(st.lists(near, unique=True)), reports


@given(cases())
def test_what_is_lost_is_what_brute_force_cannot_reach(
    case: tuple[View, list[bytes], list[Report]],
) -> None:
    view, mine, reports = case
    losses = Losses()
    for reporter, peer, reset in reports:
        losses.note(0.0, reporter, peer, reset=reset)
    silent, dead = everything(view, node(1), mine, reports)
    early, late = (losses.lost(now, view, node(1), mine) for now in (0.0, LATER))
    assert (early.nodes, early.dead, early.links) == (tuple(silent), tuple(dead), ())
    assert (late.nodes, late.dead) == (early.nodes, early.dead)
    broken = {frozenset((a, b)) for a, b, _ in reports}
    assert late.links == tuple(
        e
        for e in view.edges
        if frozenset((e.low, e.high)) in broken and not {e.low, e.high} & {*silent, *dead}
    )
    for reporter, peer, _ in reports:
        losses.renewed(peer, reporter)
    anew = tuple(e for e in view.edges if frozenset((e.low, e.high)) in broken)
    near = view.neighbours(node(1))
    assert losses.lost(0.0, view, node(1), near) == Lost(links=anew)  # what they carried is lost
    assert losses.deadline(0.0) is None
    losses.forget_all_but(view_of(1, []))
    assert losses.lost(LATER, view, node(1), near) == Lost()


def test_a_link_that_was_not_lost_is_not_renewed() -> None:
    losses = Losses()
    losses.renewed(ONE, TWO)
    assert losses.lost(0.0, view_of(2), ONE, [TWO]) == Lost()


def test_nothing_is_lost_at_first() -> None:
    assert Losses().lost(0.0, view_of(3), ONE, [TWO, THREE]) == Lost()
    assert Losses().deadline(0.0) is None


def test_a_node_is_dead_once_all_who_are_left_saw_it_end() -> None:
    losses, view = Losses(), view_of(3)
    losses.note(0.0, ONE, THREE, reset=True)
    assert losses.lost(0.0, view, ONE, [TWO]) == Lost()  # node 2 may still reach it
    losses.note(0.0, TWO, THREE, reset=False)
    assert losses.lost(0.0, view, ONE, [TWO]) == Lost(nodes=(THREE,))
    losses.note(0.1, TWO, THREE, reset=True)
    assert losses.lost(0.1, view, ONE, [TWO]) == Lost(dead=(THREE,))
    losses.note(0.2, TWO, THREE, reset=False)  # what is proven stays so
    assert losses.lost(0.2, view, ONE, [TWO]) == Lost(dead=(THREE,))


def test_what_the_dead_say_about_others_proves_nothing() -> None:
    losses, view = Losses(), view_of(3, [(1, 2), (2, 3)])
    losses.note(0.0, TWO, THREE, reset=True)
    losses.note(0.0, ONE, TWO, reset=True)
    assert losses.lost(0.0, view, ONE, []) == Lost(nodes=(THREE,), dead=(TWO,))


def test_a_broken_link_counts_from_its_first_report_once_other_causes_are_ruled_out() -> None:
    losses, view = Losses(), view_of(3)
    losses.note(1.0, TWO, THREE, reset=False)
    losses.note(1.2, THREE, TWO, reset=True)
    losses.note(1.25, TWO, THREE, reset=False)
    mine = [TWO, THREE]
    assert losses.lost(1.0 + LATER / 2, view, ONE, mine) == Lost()
    assert losses.deadline(1.0) == 1.0 + LATER
    assert losses.deadline(1.0 + LATER) == 1.2 + LATER
    assert losses.lost(1.0 + LATER, view, ONE, mine) == Lost(links=(edge(TWO, THREE),))
    assert losses.deadline(1.2 + LATER) is None


def test_a_new_view_forgets_links_that_it_lacks_and_keeps_the_others() -> None:
    losses = Losses()
    for a, b in ((ONE, TWO), (THREE, TWO), (ONE, FOUR), (FOUR, ONE)):
        losses.note(0.0, a, b, reset=True)
    losses.forget_all_but(view_of(3))
    assert losses.lost(LATER, view_of(3), ONE, [THREE]) == Lost(dead=(TWO,))
    again = losses.lost(LATER, view_of(4), ONE, [THREE, FOUR])
    assert again == Lost(links=(edge(ONE, TWO), edge(TWO, THREE)))  # node 4 is a way to node 2
    losses.forget_all_but(view_of(3, [(1, 3)]))
    assert losses.lost(LATER, view_of(3), ONE, [TWO, THREE]) == Lost()


def test_a_broken_link_counts_at_the_very_deadline() -> None:
    """For some of these times `since + LATER - since` is less than `LATER`."""
    view = view_of(3)
    for since in (k / 7 for k in range(1, 2000)):
        losses = Losses()
        losses.note(since, ONE, TWO, reset=False)
        due = losses.deadline(since)
        assert due is not None
        assert losses.lost(due, view, ONE, [THREE]).links == (edge(ONE, TWO),)
