"""Clusters whose steps take minutes, as rounds of local steps may: joins are patient enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from protocols import limits
from protocols.events import LeaveWanted
from protocols.member.joining_table import JoiningState
from protocols.scheduler.join_cost import Pace
from tests.simulation import streaming
from tests.simulation.host import Host
from tests.unit.protocols.clusters import cluster, node_of, reach, reported
from tests.variants import variants

if TYPE_CHECKING:
    from protocols.effects import GiveWork

STEP_S = 3 * limits.JOIN_PROGRESS_SECONDS
MOST_S = 20 * STEP_S


@pytest.fixture
def step_s() -> float:
    """Return how long a step takes at most, in seconds."""
    return STEP_S


@pytest.fixture
def long_steps(monkeypatch: pytest.MonkeyPatch, step_s: float) -> None:
    """Have trainers take minutes for their share. Real ones tell how far they are meanwhile."""

    def computing(host: Host) -> float:
        now = host.world.now
        host.busy_until = max(host.busy_until, now + host.world.random.uniform(0.5, 1.0) * step_s)
        return host.busy_until - now

    monkeypatch.setattr(limits, "TRAINER_LEAST_SECONDS", MOST_S)
    monkeypatch.setattr(limits, "TRAINER_FIRST_SECONDS", MOST_S)
    monkeypatch.setattr(Host, "computing", computing)


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("seed", variants(range(2), long=range(4)))
@pytest.mark.usefixtures("long_steps")
def test_a_device_joins_at_its_first_try(seed: int, beside: bool) -> None:
    world, hosts = cluster(seed, size=1, beside=beside)
    joiner = world.join(9, hosts[0])
    world.run(lambda: joiner in world.members or bool(joiner.joins_failed), MOST_S)
    assert not joiner.joins_failed


@pytest.mark.parametrize("step_s", [0.9 * limits.JOIN_PROGRESS_SECONDS])
@pytest.mark.parametrize("seed", variants(range(2), long=range(8)))
@pytest.mark.usefixtures("long_steps")
def test_a_device_joins_at_its_first_try_after_one_that_came_just_before(seed: int) -> None:
    """It waits for the running step and for the next one, and so longer than a join may rest."""
    world, hosts = cluster(seed, size=1)
    first = world.join(1, hosts[0])
    reach(world, first, JoiningState.CAUGHT_UP)
    second = world.join(2, hosts[0])
    world.run(lambda: second in world.members or bool(second.joins_failed), MOST_S)
    assert not second.joins_failed
    assert first in world.members


@pytest.mark.parametrize("seed", variants(range(1), long=range(2)))
@pytest.mark.usefixtures("long_steps")
def test_one_joins_and_one_leaves_in_the_middle_of_a_long_step(seed: int) -> None:
    world, hosts = cluster(seed, size=1)
    other = world.join(1, hosts[0])
    world.run(lambda: other in world.members, MOST_S)
    third = world.join(2, other)
    world.run(lambda: third in world.members, MOST_S)
    begun = world.now
    other.handle(LeaveWanted())
    world.run(lambda: other.gone is not None, MOST_S)
    assert world.now - begun <= limits.LEAVE_SECONDS + 2 * limits.RETRY_SECONDS
    at = third.iteration
    world.run(lambda: third.iteration >= at + 2 and hosts[0].iteration >= at + 2, MOST_S)


@pytest.mark.parametrize("seed", variants(range(1), long=range(2)))
@pytest.mark.usefixtures("long_steps")
def test_a_joiner_that_vanishes_in_a_long_step_is_forgotten(seed: int) -> None:
    world, hosts = cluster(seed, size=1)
    joiner = world.join(9, hosts[0])
    reach(world, joiner, JoiningState.WAITING)
    world.vanish(joiner)
    negotiator = node_of(hosts[0]).negotiator
    assert negotiator is not None
    world.run(lambda: not negotiator.joins.open, STEP_S)


@pytest.mark.parametrize("beside", [False, True])
def test_a_joiner_whose_work_takes_seconds_is_late_in_no_step(
    beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps in which it has no share yet take no time."""
    give, seconds = streaming.give, 0.0

    def computing(host: Host) -> float:
        host.busy_until = max(host.busy_until, host.world.now) + seconds
        return host.busy_until - host.world.now

    def given(host: Host, work: GiveWork) -> None:
        nonlocal seconds
        seconds = 4 * limits.TRAINER_LEAST_SECONDS if work.micro_batches else 0.001
        give(host, work)

    monkeypatch.setattr(streaming, "give", given)
    monkeypatch.setattr(Host, "computing", computing)
    world, hosts = cluster(0, size=2, beside=beside)
    joiner = world.join(9, hosts[0])
    world.run(lambda: joiner in world.members, MOST_S)
    at = joiner.iteration
    world.run(lambda: joiner.iteration >= at + 6, MOST_S)
    assert [reported(host, "member_late") for host in (*hosts, joiner)] == [[], [], []]


def test_a_join_that_makes_no_progress_while_steps_are_short_is_given_up() -> None:
    pace = Pace()
    rest = limits.JOIN_PROGRESS_SECONDS
    assert pace.is_long(5.0, rest), "there was no update yet"
    pace.applied(10.0)
    assert not pace.is_long(10.0 + rest - 0.1, rest)
    assert pace.is_long(10.0 + rest, rest)
    pace.applied(10.0 + rest)
    assert pace.is_long(10.0 + rest, rest), "the joiner has had no time since then"
    pace.applied(11.0 + rest)
    assert not pace.is_long(11.0 + rest, rest)
