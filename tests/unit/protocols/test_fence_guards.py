"""How a member reacts to silence, and to old, late or foreign messages of fences."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocols import events, limits
from protocols.cluster.stripes import OnLost, Stripe
from protocols.member.joining_table import JoiningState
from protocols.wire import messages as m
from tests.simulation.world import World
from tests.unit.protocols.clusters import (
    cluster,
    go_on,
    line,
    node_of,
    policy_of,
    reach,
)
from tests.unit.protocols.test_guards import STRANGER, effects_of, said


def test_a_neighbour_falls_silent() -> None:
    world, hosts = cluster(0)
    assert effects_of(world, hosts[0], events.Silent(STRANGER.node)) == []
    hosts[0].handle(events.Silent(hosts[1].me.node))
    world.run(lambda: hosts[1].me.node not in hosts[0].links)
    go_on(world)
    assert len(policy_of(hosts[0]).view.members) == 3


def test_dropped_by_one_of_two() -> None:
    world, hosts = cluster(0)
    world.say(hosts[0], hosts[1], m.Dropped())
    assert hosts[1].gone is None
    assert said(world, hosts[0], hosts[1], m.Dropped()) == []


def test_dropped_by_all() -> None:
    world, hosts = cluster(0, size=3)
    world.say(hosts[0], hosts[1], m.Dropped())
    assert hosts[1].gone is None
    world.say(hosts[2], hosts[1], m.Dropped())
    assert hosts[1].gone == "expelled"


@pytest.mark.parametrize(
    ("others", "on_lost", "stays"),
    [
        (0, OnLost.WAIT, True),
        (0, OnLost.FRESH, False),
        (1, OnLost.WAIT, True),
        (2, OnLost.WAIT, False),
    ],
    ids=("alone", "fresh", "one-copy", "two-copies"),
)
def test_dropped_by_all_with_a_part_that_the_others_wait_for(
    others: int, on_lost: OnLost, stays: bool
) -> None:
    """Whoever keeps the only copy beside this one may have left while this device slept."""
    world, hosts = cluster(1, 3)
    context = node_of(hosts[1]).context
    assert context.policy is not None
    me = context.policy.view.nodes.index(context.node)
    holders = bytes([me, *[k for k in range(3) if k != me][:others]])
    context.policy = replace(context.policy, stripes=(Stripe(holders),))
    context.config = replace(context.config, on_lost=on_lost)
    for other in (hosts[0], hosts[2]):
        world.say(other, hosts[1], m.Dropped())
    assert (hosts[1].gone is None) is stays


def test_dropped_by_all_where_members_pause() -> None:
    """The members may all wait for each other, so none goes before it knows that the others have
    gone on."""
    world, hosts = cluster(0, size=3, pauses=True)
    for other in (hosts[0], hosts[2]):
        world.say(other, hosts[1], m.Dropped())
    assert hosts[1].gone is None


def test_dropped_by_one_other() -> None:
    """The only other member cannot have gone on yet: the link is opened anew, and both go on."""
    world, hosts = cluster(0, size=2)
    world.say(hosts[0], hosts[1], m.Dropped())
    assert hosts[1].gone is None
    go_on(world)
    assert all(len(policy_of(h).view.members) == 2 for h in hosts)


def test_dropped_by_a_joiner() -> None:
    """A joiner does not decide whether a cluster goes on; that of one member does go on."""
    world, hosts = cluster(0, size=1)
    joiner = world.join(3, hosts[0])
    reach(world, joiner, JoiningState.REQUESTED)
    world.say(joiner, hosts[0], m.Dropped())
    assert hosts[0].gone is None
    assert hosts[0] in world.members


def test_orders_of_old_fences() -> None:
    world, hosts = cluster(0, size=4)
    world.kill(hosts[0])
    world.run(lambda: all(len(policy_of(h).view.members) == 3 for h in hosts[1:]))
    go_on(world)
    for message in (m.Fence(1, 1), m.Prepared(1, 1), m.Committed(1, 1)):
        assert said(world, hosts[1], hosts[2], message) == []


def test_the_order_of_a_decided_fence_comes_late() -> None:
    world, hosts = cluster(0, size=4)
    world.kill(hosts[3])
    world.run(lambda: all(len(policy_of(h).view.members) == 3 for h in hosts[:3]))
    go_on(world)
    assert said(world, hosts[0], hosts[1], m.Fence(1, 1)) == []
    assert not node_of(hosts[1]).context.freeze.holds


def test_a_device_that_began_anew_is_not_the_member_it_was() -> None:
    world, hosts = cluster(0)
    anew = world.add(2, incarnation=2).me
    hosts[1].handle(events.LinkUp(anew))
    assert anew.node not in node_of(hosts[1]).context.near
    world.run(lambda: len(policy_of(hosts[0]).view.members) == 2)
    go_on(world)


# --- what people see ------------------------------------------------------------------------------


def test_names() -> None:
    _, hosts = line(0, 3)
    context = node_of(hosts[0]).context
    assert context.name(hosts[0].me.node) == "n0"
    assert context.name(hosts[1].me.node) == "n1"
    assert context.name(hosts[2].me.node) == "n2", "no neighbour, but in the policy"
    assert context.name(STRANGER.node) == STRANGER.node.hex()[:8]


def test_old_policies_are_forgotten_but_not_the_one_in_force() -> None:
    _, hosts = cluster(0)
    context = node_of(hosts[1]).context
    in_force = policy_of(hosts[1])
    for version in range(100, 120):
        policy = type(in_force)(
            9,
            version,
            in_force.view,
            in_force.parents,
            in_force.shares,
            (),
            "",
        )
        context.store(policy)
    assert len(context.policies) == limits.MAX_POLICIES_KEPT + 1
    assert context.policies[in_force.key] == in_force
    assert context.newest_key == (9, 119)
    fresh = node_of(World(0).add(5)).context
    for version in range(20):
        body = type(in_force)(9, version, in_force.view, in_force.parents, in_force.shares, (), "")
        fresh.store(body)
    assert len(fresh.policies) == limits.MAX_POLICIES_KEPT
