"""Views: equal views have equal bytes, ill-formed ones cannot be built, and answers are right."""

from __future__ import annotations

import random
from dataclasses import replace
from hashlib import sha256
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.transport.kinds import ADDRESSES
from protocols.cluster.view import Edge, View, edge, make_view, parts
from protocols.errors import RemoteProtocolError

from .records import LINEAGE, member, node, view_of, views


def test_the_ends_of_a_link_are_ordered_and_different() -> None:
    assert edge(node(2), node(1)) == edge(node(1), node(2)) == Edge(node(1), node(2))
    for low, high in ((2, 1), (1, 1)):
        with pytest.raises(ValueError, match="ordered and different"):
            Edge(node(low), node(high))


def test_a_members_id_is_that_of_its_certificate() -> None:
    assert replace(member(1), certificate=b"x", node=sha256(b"x").digest()).certificate == b"x"
    with pytest.raises(ValueError, match="certificate"):
        replace(member(1), certificate=b"x")


GOOD = ("pi.local:1", "pi.local.:65535", "10.0.0.1:7430", "[fe80::1%eth0.5]:1")
BAD = ("", "pi", "pi:", ":1", "pi:0", "pi:65536", "pi:x", "a..b:1", "[::1:1", "[a]:1", "::1:1")
WORSE = ("a b:1", "ü:1", "a\x1b:1", "x" * 64 + ":1")


def test_a_members_addresses_are_addresses() -> None:
    assert replace(member(1), addresses=GOOD).addresses == GOOD
    for address in BAD + WORSE:
        with pytest.raises(ValueError, match="HOST:PORT"):
            replace(member(1), addresses=(address,))


@given(st.text("ab.:[]%1 ü\n", max_size=12))
def test_what_the_join_takes_for_an_address_is_one_for_a_member(text: str) -> None:
    try:
        (address,) = ADDRESSES.decode([text])
    except RemoteProtocolError:
        return
    assert replace(member(1), addresses=(address,)).addresses == (address,)


def test_views_that_do_not_fit_together_cannot_be_built() -> None:
    one, two, three = member(1), member(2), member(3)
    first, second = edge(node(1), node(2)), edge(node(1), node(3))
    with pytest.raises(ValueError, match="at least one"):
        View(LINEAGE, 1, (), (), (), ())
    for members in ((two, one), (one, one), (one, replace(one, incarnation=2))):
        with pytest.raises(ValueError, match="ordered and different"):
            View(LINEAGE, 1, members, (), (), ())
    for edges in ((second, first), (first, first)):
        with pytest.raises(ValueError, match="links must be ordered"):
            View(LINEAGE, 1, (one, two, three), edges, (), ())
    for stranger in (edge(node(0), node(1)), edge(node(1), node(3))):
        with pytest.raises(ValueError, match="must be members"):
            View(LINEAGE, 1, (one, two), (stranger,), (), ())


@given(views(), st.randoms(use_true_random=False))
def test_the_order_in_which_a_view_is_told_does_not_matter(
    view: View, chance: random.Random
) -> None:
    members = list(view.members)
    stranger = edge(view.nodes[0], b"\xff" * 33)
    edges = [*view.edges, *view.edges, stranger]
    chance.shuffle(members)
    chance.shuffle(edges)
    apart, gone = view.apart[::-1], view.expelled
    assert make_view(view.lineage, view.number, members, edges, apart, gone) == view


@given(views())
def test_a_view_answers_what_its_members_and_links_say(view: View) -> None:
    assert view.nodes == tuple(m.node for m in view.members)
    assert [view.member(n) for n in view.nodes] == list(view.members)
    assert view.member(b"") is None
    pairs = [(e.low, e.high) for e in view.edges]
    for a in view.nodes:
        linked = [b for b in view.nodes if (a, b) in pairs or (b, a) in pairs]
        assert view.neighbours(a) == tuple(linked)
    assert view.neighbours(b"") == ()


@given(st.integers(1, 9))
def test_two_majorities_always_share_a_member(count: int) -> None:
    view = view_of(count, [])
    assert 2 * view.majority > count
    assert 2 * (view.majority - 1) <= count


@given(views(largest=8))
def test_parts_are_what_can_reach_each_other(view: View) -> None:
    reach = {a: {a} | set(view.neighbours(a)) for a in view.nodes}
    for _ in view.nodes:
        reach = {a: set().union(*(reach[b] for b in near)) for a, near in reach.items()}
    found = parts(view)
    assert sorted(n for part in found for n in part) == list(view.nodes)
    assert found == sorted(found)
    for part in found:
        assert all(reach[n] == set(part) for n in part)
        assert part == tuple(sorted(part))


def test_parts_of_known_views() -> None:
    whole = view_of(4)
    assert parts(whole) == [whole.nodes]
    assert parts(view_of(4, [])) == [(n,) for n in whole.nodes]
    halves = view_of(4, [(1, 3), (2, 4)])
    assert parts(halves) == [(node(1), node(3)), (node(2), node(4))]
    assert len(list(combinations(range(4), 2))) == len(whole.edges)
