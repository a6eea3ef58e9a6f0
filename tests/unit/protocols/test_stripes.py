"""Stripes: who holds what, how that is levelled, and which paths sums take."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from protocols.cluster.policy import Policy
from protocols.cluster.stripes import (
    Stripe,
    held_by,
    orphans,
    owned_by,
    renumbered,
    rooted,
    smallest_losses,
    stripes_fault,
    towards,
    with_learned,
)
from protocols.cluster.view import View, edge, make_view
from protocols.cluster.ways import Way
from protocols.errors import RemoteProtocolError
from protocols.member.learning import lender
from protocols.member.orders import check_policy
from protocols.member.round_specs import Lanes
from protocols.scheduler.levelling import (
    AT_ONCE,
    MOST_LEARNED,
    MOST_LEARNED_BYTES,
    Haste,
    level,
    owned,
)
from tests.simulation.world import World
from tests.unit.protocols.clusters import node_of
from tests.unit.protocols.records import LINEAGE, member

if TYPE_CHECKING:
    from collections.abc import Sequence


def view_of(size: int, *, missing: tuple[tuple[int, int], ...] = ()) -> View:
    """Return a view of `size` members, all linked but the pairs `missing`."""
    members = [member(k) for k in range(1, size + 1)]
    pairs = [(a, b) for a in range(size) for b in range(a)]
    edges = [
        edge(members[a].node, members[b].node)
        for a, b in pairs
        if (a, b) not in missing and (b, a) not in missing
    ]
    return make_view(LINEAGE, 1, members, edges)


def stripe(*holders: int, learners: tuple[int, ...] = ()) -> Stripe:
    return Stripe(bytes(holders), bytes(learners))


def policy_of(view: View, *stripes: Stripe, ways: tuple[Way, ...] = ()) -> Policy:
    """Return a policy whose tree is a line, the first member at its root."""
    parents = (b"", *view.nodes[:-1])
    shares = (1,) * len(view.nodes)
    return Policy(1, 1, view, parents, shares, (), "", ways, stripes)


def test_who_holds_and_who_owns() -> None:
    stripes = (stripe(0, 1), stripe(1, 2), stripe(0))
    assert held_by(stripes, 1) == (0, 1)
    assert owned_by(stripes, 0) == (0, 2)
    assert stripe(2, 0, learners=(1,)).keepers == bytes([0, 1])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (Stripe(b""), "no holder"),
        (stripe(0, 0), "twice"),
        (stripe(0, learners=(0,)), "twice"),
        (stripe(5), "no member"),
        (stripe(0, learners=(2,)), "without a link"),
    ],
)
def test_what_is_wrong_with_stripes(wrong: Stripe, says: str) -> None:
    view = view_of(3, missing=((0, 2),))
    assert says in stripes_fault(view, (stripe(0), wrong))
    with pytest.raises(ValueError, match=says):
        policy_of(view, wrong)


def test_a_copy_becomes_the_owner_where_the_owner_is_gone() -> None:
    old, new = (b"a", b"b", b"c"), (b"b", b"c")
    stripes = (stripe(0, 2, learners=(1,)), stripe(1, 0), stripe(0))
    found = renumbered(stripes, old, new)
    assert found == (stripe(1), stripe(0), Stripe(b""))
    assert orphans(found) == (2,)
    learned = with_learned(found, new, {b"b": (2, 9), b"c": (0,)})
    assert learned == (stripe(1), stripe(0), stripe(0))


def test_the_smallest_sets_of_members_that_must_not_be_lost_together() -> None:
    ring = [Stripe(bytes([k, (k + 1) % 4])) for k in range(4)]
    assert smallest_losses(ring, range(4)) == ((0, 1), (0, 3), (1, 2), (2, 3))
    assert smallest_losses(ring, (0, 1, 3)) == ((1,), (3,))
    assert smallest_losses([*ring, Stripe(b"\2", b"\0")], range(4)) == ((2,),), "0 only learns it"
    assert smallest_losses(ring, (0, 1)) == ((),)


def test_a_tree_with_another_root() -> None:
    line = bytes([0, 0, 1, 2])
    assert rooted(line, 3) == bytes([1, 2, 3, 3])
    assert rooted(line, 0) == line
    assert rooted(line, 1) == bytes([1, 1, 1, 2])


def test_paths_from_the_root() -> None:
    line = bytes([0, 0, 1, 2])
    assert towards(line, bytes([3])) == {3: (), 2: (3,), 1: (2,), 0: (1,)}
    assert towards(line, b"") == {}
    star = bytes(4)
    assert towards(star, bytes([1, 3])) == {1: (), 3: (), 0: (1, 3)}


def test_sums_and_results_take_the_paths_of_the_owner() -> None:
    view = view_of(4)
    line = bytes([1, 1, 1, 2])  # its root is member 1
    way = Way(line, line, 1)
    policy = policy_of(view, stripe(1, 3), stripe(0, 2), ways=(way,))
    lanes = {n: Lanes().of(policy, n) for n in view.nodes}
    assert {turns for _, turns in lanes.values()} == {(0, 1)}
    a, b, c, d = (lanes[n][0] for n in view.nodes)
    assert b[0].owns
    assert b[0].sums_to == (view.nodes[2],)
    assert c[0].sums_from == view.nodes[1]
    assert c[0].sums_to == (view.nodes[3],)
    assert not c[0].keeps
    assert d[0].keeps
    assert d[0].sums_from == view.nodes[2]
    assert a[0].sums_from is None
    # There is no way to the owner of the other stripe, which has a link to each: a star.
    assert a[1].owns
    assert a[1].children == view.nodes[1:]
    assert c[1].keeps


def test_an_owners_stripes_are_divided_among_its_ways_as_their_weights_say() -> None:
    view = view_of(3)
    line, star = Way(bytes([0, 0, 1]), bytes([0, 0, 1]), 2), Way(bytes(3), bytes(3), 1)
    policy = policy_of(view, *(stripe(0) for _ in range(6)), ways=(line, star))
    lanes, turns = Lanes().of(policy, view.nodes[2])
    assert turns == tuple(range(6))
    assert [lane.parent for lane in lanes] == [view.nodes[k] for k in (1, 0, 1, 1, 0, 1)]


def test_a_stripe_takes_a_way_on_which_its_copy_is_next_to_the_owner_if_one_is_free() -> None:
    view = view_of(4)
    # Next to the owner, member 0, is member 2 on the first of these ways, and 3 on the other.
    two, three = (Way(bytes(t), bytes(t), 1) for t in ([0, 0, 0, 2], [0, 0, 3, 0]))
    policy = policy_of(view, stripe(0, 3), stripe(0, 2), stripe(0, 3), ways=(two, three))
    lanes, _ = Lanes().of(policy, view.nodes[0])
    to = [tuple(view.nodes.index(n) for n in lane.sums_to) for lane in lanes]
    # The ways have three turns, of which the first one has two: one sum goes by way of member 2.
    assert to == [(3,), (2,), (2,)]


def test_without_links_to_all_the_tree_is_turned() -> None:
    view = view_of(3, missing=((0, 2),))
    policy = policy_of(view, stripe(2))
    lanes = [Lanes().of(policy, n)[0][0] for n in view.nodes]
    assert [lane.parent for lane in lanes] == [view.nodes[1], view.nodes[2], None]


def test_who_lends() -> None:
    view = view_of(3, missing=((0, 2),))
    policy = policy_of(view, stripe(0, 1, learners=(2,)))
    assert lender(policy, (0, view.nodes[2])) == view.nodes[1]


def test_a_policy_with_another_number_of_stripes_is_refused() -> None:
    context = node_of(World(0).found()).context
    policy = context.policy
    assert policy is not None
    with pytest.raises(RemoteProtocolError, match="number of stripes"):
        check_policy(context, replace(policy, version=2, stripes=(stripe(0),)))


# --- levelling ------------------------------------------------------------------------------------


def levelled(
    view: View, stripes: tuple[Stripe, ...], copies: int, how: Haste = AT_ONCE
) -> tuple[Stripe, ...]:
    """Level again and again, each learner learning at once; check each step."""
    for _ in range(200):
        found = level(view, stripes, copies, haste=how)
        assert not stripes_fault(view, found)
        assert sum(len(s.learners) for s in found) <= MOST_LEARNED
        if found == stripes and not any(s.learners for s in found):
            return found
        learned = {(n, view.nodes[k]) for n, s in enumerate(found) for k in s.learners}
        stripes = level(view, found, copies, (), learned, how)
        assert not stripes_fault(view, stripes)
    raise AssertionError("it never ends")


@pytest.mark.parametrize("seed", range(30))
def test_levelling_ends_with_enough_copies_and_equal_loads(seed: int) -> None:
    dice = random.Random(seed)
    size, copies, count = dice.randint(1, 7), dice.randint(0, 3), dice.randint(1, 40)
    view = view_of(size)
    start = tuple(stripe(dice.randrange(size)) for _ in range(count))
    found = levelled(view, start, copies)
    wanted = min(copies + 1, size)
    assert all(len(s.holders) == wanted and not s.learners for s in found)
    held = [len(held_by(found, k)) for k in range(size)]
    owns = [len(owned_by(found, k)) for k in range(size)]
    assert max(held) - min(held) <= 1
    assert max(owns) - min(owns) <= 1


def gains(before: tuple[Stripe, ...], after: tuple[Stripe, ...]) -> int:
    """Return how many stripes members hold that they did not hold before."""
    pairs = zip(before, after, strict=True)
    return sum(len(set(new.holders) - set(old.holders)) for old, new in pairs)


@pytest.mark.parametrize("size", [2, 3, 4, 7, 8])
@pytest.mark.parametrize("copies", [0, 1, 2])
def test_a_join_moves_no_more_than_the_newcomers_part(size: int, copies: int) -> None:
    count, joined = 60, view_of(size + 1)
    before = levelled(view_of(size), (stripe(0),) * count, copies)
    after = levelled(joined, before, copies)
    assert gains(before, after) == len(held_by(after, size))
    assert len(held_by(after, size)) <= -(-count * min(size + 1, copies + 1) // (size + 1))


@pytest.mark.parametrize("size", [3, 4, 5, 8, 9])
@pytest.mark.parametrize("copies", [1, 2])
def test_a_loss_moves_little_more_than_what_was_lost(size: int, copies: int) -> None:
    count, left = 60, view_of(size - 1)
    whole = levelled(view_of(size), (stripe(0),) * count, copies)
    nodes = view_of(size).nodes
    before = renumbered(whole, nodes, nodes[:-1])
    assert not orphans(before)
    after = levelled(left, before, copies)
    lacking = count * min(size - 1, copies + 1) - sum(len(s.holders) for s in before)
    assert lacking <= gains(before, after) <= 1.25 * lacking


def test_who_goes_holds_only_what_nobody_else_does() -> None:
    view = view_of(3)
    going = (view.nodes[0],)
    found = level(view, (stripe(0), stripe(0, 1), stripe(2, 0)), 1, going)
    assert found[0].holders == bytes([0])
    assert found[0].learners
    assert 0 not in found[1].holders
    assert 0 not in found[2].holders


def test_nobody_learns_who_has_no_link_to_a_holder() -> None:
    view = view_of(3, missing=((0, 1), (0, 2)))
    assert level(view, (stripe(0),), 1) == (stripe(0),)
    assert level(view, (stripe(0), stripe(0), stripe(0)), 0) == (stripe(0),) * 3


def test_who_has_lost_the_holder_that_it_was_linked_to_learns_no_more() -> None:
    view = view_of(3, missing=((0, 2),))
    assert level(view, (stripe(0, 1, learners=(2,)),), 1, going=(view.nodes[1],)) == (stripe(0),)
    assert level(view, (stripe(0, learners=(2,)),), 1) == (stripe(0, learners=(1,)),)


def test_copies_are_on_members_that_round_alike_where_that_makes_nobody_hold_more() -> None:
    view = view_of(4)
    classes = ("x86", "arm", "arm", "x86")
    members = tuple(
        replace(m, numeric_class=name) for m, name in zip(view.members, classes, strict=True)
    )
    view = replace(view, members=members)
    start = tuple(stripe(k % 4) for k in range(16))
    found = levelled(view, start, 1)
    assert all(len({classes[k] for k in s.holders}) == 1 for s in found)
    # One alone of its class takes its part, too.
    single = replace(view, members=(*members[:3], replace(members[3], numeric_class="gpu")))
    held = [len(held_by(levelled(single, start, 1), k)) for k in range(4)]
    assert held == [8, 8, 8, 8]


def test_few_large_stripes_are_learned_at_once() -> None:
    view = view_of(2)
    start = (stripe(0),) * 20
    for size, most in ((0, 20), (MOST_LEARNED_BYTES // 3, 3), (MOST_LEARNED_BYTES * 2, 1)):
        found = level(view, start, 1, haste=Haste(size))
        assert sum(len(s.learners) for s in found) == most


def haste(rates: dict[tuple[int, int], float], size: int, step_s: float = 0.0) -> Haste:
    """Links between these members of `view_of` carry so many stripes of `size` bytes a second."""
    nodes = view_of(9).nodes
    known = {(nodes[a], nodes[b]): rate * size for (a, b), rate in rates.items()}
    return Haste(size, step_s, lambda a, b: known.get((a, b)))


def test_a_link_is_given_what_it_carries_in_a_step() -> None:
    view = view_of(2)
    start = (stripe(0),) * 40
    for step_s, most in ((0.0, 4), (0.5, 4), (2.0, 8), (100.0, 40)):
        found = level(view, start, 1, haste=haste({(0, 1): 8.0}, 1000, step_s))
        assert sum(len(s.learners) for s in found) == most
        again = level(view, found, 1, haste=haste({(0, 1): 8.0}, 1000, step_s))
        assert again == found
    # At least one, however slow the link is; and what is not known does not count.
    assert sum(len(s.learners) for s in level(view, start, 1, haste=haste({(0, 1): 0.1}, 9))) == 1
    assert sum(len(s.learners) for s in level(view, start, 1, haste=haste({}, 9))) == 40
    # Those under way count, also where the link has become slower.
    some = tuple(replace(s, learners=b"\1") if k < 3 else s for k, s in enumerate(start))
    assert level(view, some, 1, haste=haste({(0, 1): 4.0}, 9)) == some


def test_who_waits_for_a_slow_link_is_not_passed_over_for_who_holds_more() -> None:
    # All links to member 3 are slow, and it holds nothing yet: member 2 gets none of its part.
    view = view_of(4)
    start = tuple(stripe(k % 3) for k in range(24))
    slow = haste({(k, 3): 2.0 for k in range(3)}, 9)
    found = level(view, start, 0, haste=slow)
    assert [len(s.learners) for s in found].count(1) == 3
    assert all(s.learners in (b"", b"\3") for s in found)
    end = levelled(view, start, 0, slow)
    assert gains(start, end) == 6


# --- owners ---------------------------------------------------------------------------------------


def star_to(root: int, size: int, weight: int) -> Way:
    parents = bytes([root]) * size
    return Way(parents, parents, weight)


def test_owners_follow_the_weights_of_ways_as_far_as_they_hold_stripes() -> None:
    stripes = (stripe(0, 1), stripe(0, 2), stripe(1, 2), stripe(1, 0))
    assert owned(stripes, ()) == (stripe(0, 1), stripe(2, 0), stripe(1, 2), stripe(1, 0))
    most = owned(stripes, (star_to(2, 3, 1),))
    assert [s.owner for s in most] == [0, 2, 2, 1]  # member 2 holds no more
    exact = owned(stripes, (star_to(0, 3, 3), star_to(1, 3, 1)))
    assert [len(owned_by(exact, k)) for k in range(3)] == [3, 1, 0]
    assert owned(exact, (star_to(0, 3, 3), star_to(1, 3, 1))) == exact
    assert owned((), (star_to(0, 3, 1),)) == ()
    # A way may lead to a member that holds nothing any more.
    assert owned((stripe(0),), (star_to(2, 3, 1),)) == (stripe(0),)


def test_who_is_away_owns_only_what_nobody_else_holds() -> None:
    stripes = (stripe(0, 1), stripe(0, 2), stripe(0), stripe(1, 0))
    for ways in ((), (star_to(0, 3, 1),)):
        found = owned(stripes, ways, (0,))
        assert [s.owner for s in found] == [1, 2, 0, 1]
        assert owned(found, ways, (0,)) == found
    view = view_of(3)
    found = level(view, stripes, 1, away=view.nodes[:1])
    assert [s.owner for s in found] == [1, 2, 0, 1]


def test_an_owner_is_relieved_by_way_of_a_third_member() -> None:
    stripes = (stripe(0, 1), stripe(0, 1), stripe(1, 2))
    found = owned(stripes, (star_to(1, 3, 1), star_to(2, 3, 1), star_to(0, 3, 1)))
    assert [s.owner for s in found] == [1, 0, 2]


@pytest.mark.parametrize("seed", range(30))
def test_owners_are_as_near_to_what_is_asked_as_holders_allow(seed: int) -> None:
    dice = random.Random(seed)
    size, count = dice.randint(1, 6), dice.randint(1, 6)
    stripes = tuple(
        stripe(*dice.sample(range(size), dice.randint(1, min(3, size)))) for _ in range(count)
    )
    weights = [dice.randint(0, 5) for _ in range(size)]
    ways = tuple(star_to(k, size, weight) for k, weight in enumerate(weights) if weight)
    found = owned(stripes, ways)
    assert [set(s.holders) for s in found] == [set(s.holders) for s in stripes]
    assert owned(found, ways) == found

    def miss(owners: Sequence[int]) -> int:
        asked = [weight * count for weight in weights]
        has = [owners.count(k) * (sum(weights) or 1) for k in range(size)]
        return sum((a - b) ** 2 for a, b in zip(asked, has, strict=True))

    every = itertools.product(*(s.holders for s in stripes))
    assert miss([s.owner for s in found]) == min(map(miss, every))
