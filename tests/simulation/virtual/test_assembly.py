"""Founders that wait for others before their first step, with real shells in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from protocols import limits
from protocols.member.joining_table import JoiningState
from protocols.scheduler.join_cost import JoinWay
from tests.simulation.virtual import network
from tests.simulation.virtual.loop import VirtualLoop
from tests.simulation.virtual.world import Ended, Host, Story, World, play

# In so many steps of the founder's all others come in: one offers the first pulls, in the next one
# they copy, and the one after offers their entry. The second newcomer is a step behind the first,
# and a copy beside the training takes two steps more.
FIRST_STEPS = {JoinWay.PAUSE: 5, JoinWay.BESIDE: 9}

WAIT_S = 1.5 * limits.JOIN_PROGRESS_SECONDS  # in which a join must not be given up


def counts(host: Host) -> list[tuple[int, int]]:
    """Return what a host has told of those that it waits for: (here, wanted)."""
    return [(e["here"], e["wanted"]) for e in host.all("assembling")]


def first_of(host: Host, members: int) -> int:
    """Return the first iteration that was done by so many."""
    return int(next(e["iteration"] for e in host.all("step") if e["members"] == members))


async def founder(world: World, wait_for: int = 3) -> Host:
    """Return a founder that waits for others."""
    world.wait_for = wait_for
    host = world.host()
    host.found()
    await asyncio.sleep(WAIT_S)
    assert not host.shell.trainer.kept_work.assembly.here > 1
    return host


async def let_in(world: World, sponsor: Host) -> Host:
    """Return a joiner that is let in, and waits for a step."""
    joiner = world.host()
    joiner.join(sponsor)

    def waits() -> bool:
        node = joiner.shell.node
        join = node.joining if node is not None else None
        return join is not None and join.state is JoiningState.WAITING

    await world.until(waits)
    await asyncio.sleep(WAIT_S)
    assert waits(), "and it does so for as long as it takes"
    assert not joiner.joins_failed
    return joiner


async def three_come(world: World) -> None:
    first = await founder(world)
    await let_in(world, first)
    assert first.all("step") == []
    world.host().join(first)


@pytest.mark.parametrize("way", [JoinWay.PAUSE, JoinWay.BESIDE])
def test_nothing_is_trained_before_three_are_there(way: JoinWay) -> None:
    async def story(world: World) -> None:
        world.join_way = way
        await three_come(world)

    for seed in range(2):
        hosts = play(story, seed, steps=40).hosts
        assert counts(hosts[0]) == [(1, 3), (2, 3), (3, 3)]
        assert [counts(host) for host in hosts[1:]] == [[], []]
        assert 1 < first_of(hosts[0], 3) <= FIRST_STEPS[way]


def test_a_long_copy_beside_the_training_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two devices found and are joined; how many steps has the founder made when the first newcomer
    is a member?"""
    monkeypatch.setattr(network, "MOST_DELAY_S", 0.1)
    steps: dict[int, int] = {}

    async def run(wait_for: int) -> None:
        world = World(1, 10_000)
        world.join_way, world.wait_for = JoinWay.BESIDE, wait_for
        first, second = world.host(), world.host()
        first.found()
        second.join(first)
        await world.until(lambda: second.is_member)
        steps[wait_for] = first.trainer.iteration
        await asyncio.gather(first.shell.close(), second.shell.close())

    for wait_for in (1, 2):
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(run(wait_for))
    assert steps[2] <= FIRST_STEPS[JoinWay.BESIDE]
    assert steps[1] > 2 * FIRST_STEPS[JoinWay.BESIDE], "the copy is a long one"


def test_who_is_lost_later_stops_nothing() -> None:
    async def story(world: World) -> None:
        await three_come(world)
        first, second, third = world.hosts
        await world.until(lambda: len(first.members) == 3)
        second.kill()
        third.kill()

    first, *_ = play(story, 0).hosts
    assert counts(first)[-1] == (3, 3)
    assert [e["reason"] for e in first.all("member_left")] == ["failure", "failure"]


def test_who_is_lost_before_is_waited_for_again() -> None:
    async def story(world: World) -> None:
        first = await founder(world)
        second = await let_in(world, first)
        second.kill()
        await world.until(lambda: counts(first)[-1] == (1, 3))
        await let_in(world, first)
        assert first.all("step") == []
        world.host().join(first)

    first, *_ = play(story, 0, steps=30).hosts
    assert counts(first) == [(1, 3), (2, 3), (1, 3), (2, 3), (3, 3)]


def ends_without_a_step(story: Story) -> list[Host]:
    """Run `story` until all of its hosts are gone; return them, after none has done a step."""

    async def run() -> Ended:
        world = World(0, 30)
        await story(world)
        await world.until(lambda: all(host.gone is not None for host in world.hosts))
        return Ended(world.hosts, [])

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        hosts = runner.run(run()).hosts
    assert not any(host.all("step") or host.trainer.iteration for host in hosts)
    return hosts


def test_it_leaves_at_once_while_it_waits() -> None:
    async def story(world: World) -> None:
        (await founder(world)).leave()
        await world.passes(1)

    (host,) = ends_without_a_step(story)
    assert host.gone == "left"


def test_it_leaves_if_its_trainer_ends_while_it_waits() -> None:
    async def story(world: World) -> None:
        (await founder(world)).lose_trainer()
        await world.passes(1)

    (host,) = ends_without_a_step(story)
    assert host.gone == "left"


def test_it_gives_way_to_another_founder_without_a_step_of_its_own() -> None:
    async def story(world: World) -> None:
        first, second = await founder(world, 2), await founder(world, 2)
        for host in (first, second):
            assert host.is_member
        second.give_way(first)

    first, second = play(story, 0, steps=30).hosts
    assert counts(first) == [(1, 2), (2, 2)]
    assert counts(second) == [(1, 2)]
    assert second.all("step")[0]["iteration"] > 1, "its first step was one of the first host's"


def test_if_the_founder_is_killed_another_one_founds_and_waits() -> None:
    async def story(world: World) -> None:
        first = await founder(world)
        second = await let_in(world, first)
        second.founds_again = True
        first.kill()
        await world.until(lambda: second.is_member)
        third = await let_in(world, second)
        assert not second.all("step")
        fourth = world.host()
        fourth.join(second)
        await world.until(lambda: third.is_member and fourth.is_member)

    _, second, *_ = play(story, 0, steps=30).hosts
    assert counts(second) == [(1, 3), (2, 3), (3, 3)]
