"""A change begins, and at the k-th message after that a member dies; the others must finish.

`scripts/moments` tries every k up to `MOST`, by which every change is over and only rounds follow.
That takes long, so each run of the tests tries one k of every second scenario, always another one,
and `--long` every `STRIDE`th of each, so that all scenarios together cover all moments.

Each scenario is played twice: with whole optimizers, and with a divided one that has one copy of
each part for every member that goes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest

from protocols.cluster.stripes import OnLost
from protocols.events import ExpelWanted, LeaveWanted, LinkWanted, Tick
from protocols.wire import messages as m
from tests.simulation.test_failures import cluster
from tests.simulation.test_small_world import finish
from tests.simulation.world import Host, World
from tests.unit.protocols.divided_clusters import divided
from tests.variants import variants

STRIDE, DIVIDED_STRIDE = 61, 127
MOST = 160  # moments; all later ones are those of rounds
LEAP = 37  # moments between those of one scenario and of the next, in every run

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
# With a divided optimizer any two die at once while nothing else changes, too.
OTHER_PAIRS = ((0, 2), (0, 3), (1, 2), (1, 3), (2, 3))
# Changes in which a member goes that is none of the victims.
LOSE_ONE = (a_leave, a_hand_over, a_death, an_election, an_expulsion, a_join_and_a_leave)


@dataclass(frozen=True)
class Scenario:
    """The `victims` die while a change begins. `is_divided`: so is the optimizer's state."""

    begin: Beginning
    victims: tuple[int, ...]
    is_divided: bool = False

    def __str__(self) -> str:
        state = "divided" if self.is_divided else "whole"
        return f"{self.begin.__name__}, {self.victims} killed, {state} optimizer"

    def world(self, seed: int) -> tuple[World, list[Host]]:
        """Return a world with four members."""
        if not self.is_divided:
            return cluster(seed, 4, steps=130)
        copies = len(self.victims) + (self.begin in LOSE_ONE)
        return divided(seed, 4, copies, 130, OnLost.STOP)

    def play(self, moment: int) -> World:
        """Let the change begin and the victims die at the `moment`th message after that; run to
        the end."""
        world, hosts = self.world(moment)
        self.begin(world, hosts)

        def die() -> None:
            for victim in self.victims:
                if victim < len(hosts) and hosts[victim].gone is None:
                    world.kill(hosts[victim])

        world.before(moment, die)
        world.joins_end = True
        finish(world)
        for host in hosts:  # who is expelled, and does not hear of it, may be left without a part
            expelled = self.begin is an_expulsion and host is hosts[3]
            assert host.gone != "parts lost" or expelled, f"{host.me.name} lacks a part"
        return world


def scenarios() -> list[Scenario]:
    """Return which members die during which change; the joiner (4) only if there is one."""
    joins = (a_join, a_join_and_a_leave)
    return [
        Scenario(begin, victims, is_divided)
        for is_divided in (False, True)
        for begin in BEGINNINGS
        for victims in VICTIMS
        if victims != (4,) or begin in joins
    ] + [Scenario(a_round, victims, is_divided=True) for victims in OTHER_PAIRS]


@pytest.mark.parametrize(
    "number",
    variants(range(0, len(scenarios()), 2), long=range(len(scenarios()))),
    ids=lambda k: str(scenarios()[k]),
)
def test_a_moment(number: int) -> None:
    scenarios()[number].play(1 + number * LEAP % MOST)


@pytest.mark.long
@pytest.mark.parametrize("number", range(len(scenarios())), ids=lambda k: str(scenarios()[k]))
def test_moments(number: int) -> None:
    scenario = scenarios()[number]
    stride = DIVIDED_STRIDE if scenario.is_divided else STRIDE
    for moment in range(1 + number % stride, MOST, stride):
        scenario.play(moment)


@pytest.mark.parametrize(
    ("begin", "victim", "moment"), [(a_hand_over, 2, 51), (a_join_and_a_leave, 0, 93)]
)
def test_a_leaver_that_a_fence_leaves_out_hears_of_it(
    begin: Beginning, victim: int, moment: int
) -> None:
    """Others have already gone on without the leaver, so the decision is not about it (H59)."""
    Scenario(begin, (victim,), is_divided=True).play(moment)  # else it would miss its parts


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
