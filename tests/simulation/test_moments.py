"""A change begins, and at the k-th message after that a member dies; the others must finish.

`scripts/moments` tries every k up to `MOST`, by which every change is over and only rounds follow.
That takes long, so the suite tries every `STRIDE`th k of each scenario, beginning at another one
for each, so that all scenarios together cover all moments.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from protocols.events import ExpelWanted, LeaveWanted, LinkWanted, Tick
from protocols.wire import messages as m
from tests.simulation.test_failures import cluster
from tests.simulation.test_small_world import finish
from tests.simulation.world import Host, World
from tests.variants import variants

STRIDE = 61
MOST = 160  # moments; all later ones are those of rounds

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


def a_removed_link(world: World, hosts: list[Host]) -> None:
    hosts[1].handle(LinkWanted(hosts[2].me.node, False))


def an_added_link(world: World, hosts: list[Host]) -> None:
    a_removed_link(world, hosts)
    world.run(lambda: hosts[2].me.node not in hosts[1].links)
    hosts[2].handle(LinkWanted(hosts[1].me.node, True))


def an_expulsion(world: World, hosts: list[Host]) -> None:
    hosts[1].handle(ExpelWanted(hosts[3].me.node))


def a_rotation(world: World, hosts: list[Host]) -> None:
    assert hosts[0].node is not None
    hosts[0].node.succession.step_down(world.now)
    hosts[0].handle(Tick())


def a_round(world: World, hosts: list[Host]) -> None:
    """Nothing but rounds."""


BEGINNINGS = (
    a_round,
    a_join,
    a_leave,
    a_hand_over,
    a_death,
    an_election,
    a_cut,
    a_removed_link,
    an_added_link,
    an_expulsion,
    a_rotation,
    a_join_and_a_leave,
)
VICTIMS = ((0,), (1,), (2,), (3,), (0, 1), (4,))


def play(begin: Beginning, victims: tuple[int, ...], moment: int, seed: int) -> World:
    """Let a change begin and the victims die at the `moment`th message after that; run to the
    end."""
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


def scenarios() -> list[tuple[Beginning, tuple[int, ...]]]:
    """Return which members die during which change; the joiner (4) only if there is one."""
    joins = (a_join, a_join_and_a_leave)
    return [(b, v) for b in BEGINNINGS for v in VICTIMS if v != (4,) or b in joins]


@pytest.mark.parametrize(("begin", "victims"), scenarios())
def test_moments(begin: Beginning, victims: tuple[int, ...]) -> None:
    number = scenarios().index((begin, victims))
    for moment in range(1 + number % STRIDE, MOST, STRIDE):
        play(begin, victims, moment, seed=moment)


@pytest.mark.parametrize("kind", [k for k in m.FENCE_MESSAGES if k is not m.Outside])
@pytest.mark.parametrize("victims", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("seed", variants(range(1), long=range(3)))
def test_death_in_a_fence(kind: type[m.Message], victims: tuple[int, ...], seed: int) -> None:
    """Members die when the first or second message of a kind of a fence is on its way."""
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
