"""Neighbours and spare links, checked by removing each link in turn and by trying all sets."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.planner.neighbours import choose_neighbours, spare_links, usual_links
from protocols import limits
from protocols.cluster.view import Edge, Member, View, edge, make_view, parts
from protocols.network.measures import Measures, Rate
from tests.unit.protocols.records import LINEAGE, member, node, view_of

JOINER = 99


@st.composite
def overlays(draw: st.DrawFn, most: int = 6, *, counted: bool = False) -> View:
    """Views of any shape, some members sparse, some pairs apart; with `counted`, some members want
    only so many links."""
    count = draw(st.integers(1, most))
    pairs = list(combinations(range(1, count + 1), 2))
    some = st.lists(st.sampled_from(pairs), unique=True) if pairs else st.just([])
    few = st.lists(st.sampled_from(pairs), max_size=3) if pairs else st.just([])
    links = draw(some)
    apart = draw(few) if draw(st.booleans()) else []
    sparse = draw(st.lists(st.integers(1, count), max_size=2)) if draw(st.booleans()) else []
    links_wanted = draw(st.integers(0, 3)) if counted else 0
    members = [
        replace(member(k), sparse=k in sparse, most_links=links_wanted if k % 2 else 0)
        for k in range(1, count + 1)
    ]
    return make_view(LINEAGE, 1, members, edges_of(links), edges_of(apart))


def edges_of(pairs: list[tuple[int, int]]) -> list[Edge]:
    return [edge(node(a), node(b)) for a, b in pairs]


@st.composite
def measures_of(draw: st.DrawFn, view: View) -> Measures:
    """Measures of some directions of the links of `view`."""
    ends = [(e.low, e.high) for e in view.edges] + [(e.high, e.low) for e in view.edges]
    chosen = draw(st.lists(st.sampled_from(ends), unique=True)) if ends else []
    rates = {e: Rate(0.0, draw(st.integers(1, 5)) * 1e6) for e in chosen}
    return Measures(rates)


def changed(view: View, edges: list[Edge]) -> View:
    return make_view(view.lineage, view.number, list(view.members), edges, view.apart)


def bridges(view: View) -> list[Edge]:
    """Return the links whose removal divides the view into more parts."""
    count = len(parts(view))
    return [
        e
        for e in view.edges
        if len(parts(changed(view, [other for other in view.edges if other != e]))) > count
    ]


def is_safe(view: View) -> bool:
    return len(parts(view)) == 1 and not bridges(view)


def joined(view: View, neighbours: tuple[bytes, ...]) -> View:
    joiner = member(JOINER)
    links = [*view.edges, *(edge(joiner.node, n) for n in neighbours)]
    return make_view(view.lineage, view.number, [*view.members, joiner], links, view.apart)


# Joiners


@given(overlays(counted=True), st.data(), st.integers(2, 6))
def test_whoever_joins_is_safe_and_makes_nobody_less_safe(
    view: View, data: st.DataObject, most: int
) -> None:
    measures = data.draw(measures_of(view))
    chosen = choose_neighbours(view, (), measures, most)
    assert chosen == choose_neighbours(view, (), measures, most)
    assert len(dict.fromkeys(chosen)) == len(chosen)
    assert min(2, len(view.nodes)) <= len(chosen) <= most
    after = joined(view, chosen)
    if len(view.nodes) > 1 and len(parts(view)) == 1:
        before = bridges(view)
        assert all(e in before for e in bridges(after))
        assert is_safe(after) or not is_safe(view)
    full = [n for n in view.nodes if is_full(view, n)]
    if any(n in full for n in chosen):
        free = [n for n in view.nodes if n not in full]
        assert len(free) < 2
        assert len(chosen) <= 2
        assert all(n in chosen for n in free)


def is_full(view: View, name: bytes) -> bool:
    found = view.member(name)
    assert found is not None
    return found.sparse or 0 < found.most_links <= len(view.neighbours(name))


def grown(count: int) -> View:
    """The overlay of members that have joined one after another."""
    view = view_of(1)
    for k in range(2, count + 1):
        links = [*view.edges, *(edge(node(k), n) for n in choose_neighbours(view, (), Measures()))]
        view = make_view(LINEAGE, 1, [*view.members, member(k)], links)
        if k > 2 and k % 5 in (0, 3):  # looking at all of many takes long
            assert is_safe(view)
    return view


@pytest.mark.parametrize("count", [2, 3, 8, 12])
def test_in_a_small_cluster_all_are_linked(count: int) -> None:
    view = grown(count)
    assert len(view.edges) == count * (count - 1) // 2
    added = usual_links(view_of(count, [(1, 2)]), Measures())
    assert sorted(added, key=lambda e: (e.low, e.high)) == list(view.edges)[1:]


@pytest.mark.parametrize("count", [13, 40])
def test_in_a_large_cluster_each_has_some_links(count: int) -> None:
    view = grown(count)
    degrees = [len(view.neighbours(n)) for n in view.nodes]
    assert min(degrees) >= limits.MAX_NEIGHBOURS
    assert max(degrees) <= 2 * limits.MAX_NEIGHBOURS
    assert spare_links(view, Measures()) == ()
    assert usual_links(view, Measures()) == ()
    few = changed(view, [edge(node(k), node(k + 1)) for k in range(1, count)])
    more = changed(few, [*few.edges, *usual_links(few, Measures())])
    degrees = [len(more.neighbours(n)) for n in more.nodes]
    assert max(degrees) <= limits.MAX_NEIGHBOURS
    assert sum(d < limits.MAX_NEIGHBOURS for d in degrees) <= limits.MAX_NEIGHBOURS


def test_a_user_sets_how_many_links_a_device_has() -> None:
    members = [replace(member(k), most_links=2 if k == 1 else 0) for k in range(1, 6)]
    pairs = [(1, 2), (1, 3), (2, 3), (3, 4), (4, 5)]
    view = make_view(LINEAGE, 1, members, edges_of(pairs))
    others = [p for p in combinations(range(2, 6), 2) if p not in pairs]
    added = usual_links(view, Measures())
    assert sorted(added, key=lambda e: (e.low, e.high)) == edges_of(others)
    assert node(1) not in choose_neighbours(view, (), Measures())
    assert len(choose_neighbours(view, (), Measures(), 3)) == 3
    assert len(choose_neighbours(view, (), Measures(), 1)) == 1
    everybody = choose_neighbours(grown(20), (), Measures(), limits.MAX_LINKS_PER_NODE)
    assert len(everybody) >= 19  # but one perhaps, which has as many as it should


def test_fast_members_come_first_and_full_ones_last() -> None:
    pairs = [(1, 2), (1, 3), (1, 4), (2, 3), (4, 5)]
    rates = {(1, 2): 90, (1, 3): 50, (1, 4): 70, (2, 3): 10, (4, 5): 80}
    found = {(node(a), node(b)): Rate(0.0, float(r)) for (a, b), r in rates.items()}
    # medians: n1 70, n2 50, n3 30, n4 75, n5 80; n1 has three links

    def chosen(most: int) -> tuple[bytes, ...]:
        members = [replace(member(k), most_links=most) for k in range(1, 6)]
        view = make_view(LINEAGE, 1, members, edges_of(pairs))
        return choose_neighbours(view, (), Measures(found), most)

    assert chosen(3) == (node(5), node(4), node(2))
    assert chosen(2) == (node(5), node(4))  # node 5 alone has fewer than two
    assert chosen(1) == (node(5),)


def test_a_member_whose_user_named_its_neighbours_is_left_alone() -> None:
    members = [replace(member(k), sparse=k == 1) for k in (1, 2, 3)]
    view = make_view(LINEAGE, 1, members, [edge(node(1), node(2)), edge(node(2), node(3))])
    assert choose_neighbours(view, (), Measures()) == (node(3), node(2))
    assert usual_links(view, Measures()) == ()
    alone = make_view(LINEAGE, 1, members[:2], [edge(node(1), node(2))])
    assert choose_neighbours(alone, (), Measures()) == (node(2), node(1))


def test_a_joiner_gets_exactly_whom_it_names() -> None:
    view = view_of(5)
    assert choose_neighbours(view, ("n4", "n2"), Measures(), 1) == (node(2), node(4))
    assert choose_neighbours(view, ("n4", "nobody", "nobody"), Measures()) == (node(4),)
    default = choose_neighbours(view, (), Measures())
    assert choose_neighbours(view, ("x", "y"), Measures()) == default == view.nodes


def test_a_joiner_keeps_a_link_free() -> None:
    count = limits.MAX_LINKS_PER_NODE + 5
    members = [replace(member(k), name="same") for k in range(count)]
    view = make_view(LINEAGE, 1, members, [edge(node(0), node(1))])
    chosen = choose_neighbours(view, ("same",), Measures())
    assert chosen == view.nodes[: limits.MAX_LINKS_PER_NODE - 1]


# Spare links


def allowed(view: View, *, loose: bool) -> list[Edge]:
    """Links that may be added; `loose`: to sparse members, too."""
    pairs = [edge(*p) for p in combinations(view.nodes, 2)]
    return [
        e
        for e in pairs
        if e not in view.edges
        and e not in view.apart
        and (loose or not (is_full(view, e.low) or is_full(view, e.high)))
    ]


@given(overlays(), st.data())
def test_spare_links_make_an_overlay_as_safe_as_can_be(view: View, data: st.DataObject) -> None:
    measures = data.draw(measures_of(view))
    added = spare_links(view, measures)
    assert list(added) == sorted(added, key=lambda e: (e.low, e.high))
    assert added == spare_links(view, measures)
    assert all(e in allowed(view, loose=True) for e in added)
    after = changed(view, [*view.edges, *added])
    possible = changed(view, [*view.edges, *allowed(view, loose=True)])
    assert parts(after) == parts(possible)
    strict = allowed(view, loose=False)
    fuller = changed(view, [*after.edges, *strict])
    assert bridges(after) == bridges(fuller)
    if is_safe(view):
        assert added == ()


@given(overlays(counted=True))
def test_who_wants_no_more_links_gets_them_only_when_cut_off(view: View) -> None:
    added = spare_links(view, Measures())
    possible = changed(view, [*view.edges, *allowed(view, loose=True)])
    assert parts(changed(view, [*view.edges, *added])) == parts(possible)
    if len(parts(view)) == 1:
        assert all(e in allowed(view, loose=False) for e in added)


@given(overlays().filter(lambda view: len(parts(view)) == 1))
def test_no_fewer_spare_links_would_do(view: View) -> None:
    free = make_view(
        LINEAGE, 1, [replace(m, sparse=False, most_links=0) for m in view.members], view.edges
    )
    added = spare_links(free, Measures())
    choice = allowed(free, loose=True)
    if len(free.nodes) == 2:
        assert added == ()
        return
    fewer = [
        chosen
        for count in range(len(added))
        for chosen in combinations(choice, count)
        if is_safe(changed(free, [*free.edges, *chosen]))
    ]
    assert not fewer
    assert is_safe(changed(free, [*free.edges, *added]))


@given(overlays(5))
def test_parts_are_joined_with_at_most_one_link_too_many(view: View) -> None:
    free = make_view(
        LINEAGE, 1, [replace(m, sparse=False, most_links=0) for m in view.members], view.edges
    )
    added = spare_links(free, Measures())
    choice = allowed(free, loose=True)
    fewer = [
        chosen
        for count in range(len(added) - 1)
        for chosen in combinations(choice, count)
        if is_safe(changed(free, [*free.edges, *chosen]))
    ]
    assert not fewer


def test_a_chain_becomes_a_ring_and_a_star_is_tied_in_pairs() -> None:
    chain = view_of(200, [(k, k + 1) for k in range(1, 200)])
    assert spare_links(chain, Measures()) == (edge(node(1), node(200)),)
    star = view_of(200, [(1, k) for k in range(2, 201)])
    added = spare_links(star, Measures())
    assert len(added) == 100
    assert is_safe(changed(star, [*star.edges, *added]))


def test_two_stars_are_tied_to_each_other() -> None:
    # leaves 1 and 2 on 5, 3 and 4 on 6: ties within each star would leave 5-6 alone
    view = view_of(6, [(1, 5), (2, 5), (3, 6), (4, 6), (5, 6)])
    added = spare_links(view, Measures())
    assert len(added) == 2
    assert is_safe(changed(view, [*view.edges, *added]))


def test_ends_are_those_with_few_links_then_fast_ones() -> None:
    # two triangles that one link joins; 1 and 4 hold it, 6 has the fastest links
    shape = [(1, 2), (2, 3), (1, 3), (4, 5), (5, 6), (4, 6), (1, 4)]
    fast = {(node(5), node(6)): Rate(0.0, 9e6), (node(4), node(6)): Rate(0.0, 9e6)}
    slow = {(node(4), node(5)): Rate(0.0, 1e6)}
    measures = Measures(fast | slow)
    assert spare_links(view_of(6, shape), measures) == (edge(node(2), node(6)),)
    wider = view_of(7, [*shape, (6, 7), (5, 7), (3, 7)])
    loose = view_of(8, [*[(e.low[-1], e.high[-1]) for e in wider.edges], (1, 8)])
    assert spare_links(loose, measures) == (edge(node(2), node(8)),)


def test_a_user_who_named_neighbours_gets_others_only_when_cut_off() -> None:
    def room(*links: tuple[int, int]) -> View:
        members: list[Member] = [replace(member(k), sparse=k == 4) for k in (1, 2, 3, 4)]
        return make_view(LINEAGE, 1, members, edges_of(list(links)))

    triangle = ((1, 2), (2, 3), (1, 3))
    assert spare_links(room(*triangle, (3, 4)), Measures()) == ()
    assert spare_links(room(*triangle), Measures()) == (edge(node(1), node(4)),)


def test_a_member_takes_no_more_links_than_it_can_have() -> None:
    most = limits.MAX_LINKS_PER_NODE
    ring = [*((k, k + 1) for k in range(2, most + 1)), (2, most + 1)]
    last = most + 2
    for hub_links in (most, most - 1):
        star = [(1, k) for k in range(2, hub_links + 2)]
        members = [member(k) for k in range(1, last + 1)]
        apart = edges_of([(k, last) for k in range(3, most + 2)])
        view = make_view(LINEAGE, 1, members, edges_of([*star, *ring, (2, last)]), apart)
        only = (edge(node(1), node(last)),)
        assert spare_links(view, Measures()) == (() if hub_links == most else only)
