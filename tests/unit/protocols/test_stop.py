"""A script on one member ends training on all of them: at one iteration, whatever else happens."""

from __future__ import annotations

from functools import partial

import pytest

from protocols.events import LeaveWanted
from protocols.member.joining_table import JoiningState
from tests.simulation.world import Host, World, expected_state
from tests.unit.protocols.clusters import ENDLESS, cluster, line, node_of, reach
from tests.variants import variants

each_seed = pytest.mark.parametrize("seed", variants(range(2), long=range(12)))


def stopped(world: World, *hosts: Host) -> int:
    """Run until all `hosts` have ended as after the last step, with one state; return its
    iteration."""
    world.run(lambda: all(host.gone is not None for host in hosts))
    assert [host.gone for host in hosts] == ["steps"] * len(hosts)
    (iteration,) = {host.iteration for host in hosts}
    assert iteration < ENDLESS
    for host in hosts:
        assert host.state == expected_state(iteration, world.micro_batches)
    return iteration


@each_seed
@pytest.mark.parametrize("who", [0, 2])
def test_one_stops_all(seed: int, who: int) -> None:
    world, hosts = cluster(seed, 4)
    at = hosts[who].iteration
    hosts[who].stops = True
    assert at < stopped(world, *hosts) <= at + 2


def test_it_goes_through_others() -> None:
    world, hosts = line(0, 4)
    hosts[-1].stops = True
    stopped(world, *hosts)


def test_one_device_stops_itself() -> None:
    world = World(0, steps=ENDLESS)
    host = world.found()
    host.stops = True
    assert stopped(world, host) == 1


def test_the_last_step_comes_first_if_it_does() -> None:
    world, hosts = cluster(0, 2, steps=40)
    world.run(lambda: hosts[0].iteration == 39)
    hosts[0].stops = hosts[1].stops = True
    assert stopped(world, *hosts) == 40


@each_seed
def test_the_others_stop_when_one_is_killed_or_leaves_meanwhile(seed: int) -> None:
    """The wish is in the round that is done again by those that are left."""
    world, hosts = cluster(seed, 4)
    hosts[1].stops = True
    if seed % 2:
        world.kill(hosts[2])
    else:
        hosts[2].handle(LeaveWanted())
    stopped(world, hosts[0], hosts[1], hosts[3])


@each_seed
def test_who_wanted_it_is_killed(seed: int) -> None:
    """Either all others stop or none does, whether or not they have heard of the wish."""
    world, hosts = cluster(seed, 4)
    hosts[1].stops = True
    world.later(world.random.uniform(0.0, 0.3), partial(world.kill, hosts[1]))
    rest = [hosts[0], hosts[2], hosts[3]]
    world.run(lambda: hosts[1].gone is not None)
    world.run(
        lambda: all(h.gone is not None or h.iteration > hosts[1].iteration + 20 for h in rest)
    )
    gone = [host.gone for host in rest]
    assert gone in ([None] * 3, ["steps"] * 3)
    if gone[0]:
        stopped(world, *rest)


@each_seed
def test_a_trainer_that_hangs_stops_the_others_when_it_is_back(seed: int) -> None:
    world, hosts = cluster(seed, 3)
    world.most_compute = 0.1  # so that few iterations pass meanwhile
    hosts[1].stops = True
    hosts[1].hang(20.0)
    stopped(world, *hosts)


@each_seed
def test_a_joiner_that_follows_hears_of_it_too(seed: int) -> None:
    world, hosts = cluster(seed, 3)
    joiner = world.join(9, hosts[1])
    reach(world, joiner, JoiningState.FOLLOWING)
    hosts[0].stops = True
    iteration = stopped(world, *hosts)
    world.run(lambda: joiner.iteration == iteration)  # it applies the last update in its own time
    assert node_of(joiner).context.steps == iteration
    assert joiner.gone in (None, "steps"), "the former where no policy names it yet"
