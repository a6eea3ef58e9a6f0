"""Devices that die without a goodbye: workers, the scheduler, several at once, at any moment."""

from __future__ import annotations

from functools import partial

import pytest

from protocols import limits
from tests.simulation.test_small_world import finish
from tests.simulation.world import Host, World
from tests.variants import variants

SEEDS = variants(range(3), long=range(60))


def cluster(seed: int, size: int, steps: int = 60) -> tuple[World, list[Host]]:
    world = World(seed, steps=steps)
    hosts = [world.found()]
    for number in range(1, size):
        hosts.append(world.join(number, hosts[0]))
    pairs = size * (size - 1) // 2
    world.run(lambda: len(world.members) == size and edges(hosts[0]) == pairs)
    return world, hosts


def edges(host: Host) -> int:
    policy = host.node.context.policy if host.node else None
    return len(policy.view.edges) if policy else 0


def kill_later(world: World, hosts: list[Host]) -> None:
    """Kill each of `hosts` at its own random moment soon."""
    for host in hosts:
        world.later(world.random.uniform(0.0, 0.3), partial(world.kill, host))
    world.run(lambda: all(h.gone is not None for h in hosts))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("victims", [(2,), (0,), (0, 1), (1, 2), (0, 2, 3)])
def test_killed(seed: int, victims: tuple[int, ...]) -> None:
    world, hosts = cluster(seed, 4, steps=150)
    kill_later(world, [hosts[v] for v in victims])
    finish(world)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("victim", [0, 1])
def test_one_of_two_is_killed(seed: int, victim: int) -> None:
    world, hosts = cluster(seed, 2, steps=100)
    kill_later(world, [hosts[victim]])
    finish(world)


@pytest.mark.parametrize("seed", variants(range(3), long=range(6)))
@pytest.mark.parametrize("size", [4, 5])
def test_partition(seed: int, size: int) -> None:
    """The side with the quorum goes on at once, the other one later, in a lineage of its own."""
    world, hosts = cluster(seed, size, steps=150)
    tie_break = min(hosts, key=lambda h: h.me.node)
    rest = [h for h in hosts[1:] if h is not tie_break]
    first = [h for h in hosts if h not in rest] if size == 4 else rest[:3]
    second = [h for h in hosts if h not in first]
    world.unreachable = lambda host, other: (host in first) != (other in first)
    for a in first:
        for b in second:
            world.cut(a, b)
    began = world.now
    world.run(lambda: all(members(h) == len(first) for h in first))
    assert world.now < began + limits.PARTITION_WAIT_SECONDS
    assert all(members(h) == size for h in second)
    world.run(lambda: all(members(h) == len(second) for h in second))
    assert world.now >= began + limits.PARTITION_WAIT_SECONDS
    assert len({lineage(h) for h in first}) == len({lineage(h) for h in second}) == 1
    assert lineage(first[0]) != lineage(second[0])
    finish(world)


def members(host: Host) -> int:
    policy = host.node.context.policy if host.node else None
    return len(policy.view.members) if policy else 0


def lineage(host: Host) -> bytes:
    assert host.node is not None
    return host.node.context.lineage
