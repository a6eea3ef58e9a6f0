"""Who still gets the rounds: no joiner whose link has ended, whatever policy names its join."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from protocols.cluster.policy import Pull
from protocols.member.followers import Followers
from tests.unit.protocols.clusters import cluster, node_of

if TYPE_CHECKING:
    from protocols.cluster.policy import Policy
    from protocols.member.context import Context

JOINER = b"j" * 32
NEXT = 1 << 20  # a version that is stored, and newer than the one in force


def set_up() -> tuple[Context, Followers]:
    context = node_of(cluster(0)[1][0]).context
    return context, Followers(context)


def naming(context: Context, join: int, *, beside: bool = False) -> Policy:
    """Return the policy in force with a pull of the joiner in it."""
    policy = context.policy
    assert policy is not None
    joiner = replace(policy.view.members[0], node=JOINER, name="joiner")
    pull = Pull(join, joiner, (context.node,), context.node, beside, join)
    return replace(policy, pulls=(pull,))


def test_a_joiner_follows_until_its_link_ends() -> None:
    context, followers = set_up()
    assert not followers.has_failed(JOINER)
    context.policy = naming(context, 7)
    context.store(context.policy)
    assert not followers.has_failed(JOINER)
    followers.link_down(b"x" * 32)
    assert not followers.has_failed(JOINER)
    followers.link_down(JOINER)
    assert followers.has_failed(JOINER)
    followers.link_down(b"x" * 32)
    assert followers.has_failed(JOINER), "a new link changes nothing"
    context.policy = naming(context, 8)
    context.store(context.policy)
    assert not followers.has_failed(JOINER), "its next join begins anew"


def test_nothing_is_forwarded_for_a_join_that_was_given_up() -> None:
    context, followers = set_up()
    context.policy = naming(context, 7)
    context.store(context.policy)
    followers.given_up(6)
    assert not followers.has_failed(JOINER)
    followers.given_up(7)
    assert followers.has_failed(JOINER)


def test_a_policy_that_is_not_in_force_yet_counts() -> None:
    context, followers = set_up()
    later = replace(naming(context, 7), version=NEXT)
    context.store(later)
    followers.link_down(JOINER)
    context.policy = later
    assert followers.has_failed(JOINER)


def test_a_link_that_ends_while_the_joiner_copies_beside_the_training_is_not_the_one() -> None:
    context, followers = set_up()
    context.policy = naming(context, 7, beside=True)
    context.store(context.policy)
    followers.link_down(JOINER)
    context.policy = replace(naming(context, 7), version=NEXT)
    context.store(context.policy)
    assert not followers.has_failed(JOINER)


def test_without_a_policy_no_join_has_failed() -> None:
    context, followers = set_up()
    context.policy = None
    assert not followers.has_failed(JOINER)
