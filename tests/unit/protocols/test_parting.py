"""Clusters that part, devices that begin anew, fences that meet joiners: one step at a time."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from edgeagent.planner import StandardPlanner
from protocols import limits
from protocols import messages as m
from protocols.effects import JoinFailed, LinkDown, LinkUp, Tick
from protocols.fence import FenceState
from protocols.joining import JoiningState
from protocols.negotiator import Negotiator
from protocols.policy import Pull
from protocols.view import make_view
from tests.unit.protocols.clusters import cluster, go_on, node_of, policy_of, reach, state_of
from tests.unit.protocols.records import member, node, star_policy
from tests.unit.protocols.test_recovery import FIRST, effects_of, said, sent

if TYPE_CHECKING:
    from tests.simulation.host import Host
    from tests.simulation.world import World

OTHER = b"another lineage."


# --- joiners --------------------------------------------------------------------------------------


def test_a_sponsor_that_does_not_say_how_things_stand() -> None:
    world, hosts = cluster(0)
    joiner = world.join(3, hosts[0])
    world.lose = lambda _sender, receiver, message: (
        receiver is joiner and isinstance(message, m.Welcome)
    )
    began = world.now
    effects_of(world, joiner, Tick())
    assert not any(isinstance(e, JoinFailed) for e in effects_of(world, joiner, Tick()))
    world.run(lambda: world.now > began + limits.LINK_OPEN_SECONDS)
    joiner.handle(Tick())
    assert "does not say" in joiner.joins_failed[0]


def test_a_cluster_that_parts_while_it_is_joined() -> None:
    world, hosts = cluster(0)
    joiner = world.join(3, hosts[0])
    reach(world, joiner, JoiningState.REQUESTED)
    policy = policy_of(hosts[0])
    view = make_view(OTHER, 9, list(policy.view.members), policy.view.edges)
    welcome = m.Welcome(hosts[0].me.node, replace(policy, view=view), 5)
    wanted = said(world, hosts[0], joiner, welcome)
    assert [e.reason for e in wanted if isinstance(e, JoinFailed)] == [
        "the cluster that was to be joined has parted"
    ]


def test_a_joiner_whose_last_host_goes_begins_again_though_it_has_other_links() -> None:
    world, hosts = cluster(0)
    joiner = world.join(3, hosts[0])
    reach(world, joiner, JoiningState.REQUESTED)
    stranger = world.join(4, hosts[1])
    effects_of(world, joiner, LinkUp(stranger.me))
    wanted = effects_of(world, joiner, LinkDown(hosts[0].me.node, clean=False))
    assert any(isinstance(e, JoinFailed) for e in wanted)


def test_a_fence_ends_a_join_once() -> None:
    world, hosts = cluster(0)
    joiner = world.join(3, hosts[0])
    reach(world, joiner, JoiningState.REQUESTED)
    wanted = said(world, hosts[0], joiner, m.Fence(*FIRST))
    assert sent(wanted) == [m.Outside(*FIRST)]
    assert state_of(joiner) is JoiningState.FAILED
    assert said(world, hosts[0], joiner, m.Fence(*FIRST)) == []


def test_an_answer_to_no_fence() -> None:
    world, hosts = cluster(0)
    assert said(world, hosts[1], hosts[0], m.Outside(*FIRST)) == []
    go_on(world)


def test_a_device_that_began_anew_is_no_loss_to_a_joiner() -> None:
    world, hosts = cluster(0)
    joiner = world.join(3, hosts[0])
    reach(world, joiner, JoiningState.FOLLOWING)
    anew = replace(hosts[1].me, incarnation=hosts[1].me.incarnation + 1)
    assert sent(effects_of(world, joiner, LinkUp(anew))) == []


# --- members --------------------------------------------------------------------------------------


def test_a_device_that_began_anew_is_dead_as_the_member_it_was() -> None:
    world, hosts = cluster(0)
    anew = replace(hosts[1].me, incarnation=hosts[1].me.incarnation + 1)
    messages = sent(effects_of(world, hosts[2], LinkUp(anew)))
    assert m.LinkLost(hosts[1].me.node, True) in messages


def cut_off(world: World, hosts: list[Host]) -> None:
    """Cut the last two of five from the others."""
    few = hosts[3:]
    world.unreachable = lambda host, other: (host in few) != (other in few)
    for a in few:
        for b in hosts[:3]:
            world.cut(a, b)


def test_who_waits_for_the_rest_of_its_cluster_says_so() -> None:
    world, hosts = cluster(0, size=5)
    assert not any(node_of(h).recovery.is_cut_off for h in hosts)
    world.pauses = True
    cut_off(world, hosts)
    world.run(lambda: all(node_of(h).recovery.is_cut_off for h in hosts[3:]), 60.0)
    assert not any(node_of(h).recovery.is_cut_off for h in hosts[:3])


def test_a_scheduler_that_waits_for_a_quorum_is_cut_off() -> None:
    world, hosts = cluster(0, size=5)
    for other in hosts[2:]:
        for near in hosts[:2]:
            world.cut(near, other)
    machine = node_of(hosts[0])
    world.unreachable = lambda host, other: (host in hosts[:2]) != (other in hosts[:2])
    world.run(lambda: machine.recovery.fence is not None)
    fence = machine.recovery.fence
    assert fence is not None
    assert not machine.recovery.is_cut_off
    world.run(lambda: fence.state is FenceState.WAITING)
    assert machine.recovery.is_cut_off


def test_when_a_cluster_parts_its_joiners_are_told() -> None:
    world, hosts = cluster(0, size=2)
    first, second = sorted(hosts, key=lambda h: h.me.node)
    joiner = world.join(3, second)
    reach(world, joiner, JoiningState.REQUESTED)
    world.later(0.0, partial(world.kill, first))
    world.run(lambda: bool(joiner.joins_failed), 60.0)
    assert len(policy_of(second).view.members) == 1


# --- the scheduler --------------------------------------------------------------------------------


def test_a_joiner_that_all_its_sources_have_left_is_given_up() -> None:
    one, two, joiner = node(1), node(2), member(9)
    pulling = star_policy(2, (Pull(7, joiner, (two,), two),))
    scheduler = Negotiator(one, 1, pulling, 4, StandardPlanner())
    scheduler.resume(0.0)
    scheduler.leave_request(two)
    scheduler.in_force(0.0, replace(star_policy(1), version=2))
    mail = scheduler.tick(0.0)
    assert (m.EVERYONE, m.JoinAborted(7, joiner.node, "all that it was linked to left")) in mail
    assert not scheduler.joins
