"""Clusters whose members are not all linked: messages are relayed; a leave may need a new link."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from protocols import limits
from protocols.cluster.view import edge
from protocols.events import LeaveWanted
from protocols.member.cycle_table import CycleState
from protocols.wire import messages as m
from tests.unit.protocols.clusters import (
    cluster,
    enter,
    go_on,
    line,
    node_of,
    policy_of,
    reported,
    settle,
)
from tests.variants import variants

if TYPE_CHECKING:
    from tests.simulation.world import Host, World

SEEDS = variants(range(2), long=range(4))
each_seed = pytest.mark.parametrize("seed", SEEDS)


def linked(a: Host, b: Host) -> bool:
    """Whether the policy in force at `a` knows a link to `b`."""
    return edge(a.me.node, b.me.node) in policy_of(a).view.edges


def leave(world: World, host: Host) -> None:
    host.handle(LeaveWanted())
    world.run(lambda: host.gone is not None)
    assert host.gone == "left"


@each_seed
def test_a_line_trains(seed: int) -> None:
    world, hosts = line(seed, 4)
    view = policy_of(hosts[0]).view
    assert len(view.edges) == 3
    assert all(linked(a, b) for a, b in itertools.pairwise(hosts))
    go_on(world)


@each_seed
@pytest.mark.parametrize("gone", [1, 2])
def test_the_middle_leaves(seed: int, gone: int) -> None:
    world, hosts = line(seed, 4)
    left, right = hosts[gone - 1], hosts[gone + 1]
    assert not linked(left, right)
    leave(world, hosts[gone])
    settle(world)
    view = policy_of(left).view
    assert len(view.members) == 3
    assert len(view.edges) == 2
    go_on(world)


@each_seed
def test_the_repair_link_opens_late(seed: int) -> None:
    world, hosts = line(seed, 3)
    until = world.now + 2.5 * limits.RETRY_SECONDS
    world.unreachable = lambda _host, _other: world.now < until
    leave(world, hosts[1])
    assert world.now >= until
    assert hosts[0].me.node in hosts[2].links
    go_on(world)


@each_seed
def test_the_repair_link_is_there_already(seed: int) -> None:
    world, hosts = line(seed, 2)
    third = world.join(2, hosts[0], neighbours=("n1",))
    enter(world, third)
    settle(world)
    assert not linked(hosts[0], third), "the link to the sponsor is none of the view's"
    world.unreachable = lambda _host, _other: True
    leave(world, hosts[1])
    settle(world)
    assert linked(hosts[0], third)
    go_on(world)


@each_seed
def test_a_repair_link_is_forgotten_with_its_end(seed: int) -> None:
    world, hosts = line(seed, 4)
    leave(world, hosts[1])
    settle(world)
    assert linked(hosts[0], hosts[2])
    leave(world, hosts[2])
    world.run(lambda: not hosts[2].links)
    again = world.join(2, hosts[3], incarnation=2, neighbours=("n3",))
    enter(world, again)
    settle(world)
    assert policy_of(again).view.neighbours(again.me.node) == (hosts[3].me.node,)
    go_on(world)


@each_seed
def test_the_role_moves_along_a_line(seed: int) -> None:
    world, hosts = line(seed, 4)
    leave(world, hosts[0])
    world.run(lambda: all(node_of(h).context.election.term >= 2 for h in hosts[1:]))
    leaders = [h for h in hosts[1:] if node_of(h).context.election.leads]
    assert len(leaders) == 1
    for host in hosts[1:]:
        last = reported(host, "scheduler")[-1]
        assert last["node"] == leaders[0].me.name
        assert last["why"] == "rotated"
    go_on(world)


@each_seed
def test_a_body_is_fetched_where_no_neighbour_has_it(seed: int) -> None:
    world, hosts = line(seed, 5)
    behind = hosts[3:]
    first_answers = [1]

    def lose(sender: Host, receiver: Host, message: m.Message) -> bool:
        if not isinstance(message, m.PolicyBody) or message.policy.version <= version:
            return False
        if sender is hosts[2] and receiver is hosts[3] and fetching(hosts[3]):
            first_answers[0] -= 1
            return first_answers[0] >= 0
        return receiver in behind and not fetching(receiver)

    version = policy_of(hosts[0]).version
    world.lose = lose
    enter(world, world.join(9, hosts[0], neighbours=("n0", "n1")))
    assert world.lost >= 2
    go_on(world)


def fetching(host: Host) -> bool:
    return node_of(host).cycle.state is CycleState.FETCHING


@each_seed
def test_a_body_may_reach_a_minority_late(seed: int) -> None:
    world, hosts = cluster(seed)
    late = hosts[2]

    def lose(sender: Host, receiver: Host, message: m.Message) -> bool:
        body = isinstance(message, m.PolicyBody)
        return body and receiver is late and not fetching(late)

    world.lose = lose
    enter(world, world.join(9, hosts[0], neighbours=("n0",)))
    assert world.lost >= 1
    go_on(world)


def test_a_member_without_the_newest_policy_is_not_elected() -> None:
    world, hosts = cluster(0)
    late = hosts[2]
    refused: list[m.Vote] = []

    def lose(sender: Host, receiver: Host, message: m.Message) -> bool:
        if isinstance(message, m.Vote) and not message.granted and receiver is late:
            refused.append(message)
        return isinstance(message, m.PolicyBody) and receiver is late

    world.lose = lose
    joiner = world.join(9, hosts[0], neighbours=("n0", "n1"))
    world.run(lambda: fetching(late))
    hosts[0].handle(LeaveWanted())
    world.run(lambda: bool(refused), 20.0)
    world.lose = lambda _sender, _receiver, _message: False
    world.run(lambda: hosts[0].gone == "left")
    go_on(world)
    enter(world, joiner)
