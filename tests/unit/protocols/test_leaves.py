"""Leaves, hand-overs of the scheduler's role, wishes for shares, and work that is handed back."""

from __future__ import annotations

from functools import partial

import pytest

from protocols import limits
from protocols.events import AwayWanted, LeaveWanted, StandAside, Tick, YieldWanted
from protocols.member.cycle_table import CycleState
from protocols.network.link_end import LinkEnd
from protocols.wire import messages as m
from tests.simulation.world import Host, World
from tests.unit.protocols.clusters import (
    ENDLESS,
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

SEEDS = variants(range(1), long=range(3))
each_seed = pytest.mark.parametrize("seed", SEEDS)


def left(host: Host) -> bool:
    return host.gone == "left"


def share(host: Host) -> int:
    """Return how many micro-batches the policy in force gives the host."""
    return len(policy_of(host).micro_batches(host.me.node))


@each_seed
def test_two_leave_at_once(seed: int) -> None:
    world, hosts = cluster(seed, size=4)
    for host in hosts[1:3]:
        host.handle(LeaveWanted())
    world.run(lambda: all(left(h) for h in hosts[1:3]))
    settle(world)
    assert {e["node"] for e in reported(hosts[3], "member_left")} == {"n1", "n2"}
    go_on(world)


@pytest.mark.parametrize("seed", range(6))
def test_the_role_comes_to_a_node_that_leaves(seed: int) -> None:
    world, hosts = cluster(seed)
    hosts[0].handle(LeaveWanted())
    hosts[1].handle(LeaveWanted())
    world.run(lambda: left(hosts[0]) and left(hosts[1]))
    assert node_of(hosts[2]).context.election.leads
    go_on(world)


def test_a_scheduler_that_leads_a_fence_keeps_the_role_until_it_is_decided() -> None:
    world, hosts = cluster(0, size=4)
    asked: list[float] = []

    def lose(_sender: Host, _receiver: Host, message: object) -> bool:
        if isinstance(message, m.PassRole):
            asked.append(world.now)
        return isinstance(message, m.FenceReport) and world.now < decided

    decided = world.now + 1.0  # until then all reports are lost
    world.lose = lose
    world.kill(hosts[3])
    scheduler = node_of(hosts[0])
    world.run(lambda: scheduler.recovery.has_fence)
    hosts[0].handle(LeaveWanted())
    world.run(lambda: left(hosts[0]))
    assert asked
    assert min(asked) >= decided
    go_on(world)


@pytest.mark.parametrize("seed", range(6))
def test_a_leavers_links_close_before_all_others_have_switched(seed: int) -> None:
    world, hosts = cluster(seed, size=4)
    world.linger = 0.0
    hosts[1].handle(LeaveWanted())
    world.run(lambda: left(hosts[1]) and not hosts[1].links)
    settle(world)
    go_on(world)


@each_seed
def test_a_line_dissolves(seed: int) -> None:
    world, hosts = line(seed, 4)
    for host in hosts:
        host.handle(LeaveWanted())
    world.run(lambda: all(left(h) for h in hosts))


@each_seed
def test_a_leaver_hands_back_half_its_work(seed: int) -> None:
    world, hosts = cluster(seed)
    hosts[1].most_work = 1
    go_on(world)
    assert share(hosts[1]) > 1
    hosts[1].handle(LeaveWanted())
    world.run(lambda: left(hosts[1]))
    go_on(world)


def test_every_trainer_hands_everything_back() -> None:
    world, hosts = cluster(0)
    for host in hosts:
        host.refuses = True
    world.run(lambda: all(left(h) for h in hosts))


@each_seed
def test_a_joiner_follows_rounds_that_are_run_again(seed: int) -> None:
    world, hosts = cluster(seed)
    hosts[1].refuses = True
    enter(world, world.join(9, hosts[0]))
    go_on(world)


@each_seed
@pytest.mark.parametrize("away", [0, 1])
def test_a_node_is_away_for_a_while(seed: int, away: int) -> None:
    world, hosts = cluster(seed)
    assert share(hosts[away]) > 0
    hosts[away].handle(AwayWanted(True))
    world.run(lambda: share(hosts[away]) == 0)
    settle(world)
    assert sum(policy_of(hosts[0]).shares) == world.micro_batches
    go_on(world)
    hosts[away].handle(AwayWanted(False))
    world.run(lambda: share(hosts[away]) > 0)
    go_on(world)


@each_seed
@pytest.mark.parametrize("aside", [0, 1])
def test_a_device_that_stands_aside_goes_as_one_whose_trainer_hangs(seed: int, aside: int) -> None:
    world, hosts = cluster(seed)
    hosts[aside].handle(StandAside())
    world.run(lambda: hosts[aside].gone == "stalled")
    go_on(world)
    assert {e["node"] for e in reported(hosts[2], "member_left")} == {f"n{aside}"}


@each_seed
def test_a_new_scheduler_hears_who_is_away(seed: int) -> None:
    world, hosts = cluster(seed)
    hosts[1].handle(AwayWanted(True))
    world.run(lambda: share(hosts[1]) == 0)
    hosts[0].handle(LeaveWanted())
    world.run(lambda: left(hosts[0]))
    enter(world, world.join(9, hosts[2]))
    world.run(lambda: policy_of(hosts[1]).term > 1 and share(hosts[1]) == 0)
    settle(world)
    go_on(world)
    assert share(hosts[1]) == 0


def test_a_founder_yields_at_the_end_of_an_iteration() -> None:
    world = World(0, steps=ENDLESS)
    founder = world.found()
    world.run(lambda: founder.iteration == 5)
    founder.handle(YieldWanted())
    assert founder.gone is None
    world.run(lambda: founder.gone is not None)
    assert founder.gone == "yielded"


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("who", [0, 1])
def test_a_member_that_yields_is_let_go_first(who: int, size: int) -> None:
    world, hosts = cluster(0, size=size)
    hosts[who].handle(YieldWanted())
    world.run(lambda: hosts[who].gone is not None)
    assert hosts[who].gone == "yielded"
    go_on(world)
    assert all(len(policy_of(h).view.members) == size - 1 for h in hosts if h is not hosts[who])


def test_all_members_of_a_cluster_yield() -> None:
    world, hosts = cluster(0, size=3)
    for host in hosts:
        host.handle(YieldWanted())
    world.run(lambda: all(h.gone is not None for h in hosts))
    assert {h.gone for h in hosts} == {"yielded"}


def test_a_member_that_nobody_lets_go_yields_in_the_end() -> None:
    world, hosts = cluster(0, size=3)
    world.lose = lambda _sender, _receiver, message: isinstance(message, m.LeaveRequest)
    hosts[1].handle(YieldWanted())
    began = world.now
    world.run(lambda: hosts[1].gone is not None)
    assert hosts[1].gone == "yielded"
    assert world.now - began >= limits.YIELD_SECONDS


@pytest.mark.parametrize("state", [CycleState.COMPUTING, CycleState.APPLYING])
def test_the_last_one_leaves(state: CycleState) -> None:
    world = World(0, steps=ENDLESS)
    founder = world.found()
    world.run(lambda: founder.iteration > 3 and node_of(founder).cycle.state is state)
    founder.handle(LeaveWanted())
    assert left(founder) is (state is not CycleState.APPLYING)
    world.run(partial(left, founder))
    assert node_of(founder).cycle.state is CycleState.OVER
    assert node_of(founder).deadline is None


def test_trained_to_the_end_already() -> None:
    world = World(0, steps=0)
    assert world.found().gone == "steps"


@each_seed
def test_steps_end_while_somebody_joins(seed: int) -> None:
    world, hosts = cluster(seed, steps=60)
    world.run(lambda: hosts[0].iteration >= 57)
    world.join(9, hosts[0])
    world.run(lambda: all(h.gone == "steps" for h in hosts))


def test_two_that_lose_each_other_go_on_apart() -> None:
    world, hosts = cluster(0, size=2)
    lineage = node_of(hosts[0]).context.lineage
    world.unreachable = lambda _host, _other: True
    world.unlink(hosts[0], hosts[1], LinkEnd.PROCESS_ENDED)
    go_on(world)
    settled = [node_of(h).context.lineage for h in hosts]
    assert len(dict.fromkeys(settled)) == 2
    assert lineage in settled
    assert all(len(policy_of(h).view.members) == 1 for h in hosts)


def test_a_role_nobody_takes_is_offered_again() -> None:
    world, hosts = cluster(0)
    offers: list[int] = []

    def lose(_sender: Host, _receiver: Host, message: m.Message) -> bool:
        if isinstance(message, m.PassRole):
            offers.append(message.next_term)
        return isinstance(message, m.PassRole) and len(offers) < 4

    world.lose = lose
    began = world.now
    hosts[0].handle(LeaveWanted())
    world.run(lambda: left(hosts[0]))
    assert offers[:4] == [2, 3, 4, 5]
    assert world.now >= began + 3 * limits.RETRY_SECONDS
    go_on(world)


def test_a_scheduler_whose_heir_dies_is_one_for_joiners_again() -> None:
    world, hosts = cluster(0, 2)
    node_of(hosts[0]).context.stalled = True  # it wants to go, as long as there are others
    world.lose = lambda _s, _r, message: isinstance(message, m.PassRole)
    hosts[0].handle(Tick())
    negotiator = node_of(hosts[0]).negotiator
    assert negotiator is not None
    assert negotiator.passing
    world.kill(hosts[1])
    world.run(lambda: node_of(hosts[0]).context.is_alone)
    enter(world, world.join(5, hosts[0]))
