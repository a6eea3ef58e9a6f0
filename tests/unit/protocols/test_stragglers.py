"""What a member that is behind is told: which node is gone, and that the others went on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from protocols import limits
from protocols.events import Received
from protocols.wire import messages as m
from tests.unit.protocols.clusters import cluster, go_on, node_of, policy_of
from tests.unit.protocols.records import node
from tests.unit.protocols.test_recovery import effects_of, said, sent, without

if TYPE_CHECKING:
    from tests.simulation.world import Host, World


def parted(size: int = 3) -> tuple[World, list[Host]]:
    """Return a cluster whose second member still stores the policy from before the third was
    expelled."""
    world, hosts = cluster(0, size=size)
    context = node_of(hosts[1]).context
    context.policy = without(policy_of(hosts[1]), hosts[2])
    context.store(context.policy)
    return world, hosts


def welcomes(world: World, reporter: Host, to: Host, via: Host | None = None) -> int:
    """Return how often `to` sends a `Welcome` because `reporter` misses a link."""
    missed = m.LinkLost(to.world.members[0].me.node, False)
    answers = sent(said(world, reporter, to, missed, via))
    return sum(isinstance(answer, m.Welcome) for answer in answers)


def test_a_neighbour_that_was_put_out_is_told_each_second_until_it_knows() -> None:
    world, (_, one, out) = parted()
    assert welcomes(world, out, one) == 1
    assert welcomes(world, out, one) == 0
    world.now += limits.RETRY_SECONDS
    assert welcomes(world, out, one) == 1


def test_who_is_no_neighbour_or_was_no_member_is_told_nothing() -> None:
    world, (first, one, out) = parted()
    links = node_of(one).context.links
    links[out.me.node] = replace(out.me, incarnation=out.me.incarnation + 1)
    assert welcomes(world, out, one) == 0
    del links[out.me.node]
    assert welcomes(world, out, one, via=first) == 0
    links[out.me.node] = out.me
    node_of(one).context.policies.clear()
    links[out.me.node] = out.me
    assert welcomes(world, out, one) == 0


@pytest.mark.parametrize(("view", "told"), [(0, False), (3, True), (4, False)])
def test_a_neighbour_is_told_whose_view_is_older_than_all_that_are_known(
    view: int, told: bool
) -> None:
    """It may have been a member while its trainer did not answer; nobody remembers that."""
    world, (_, one, out) = parted()
    context = node_of(one).context
    policy = policy_of(one)
    context.policies.clear()
    for number in (4, 5):
        older = replace(policy, version=number, view=replace(policy.view, number=number))
        context.policies[older.key] = older
    context.policy = replace(older, version=6)
    tags = (context.lineage, 1, view, 0, 0, 0)
    missed = node_of(out).context.router.stamp(tags, one.me.node, m.LinkLost(node(7), False))
    for seconds, answers in ((0.0, told), (0.0, False), (limits.RETRY_SECONDS, told)):
        world.now += seconds
        found = sent(effects_of(world, one, Received(out.me.node, missed)))
        assert any(isinstance(x, m.Welcome) for x in found) == answers
        missed = replace(missed, tags=replace(missed.tags, sequence=missed.tags.sequence + 1))


def test_a_member_that_misses_who_was_put_out_hears_that_others_do_not_reach_it() -> None:
    world, (first, one, out) = parted()
    missed = m.LinkLost(out.me.node, False)
    assert missed not in sent(said(world, first, one, missed))  # this member reaches the node
    del node_of(one).context.links[out.me.node]
    assert missed in sent(said(world, first, one, missed))
    assert missed not in sent(said(world, first, one, missed))


def test_a_member_that_a_fence_put_out_leaves_though_the_decision_never_reached_it() -> None:
    world, hosts = cluster(0, size=5)
    out = hosts[2]
    world.lose = lambda _, to, message: to is out and isinstance(message, m.FENCE_MESSAGES)
    world.kill(hosts[4])
    world.run(lambda: out.gone == "expelled", 10.0)
    go_on(world)
