"""Something happens; at the k-th message after it, somebody dies: whoever is left finishes right.

Law: `STRIDE` 1 tries every k; the suite tries each k that leaves a rest for the scenario's number,
so that all scenarios together see all rests.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from protocols import messages as m
from protocols.effects import LeaveWanted
from tests.simulation.test_failures import cluster
from tests.simulation.test_small_world import finish
from tests.simulation.world import Host, World

STRIDE = 23
MOST = 160  # moments: all that follow are those of rounds

Beginning = Callable[[World, list[Host]], object]


def a_join(world: World, hosts: list[Host]) -> None:
    hosts.append(world.join(4, hosts[1]))


def a_leave(world: World, hosts: list[Host]) -> None:
    hosts[2].handle(LeaveWanted())


def a_hand_over(world: World, hosts: list[Host]) -> None:
    hosts[0].handle(LeaveWanted())


def a_death(world: World, hosts: list[Host]) -> None:
    world.kill(hosts[3])


def an_election(world: World, hosts: list[Host]) -> None:
    world.kill(hosts[0])


def a_cut(world: World, hosts: list[Host]) -> None:
    world.cut(hosts[0], hosts[1])


def a_join_and_a_leave(world: World, hosts: list[Host]) -> None:
    a_join(world, hosts)
    a_leave(world, hosts)


BEGINNINGS = (
    a_join,
    a_leave,
    a_hand_over,
    a_death,
    an_election,
    a_cut,
    a_join_and_a_leave,
)
VICTIMS = ((0,), (1,), (2,), (0, 1), (4,))


def play(begin: Beginning, victims: tuple[int, ...], moment: int, seed: int) -> World:
    """Let something begin and the victims die at that moment; run to the end."""
    world, hosts = cluster(seed, 4, steps=130)
    begin(world, hosts)

    def die() -> None:
        for victim in victims:
            if victim < len(hosts) and hosts[victim].gone is None:
                world.kill(hosts[victim])

    world.before(moment, die)
    world.joins_end = True
    finish(world)
    return world


@pytest.mark.parametrize("victims", VICTIMS)
@pytest.mark.parametrize("begin", BEGINNINGS)
def test_moments(begin: Beginning, victims: tuple[int, ...]) -> None:
    if victims == (4,) and begin not in (a_join, a_join_and_a_leave):
        return
    number = BEGINNINGS.index(begin) * len(VICTIMS) + VICTIMS.index(victims)
    for moment in range(1 + number % STRIDE, MOST, STRIDE):
        play(begin, victims, moment, seed=moment)


@pytest.mark.parametrize("kind", [k for k in m.FENCE_MESSAGES if k is not m.Outside])
@pytest.mark.parametrize("victims", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("seed", range(3))
def test_death_in_a_fence(kind: type[m.Message], victims: tuple[int, ...], seed: int) -> None:
    """Somebody dies when the first or second message of a kind of a fence is on its way."""
    world, hosts = cluster(seed, 4, steps=130)
    left = [1 + seed % 2]

    def lose(_sender: Host, _receiver: Host, message: m.Message) -> bool:
        if isinstance(message, kind):
            left[0] -= 1
            if left[0] == 0:
                for victim in victims:
                    world.later(0.0, partial(world.kill, hosts[victim]))
        return False

    world.lose = lose
    world.kill(hosts[3])
    finish(world)
    assert left[0] <= 0
