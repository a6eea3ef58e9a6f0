"""The real machines of several nodes play joins, leaves and hand-overs, in many seeds."""

from __future__ import annotations

from functools import partial

import pytest

from protocols.events import LeaveWanted
from tests.simulation.world import Host, World, expected_state
from tests.variants import variants

SEEDS = variants(range(3), long=range(40))


def finish(world: World) -> None:
    """Run to the last iteration; every host that has finished must have the right state."""
    world.run(lambda: all(h.gone is not None for h in world.hosts.values()))
    finished = [h for h in world.hosts.values() if h.gone == "steps"]
    assert finished
    for host in finished:
        assert host.state == world.right(world.steps)


def stop(world: World) -> None:
    """End the training of all members, as a script may, to save the time to the last iteration. All
    members must finish, with the same and right state."""
    running = [host for host in world.members if host.gone is None]
    running[0].stops = True
    world.run(lambda: all(h.gone is not None for h in world.hosts.values()))
    finished = [h for h in world.hosts.values() if h.gone == "steps"]
    assert len(finished) >= len(running)
    for host in finished:
        assert host.state == expected_state(finished[0].iteration, world.micro_batches)


def is_in(world: World, host: Host) -> bool:
    return host in world.members


def test_one_node_trains_alone() -> None:
    world = World(0)
    world.found()
    finish(world)


def three_join(seed: int) -> World:
    """Let three join one that trains: one after the other if `seed` is odd, else at the same
    time."""
    world = World(seed, steps=80)
    first = world.found()
    for number in (1, 2, 3):
        joiner = world.join(number, first)
        if seed % 2:
            world.run(partial(is_in, world, joiner))
    world.run(lambda: len(world.members) == 4)
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_three_join_while_training(seed: int) -> None:
    finish(three_join(seed))


def test_joiners_pull_from_several_sources() -> None:
    """In most seeds; in the others, the first source that is ready has sent all of this small state
    before the others are ready."""
    several = 0
    for seed in range(1, 20, 2):
        serves = [sum(map(len, h.serves.values())) for h in three_join(seed).hosts.values()]
        several += sum(count > 0 for count in serves) >= 2
    assert several >= 0.8 * len(range(1, 20, 2))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("refuses", [False, True])
def test_worker_leaves(seed: int, refuses: bool) -> None:
    world = World(seed, steps=60)
    first = world.found()
    others = [world.join(n, first) for n in (1, 2)]
    world.run(lambda: len(world.members) == 3)
    others[0].refuses = refuses
    others[0].handle(LeaveWanted())
    world.run(lambda: others[0].gone is not None)
    assert others[0].gone == "left"
    finish(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_scheduler_leaves_and_a_joiner_comes(seed: int) -> None:
    world = World(seed, steps=400)
    first = world.found()
    second = world.join(1, first)
    world.run(lambda: is_in(world, second))
    third = world.join(2, second)
    if seed % 3:
        world.run(lambda: is_in(world, third))
    first.handle(LeaveWanted())
    world.run(lambda: first.gone is not None)
    assert first.gone == "left"
    world.run(lambda: is_in(world, third))
    world.run(lambda: all(h.node.context.election.term >= 2 for h in world.members if h.node))
    stop(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_leave(seed: int) -> None:
    world = World(seed, steps=10_000)
    first = world.found()
    others = [world.join(n, first) for n in (1, 2, 3)]
    world.run(lambda: len(world.members) == 4)
    for host in [first, *others]:
        host.handle(LeaveWanted())
    world.run(lambda: all(h.gone == "left" for h in world.hosts.values()))
