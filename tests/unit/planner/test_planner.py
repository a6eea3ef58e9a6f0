"""The planner's answers compared with exhaustive search and plain counting."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.planner.measures import in_mbit
from edgeagent.planner.policies import PolicyAnswer, PolicyRequest
from edgeagent.planner.shares import measured_shares
from edgeagent.planner.standard import StandardPlanner
from edgeagent.planner.trees import shallow_tree
from protocols import limits
from protocols.cluster.policy import Policy
from protocols.cluster.view import View, edge, make_view, parts
from protocols.network.measures import Measures, Rate
from protocols.scheduler.planning import Informed, Offer
from tests.unit.protocols.records import LINEAGE, member, node, view_of

PLANNER = StandardPlanner()


@st.composite
def views(draw: st.DrawFn) -> View:
    """Views of up to eight members, most of them connected."""
    count = draw(st.integers(1, 8))
    links = [(draw(st.integers(1, k - 1)), k) for k in range(2, count + 1)]
    if links and draw(st.integers(0, 5)) == 0:
        links.pop()
    pairs = [(a, b) for b in range(2, count + 1) for a in range(1, b)]
    extra = draw(st.lists(st.sampled_from(pairs), max_size=6)) if pairs else []
    return view_of(count, links + extra)


def distances(view: View, start: bytes) -> dict[bytes, int]:
    """Links between `start` and each node it can reach, by repeated widening."""
    found = {start: 0}
    for step in range(1, len(view.nodes)):
        for at in [n for n, d in found.items() if d == step - 1]:
            for other in view.neighbours(at):
                found.setdefault(other, step)
    return found


@given(views())
def test_a_tree_covers_all_and_no_root_would_make_it_shallower(view: View) -> None:
    if len(parts(view)) > 1:
        with pytest.raises(ValueError, match="do not connect"):
            shallow_tree(view)
        return
    parents, depth = shallow_tree(view)
    shares = (1,) * len(view.nodes)
    root = Policy(1, 1, view, parents, shares, (), "valid").tree.root  # the policy checks the tree
    reach = {n: max(distances(view, n).values()) for n in view.nodes}
    assert depth == min(reach.values())
    assert root == next(n for n in view.nodes if reach[n] == depth)
    for name, far in distances(view, root).items():
        steps, at = 0, name
        while at != root:
            steps, at = steps + 1, parents[view.nodes.index(at)]
        assert steps == far


@given(st.integers(1, 9), st.integers(0, 100), st.sets(st.integers(0, 9)))
def test_shares_add_up_and_differ_by_at_most_one(
    count: int, micro_batches: int, gone: set[int]
) -> None:
    nodes = tuple(node(k) for k in range(count))
    away = tuple(node(k) for k in gone)
    shares = measured_shares(nodes, micro_batches, away, {}).shares
    assert len(shares) == count
    assert sum(shares) == micro_batches
    present = [s for n, s in zip(nodes, shares, strict=True) if n not in away]
    absent = [s for n, s in zip(nodes, shares, strict=True) if n in away]
    if present:
        assert not any(absent)
    working = present or absent
    assert max(working) - min(working) <= 1


@given(st.lists(st.integers(0, 999), max_size=40), st.integers(1, 6))
def test_every_shard_has_one_source_and_no_source_has_two_more(
    numbers: list[int], count: int
) -> None:
    sources = tuple(node(k) for k in range(count))
    offers = tuple(Offer(s, "", None, 0.0, 0) for s in sources)
    assigned = PLANNER.assign(tuple(numbers), 16, offers)
    assert tuple(assigned) == sources
    assert [k for part in assigned.values() for k in part] == numbers
    loads = [len(part) for part in assigned.values()]
    assert max(loads) - min(loads) <= 1


def test_shards_are_divided_by_rate_and_by_what_a_source_has_still_to_send() -> None:
    shards = tuple(range(100))
    fast, slow = Offer(node(1), "", 3e6, 0.0, 0), Offer(node(2), "", 1e6, 0.0, 0)
    unknown = Offer(node(3), "", None, 0.0, 0)
    plan = PLANNER.assign(shards, 1 << 18, (fast, slow))
    assert sorted(k for part in plan.values() for k in part) == list(shards)
    assert len(plan[node(1)]) == 75
    plan = PLANNER.assign(shards, 1 << 18, (fast, slow, unknown))
    assert abs(len(plan[node(3)]) - len(plan[node(2)])) <= 1
    busy = replace(fast, busy_bytes=100 << 18)
    assert len(PLANNER.assign(shards, 1 << 18, (busy, slow))[node(1)]) == 50


@given(views().filter(lambda view: len(parts(view)) == 1), st.integers(1, 64), st.data())
def test_a_plan_makes_a_valid_policy_and_says_why(
    view: View, micro_batches: int, data: st.DataObject
) -> None:
    away = tuple(data.draw(st.lists(st.sampled_from(view.nodes), unique=True)))
    plan = PLANNER.plan(view, micro_batches, away)
    assert plan == PLANNER.plan(view, micro_batches, away)
    policy = Policy(1, 1, view, plan.parents, plan.shares, (), plan.reason)
    assert sum(policy.shares) == micro_batches
    assert plan.shares == measured_shares(view.nodes, micro_batches, away, {}).shares
    working = sum(share > 0 for share in plan.shares)
    assert f"{micro_batches} micro-batches over {working} devices" in plan.reason
    assert "no link is measured yet" in plan.reason


def test_a_chain_hangs_from_its_middle() -> None:
    chain = view_of(5, [(1, 2), (2, 3), (3, 4), (4, 5)])
    assert shallow_tree(chain) == ((node(2), node(3), b"", node(3), node(4)), 2)
    assert shallow_tree(view_of(1)) == ((b"",), 0)


def test_a_joiner_is_linked_to_whom_it_wants_or_to_all() -> None:
    view = view_of(3)
    assert PLANNER.neighbours(view, ()) == view.nodes
    assert PLANNER.neighbours(view, ("n3", "n1", "nobody")) == (node(1), node(3))
    assert PLANNER.neighbours(view, ("nobody",)) == view.nodes


def test_a_joiner_keeps_a_link_free() -> None:
    count = limits.MAX_LINKS_PER_NODE + 5
    members = [replace(member(k), name="same") for k in range(count)]
    view = make_view(LINEAGE, 1, members, [edge(node(0), node(1))])
    assert PLANNER.neighbours(view, ("same",)) == view.nodes[: limits.MAX_LINKS_PER_NODE - 1]
    assert len(PLANNER.neighbours(view, ())) == limits.MAX_NEIGHBOURS


def test_rates_are_read_as_people_write_them() -> None:
    assert in_mbit(1_250_000) == "10 Mbit/s"
    assert in_mbit(11_762_500) == "94.1 Mbit/s"
    assert in_mbit(262_144_000) == "2097 Mbit/s"


def test_a_policy_of_the_users_own_is_asked_first() -> None:
    view = view_of(3, [(1, 2), (2, 3)])

    def chain(request: PolicyRequest) -> PolicyAnswer:
        one, two, three = (m.node for m in request.members)
        return PolicyAnswer({one: b"", two: one, three: two}, {one: 0, two: 1, three: 3}, "mine")

    plan = StandardPlanner(custom=chain).plan(view, 4, ())
    assert (plan.shares, plan.reason) == ((0, 1, 3), "mine")
    assert "the custom policy failed" in StandardPlanner(custom=chain).plan(view, 5, ()).reason


def test_the_rate_of_a_link_is_what_was_measured() -> None:
    known = Measures({(node(1), node(2)): Rate(0.01, 5e6)})
    assert PLANNER.rate(node(1), node(2), known) == 5e6
    assert PLANNER.rate(node(2), node(1), known) is None
    assert Informed(PLANNER, lambda: known).rate(node(1), node(2)) == 5e6
