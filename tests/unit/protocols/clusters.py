"""Clusters in the small world, with which the tests of a node's parts begin."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from protocols.cluster.stripes import OnLost
from protocols.member.joining_table import JoiningState
from protocols.scheduler.join_cost import JoinWay
from tests.simulation.world import Host, World

if TYPE_CHECKING:
    from protocols.cluster.policy import Policy
    from protocols.member.joining import Joining
    from protocols.member.node import Node
    from tests.simulation.ways import WaysPlanner

ENDLESS = 100_000  # steps; no test gets that far
ON_THE_WAY = tuple(s for s in JoiningState if s not in (JoiningState.ENTERED, JoiningState.FAILED))
BESIDE = (JoiningState.COPYING, JoiningState.COPIED)  # only joiners that stop nobody get here


def cluster(
    seed: int,
    size: int = 3,
    steps: int = ENDLESS,
    *,
    pauses: bool = False,
    is_frozen: bool = False,
    ways: WaysPlanner | None = None,
    beside: bool = False,
    stripes: int = 0,
    copies: int = 0,
    stripe_bytes: int = 0,
    on_lost: OnLost = OnLost.WAIT,
) -> tuple[World, list[Host]]:
    """Return a world with `size` members, each linked to each; the first is the scheduler. Joiners
    copy `beside` the training, or the members hold their update meanwhile. With `stripes` each
    member keeps a part of the optimizer's state, and there are `copies` of it."""
    world = World(seed, steps=steps)
    world.stripes, world.stripe_copies, world.on_lost = stripes, copies, on_lost
    world.stripe_bytes = stripe_bytes
    world.join_way = JoinWay.BESIDE if beside else JoinWay.PAUSE
    world.pauses, world.is_frozen, world.ways = pauses, is_frozen, ways
    first = world.found()
    hosts = [first]
    for number in range(1, size):
        hosts.append(world.join(number, first))
        enter(world, hosts[-1])
    settle(world)
    return world, hosts


def line(seed: int, size: int, *, pauses: bool = False) -> tuple[World, list[Host]]:
    """Return a world whose members form a line, with the scheduler at one end."""
    world = World(seed, steps=ENDLESS)
    world.sparse, world.pauses = True, pauses
    hosts = [world.found()]
    for number in range(1, size):
        hosts.append(world.join(number, hosts[-1], neighbours=(hosts[-1].me.name,)))
        enter(world, hosts[-1])
        settle(world)
    return world, hosts


def settle(world: World) -> None:
    """Run until one policy is in force everywhere, and it names nobody who is gone."""

    def settled() -> bool:
        policies = {policy_of(host).key: policy_of(host) for host in world.members}
        named = [world.hosts[n] for policy in policies.values() for n in policy.view.nodes]
        return len(policies) == 1 and all(host.gone is None for host in named)

    world.run(settled)


def node_of(host: Host) -> Node:
    """Return the host's node, which must exist."""
    assert host.node is not None
    return host.node


def joining_of(host: Host) -> Joining:
    """Return the join of the host's node, which must have one."""
    joining = node_of(host).joining
    assert joining is not None
    return joining


def policy_of(host: Host) -> Policy:
    """Return the policy in force at the host, which must exist."""
    policy = node_of(host).context.policy
    assert policy is not None
    return policy


def state_of(host: Host) -> JoiningState:
    """Return the state of the host's join."""
    joining = node_of(host).joining
    assert joining is not None
    return joining.state


def reach(world: World, host: Host, state: JoiningState) -> None:
    """Run until `host`, which is joining, is in `state`."""
    world.run(lambda: state_of(host) is state)


def enter(world: World, host: Host) -> None:
    """Run until `host` is a member; it must not fail on the way."""
    world.run(partial(_decided, world, host))
    assert not host.joins_failed


def _decided(world: World, host: Host) -> bool:
    return host in world.members or bool(host.joins_failed)


def persist(world: World, host: Host, sponsor: Host) -> Host:
    """Run until the device of `host` is a member; like the agent, it tries again if it fails."""
    for _ in range(5):
        world.run(partial(_decided, world, host))
        if host in world.members:
            return host
        number = int(host.me.name[1:])
        host = world.join(number, sponsor, incarnation=host.me.incarnation)
    raise AssertionError(f"{host.me.name} does not get in: {host.joins_failed}")


def go_on(world: World, iterations: int = 12) -> None:
    """Run until every member is `iterations` further; the world checks the states meanwhile."""
    goals = [(host, host.iteration + iterations) for host in world.members]
    assert goals
    world.run(lambda: all(h.gone is not None or h.iteration >= goal for h, goal in goals), 60.0)
    assert all(host.gone in (None, "left") for host, _ in goals)


def reported(host: Host, name: str) -> list[dict[str, object]]:
    """Return the values of the host's reports of this event."""
    return [report.values for report in host.reports if report.event == name]
