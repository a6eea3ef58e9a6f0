"""Policies: no ill-formed one can be built, so whoever holds one may follow it without checks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from protocols import limits
from protocols.cluster.policy import Policy, Pull
from protocols.cluster.view import edge
from protocols.errors import RemoteProtocolError
from protocols.wire.fields import decode_fields, encode_fields

from .records import member, node, policies, star_policy, view_of

CHAIN = view_of(3, [(1, 2), (2, 3)])
PULL = Pull(7, member(9), (node(1), node(2)), node(2))


def chain_policy(*parents: int, shares: tuple[int, ...] = (1, 1, 1)) -> Policy:
    """Return a policy over the chain 1 - 2 - 3; parent 0 stands for none."""
    return Policy(1, 1, CHAIN, tuple(node(p) if p else b"" for p in parents), shares, (), "test")


def test_every_tree_along_the_chain_is_taken() -> None:
    assert chain_policy(0, 1, 2).tree.root == node(1)
    assert chain_policy(2, 0, 2).tree.root == node(2)
    assert chain_policy(2, 3, 0).tree.root == node(3)


@pytest.mark.parametrize(
    ("parents", "why"),
    [
        ((0, 1), "cover every member"),
        ((0, 1, 2, 3), "cover every member"),
        ((0, 0, 2), "both roots"),
        ((2, 1, 2), "under no root"),
        ((0, 1, 1), "no link to its parent"),
        ((0, 2, 2), "no link to its parent"),
        ((0, 9, 2), "is no member"),
    ],
)
def test_what_is_no_tree_is_refused(parents: tuple[int, ...], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        chain_policy(*parents)


def test_a_cycle_beside_the_root_is_refused() -> None:
    parents = (b"", node(3), node(4), node(2))
    with pytest.raises(ValueError, match="under no root"):
        Policy(1, 1, view_of(4), parents, (1, 1, 1, 1), (), "test")


@pytest.mark.parametrize(
    "shares", [(1, 1), (1, 1, 1, 1), (0, 0, 0), (limits.MAX_MICRO_BATCHES, 1, 0)]
)
def test_shares_cover_the_members_and_a_possible_batch(shares: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="polic"):
        chain_policy(0, 1, 2, shares=shares)
    assert chain_policy(0, 1, 2, shares=(limits.MAX_MICRO_BATCHES, 0, 0)).tree.root == node(1)


def test_pulls_go_from_members_to_a_node_that_is_none() -> None:
    assert star_policy(2, (PULL,)).pulls == (PULL,)
    for pull in (replace(PULL, joiner=member(1)), replace(PULL, sources=(node(2), node(3)))):
        with pytest.raises(ValueError, match="to a node that is none"):
            star_policy(2, (pull,))
    with pytest.raises(ValueError, match="parent must be one of its sources"):
        replace(PULL, parent=node(3))
    with pytest.raises(ValueError, match="sources must be different"):
        replace(PULL, sources=(node(2), node(2)))
    for feeds in ((1,), (0, 0), (limits.MAX_FEED_WEIGHT, 1)):
        with pytest.raises(ValueError, match="feeds"):
            replace(PULL, feeds=feeds)
    with pytest.raises(ValueError, match="one pull"):
        star_policy(2, (PULL, replace(PULL, join=8)))
    two = star_policy(2, (PULL, Pull(8, member(8), (node(1),), node(1))))
    assert len(two.pulls) == 2
    assert two.linked_to(node(1)) == (node(2), node(9), node(8))
    assert two.linked_to(node(2)) == (node(1), node(9))
    assert two.linked_to(node(9)) == ()


def test_numbers_that_a_bulk_header_cannot_carry_are_refused() -> None:
    policy = star_policy(2)
    for large in (
        replace(policy, version=1 << 32),
        replace(policy, view=replace(policy.view, number=1 << 32)),
    ):
        with pytest.raises(RemoteProtocolError):
            decode_fields(Policy, encode_fields(large))


def check_tree(policy: Policy) -> None:
    """Walk down from the root: every member is found, once, along a link."""
    nodes = policy.view.nodes
    assert policy.tree.parent(policy.tree.root) is None
    seen = [policy.tree.root]
    for at in seen:
        children = policy.tree.children(at)
        assert children == tuple(sorted(children))
        for child in children:
            assert policy.tree.parent(child) == at
            assert edge(child, at) in policy.view.edges
        seen += children
    assert sorted(seen) == list(nodes)


@given(policies())
def test_a_policys_tree_hangs_together(policy: Policy) -> None:
    check_tree(policy)


@given(policies())
def test_micro_batches_are_dealt_out_once_each_in_the_order_of_members(policy: Policy) -> None:
    dealt = [m for n in policy.view.nodes for m in policy.micro_batches(n)]
    assert dealt == list(range(sum(policy.shares)))
    counts = tuple(len(policy.micro_batches(n)) for n in policy.view.nodes)
    assert counts == policy.shares


@given(policies())
def test_every_joiner_has_its_pull_and_members_that_feed_it(policy: Policy) -> None:
    assert all(policy.pull_of(n) is None for n in policy.view.nodes)
    for pull in policy.pulls:
        assert policy.pull_of(pull.joiner.node) == pull
        feeding = [n for n in policy.view.nodes if pull.joiner.node in policy.subscribers(n)]
        assert set(feeding) == {pull.parent, *pull.feeders}
    beside = replace(policy, pulls=tuple(replace(p, beside=True) for p in policy.pulls))
    assert not any(beside.subscribers(n) for n in policy.view.nodes)


def test_a_joiner_is_fed_by_each_source_as_often_as_its_weight_says() -> None:
    assert replace(PULL, feeds=()).feeders == (node(2),)
    assert sorted(replace(PULL, feeds=(1, 3)).feeders) == [node(1), *[node(2)] * 3]
    word_alone = replace(PULL, parent=node(1), feeds=(0, 2))
    assert word_alone.feeders == (node(2), node(2))
    assert [word_alone.is_fed_by(node(k)) for k in (1, 2, 3)] == [True, True, False]


@given(policies(), st.data())
def test_a_policy_changed_on_the_way_is_valid_or_refused(
    policy: Policy, data: st.DataObject
) -> None:
    raw = encode_fields(policy)
    assert decode_fields(Policy, raw) == policy
    parents, shares = raw[3], raw[4]
    assert isinstance(parents, list)
    assert isinstance(shares, list)
    assume(len(parents) > 1)
    place = data.draw(st.integers(0, len(parents) - 1))
    other = data.draw(st.sampled_from([b"", *policy.view.nodes]))
    parents[place], shares[place] = other, data.draw(st.integers(0, 2))
    try:
        changed = decode_fields(Policy, raw)
    except RemoteProtocolError:
        return
    check_tree(changed)
    assert sum(changed.shares) > 0


def test_policies_are_ordered_by_term_then_version() -> None:
    policy = star_policy(1, term=3)
    assert policy.key == (3, 1)
    assert policy.key < replace(policy, version=2).key < replace(policy, term=4).key
