"""Devices that follow the others from outside: nobody waits for them, and they have every update.

The world checks each state that an update leads to, so a device that misses one is found at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from protocols import limits
from protocols.cluster import standby
from protocols.cluster.life import (
    DropNode,
    KeepState,
    Life,
    LifeState,
    LookAround,
    Note,
    Say,
)
from protocols.events import Applied, ExpelWanted, Tick
from protocols.member.copying import Copying
from protocols.member.joining_table import JoiningState
from protocols.recovery.recovery import Recovery
from protocols.scheduler.join import JoinState
from protocols.scheduler.join_cost import JoinCost, JoinWay, Pace
from protocols.wire import messages as m
from tests.simulation.faults import Intensities
from tests.simulation.harsh import HarshWorld
from tests.unit.protocols.clusters import (
    cluster,
    enter,
    go_on,
    joining_of,
    node_of,
    policy_of,
    reach,
    state_of,
)

if TYPE_CHECKING:
    from protocols.cluster.policy import Policy
    from protocols.scheduler.join import Join
    from tests.simulation.world import Host, World


def following(seed: int, size: int = 3, *, stripes: int = 0) -> tuple[World, list[Host], Host]:
    """Return a world, its members, and a device that has begun to join and is not to enter."""
    world, hosts = cluster(seed, size, beside=True, stripes=stripes)
    world.follow(world_member(9))
    return world, hosts, world.join(9, hosts[0])


def world_member(number: int) -> bytes:
    from tests.simulation.world import member

    return member(number).node


def follows(host: Host) -> bool:
    """Whether `host` has the whole state and copies only updates."""
    return state_of(host) is JoiningState.COPIED


def harsh(seed: int, steps: int = 120) -> tuple[HarshWorld, list[Host], Host]:
    """Return a world of agents, two members, and a device that has begun to join and is not to
    enter."""
    world = HarshWorld(seed, Intensities(), micro_batches=6, steps=steps)
    world.join_way = JoinWay.BESIDE
    hosts = [world.start(k, first=k == 0) for k in range(2)]
    world.run(lambda: all(h.is_member and h.trained and h.iteration >= 10 for h in hosts))
    world.follow(world_member(2))
    outside = world.start(2)
    world.run(lambda: outside.node is not None and outside.node.joining is not None)
    return world, hosts, outside


def join_at(scheduler: Host) -> Join:
    """Return the only join that `scheduler` leads."""
    negotiator = node_of(scheduler).negotiator
    assert negotiator is not None
    (join,) = negotiator.joins.open.values()
    return join


@pytest.mark.parametrize("seed", range(3))
def test_who_follows_has_every_update_and_stops_nobody(seed: int) -> None:
    world, hosts, outside = following(seed)
    world.run(lambda: follows(outside))
    since, policy = hosts[0].iteration, policy_of(hosts[0])
    world.run(lambda: hosts[0].iteration > since + 40)
    assert follows(outside)
    assert joining_of(outside).stands_by
    assert not joining_of(outside).is_refuted
    assert joining_of(outside).outside == standby.WANTED
    assert hosts[0].iteration - outside.iteration <= 6, "it is close"
    assert len(policy_of(hosts[0]).view.nodes) == len(policy.view.nodes)
    assert join_at(hosts[0]).follows
    assert not any(host.copies.snapshots for host in hosts), "it has the snapshot"
    assert all(len(host.copies.updates) < 12 for host in hosts), "and the updates before"
    told = [r for r in hosts[1].reports if r.event == "member_standby"]
    assert [r.values["reason"] for r in told] == [standby.WANTED]
    go_on(world)


def test_it_enters_when_it_is_wanted_without_another_copy() -> None:
    world, hosts, outside = following(1)
    world.run(lambda: follows(outside))
    since = hosts[0].iteration
    world.run(lambda: hosts[0].iteration > since + 20)
    number = joining_of(outside).number
    world.follow(outside.me.node, wanted=False)
    enter(world, outside)
    assert joining_of(outside).number == number
    assert joining_of(outside).outside == ""
    assert [r.event for r in outside.reports].count("pull_begins") == 1
    go_on(world)


def test_one_that_has_fallen_behind_does_not_stop_the_others_when_it_is_wanted() -> None:
    world, hosts, outside = following(2)
    world.run(lambda: follows(outside))
    copy = joining_of(outside).copy
    assert copy is not None
    negotiator, join = node_of(hosts[0]).negotiator, join_at(hosts[0])
    assert negotiator is not None
    number, links = joining_of(outside).number, tuple(n.me.node for n in hosts)
    behind = m.LinksOpen(number, links, (), b"", copied=False)
    negotiator.joins.links_open(world.now, outside.me.node, behind)
    assert join.state is JoinState.COPYING, "the others do not hold their update"
    go_on(world)


def test_the_scheduler_changes_and_is_killed_while_a_device_follows() -> None:
    world, hosts, outside = following(3)
    world.run(lambda: follows(outside))
    number = joining_of(outside).number
    negotiator = node_of(hosts[0]).negotiator
    assert negotiator is not None
    assert negotiator.is_idle, "a handover does not wait for it"
    world.vanish(hosts[0])
    world.run(lambda: len(policy_of(hosts[1]).view.nodes) == 2)
    since = hosts[1].iteration
    world.run(lambda: hosts[1].iteration > since + 10 and follows(outside))
    assert joining_of(outside).number == number
    assert hosts[1].iteration - outside.iteration <= 6
    go_on(world)


@pytest.mark.parametrize("seed", range(4))
def test_the_last_survivor_goes_on(seed: int) -> None:
    """All members are killed; who has followed them founds a cluster from what it has."""
    world, hosts, outside = harsh(seed)
    world.run(lambda: follows(outside))
    since = hosts[0].iteration
    world.run(lambda: hosts[0].iteration > since + 10)
    for host in hosts:
        world.kill(host)
    at = outside.iteration
    world.run(lambda: outside.gone is not None)
    assert outside.gone == "steps"
    assert at > since
    assert world.is_right(outside), "nothing was trained twice or lost"


@pytest.mark.parametrize("state", [JoiningState.PULLING, JoiningState.CAUGHT_UP])
@pytest.mark.parametrize("seed", range(2))
def test_one_that_is_let_in_goes_on_if_all_others_are_lost_meanwhile(
    seed: int, state: JoiningState
) -> None:
    """The state is whole all the time, since it has changed by whole updates alone."""
    world, hosts, outside = harsh(seed, steps=300)
    world.run(lambda: follows(outside))
    since = hosts[0].iteration
    world.run(lambda: hosts[0].iteration > since + 5)
    world.follow(outside.me.node, wanted=False)
    world.run(lambda: state_of(outside) is state)
    for host in hosts:
        world.kill(host)
    world.run(lambda: outside.gone is not None)
    assert outside.gone == "steps"
    assert world.is_right(outside)


def ends_alike(world: HarshWorld, hosts: list[Host], outside: Host) -> None:
    """Run to the end; the device that follows must end with the others, and found no cluster."""
    world.run(lambda: all(host.gone is not None for host in (*hosts, outside)))
    assert [host.gone for host in (*hosts, outside)] == ["steps"] * 3
    assert outside.iteration == hosts[0].iteration
    assert not any(r.event == "scheduler" for r in outside.reports), "it has gone on alone"


@pytest.mark.parametrize("delay", [0.01, 0.5])
@pytest.mark.parametrize("seed", range(2))
def test_at_the_end_of_training_the_others_wait_for_who_follows(seed: int, delay: float) -> None:
    world, hosts, outside = harsh(seed)
    world.most_delay = delay
    world.run(lambda: follows(outside))
    ends_alike(world, hosts, outside)


def test_a_stop_that_a_script_wants_ends_who_follows_too() -> None:
    world, hosts, outside = harsh(1)
    world.run(lambda: follows(outside))
    hosts[0].stops = True
    ends_alike(world, hosts, outside)
    assert outside.iteration < world.steps


def test_at_the_end_nobody_waits_for_long_for_who_follows_and_gets_nothing() -> None:
    world, hosts, outside = harsh(1)
    world.run(lambda: follows(outside))
    outside.asleep = True
    world.run(lambda: all(host.iteration == world.steps for host in hosts))
    at = world.now
    world.run(lambda: all(host.gone is not None for host in hosts))
    assert world.now < at + limits.FOLLOWERS_CATCH_UP_SECONDS + 5.0


def test_no_more_devices_follow_than_train() -> None:
    world, hosts, outside = following(11, 2)
    more = []
    for number in (8, 7):
        world.run(lambda: follows(outside))
        world.follow(world_member(number))
        more.append(world.join(number, hosts[0]))
        world.run(lambda: follows(more[-1]) or bool(more[-1].joins_failed))
    assert [host.joins_failed for host in more] == [[], [standby.WANTED]]
    go_on(world)


def test_who_waits_for_a_source_gets_no_more_time_for_saying_so_again() -> None:
    world, hosts, outside = following(2)
    world.run(lambda: state_of(outside) is JoiningState.COPYING)
    negotiator, join = node_of(hosts[0]).negotiator, join_at(hosts[0])
    assert negotiator is not None
    message = m.LinksOpen(join.number, join.links, tuple(join.rates.values()), outside=True)
    deadline = join.deadline
    assert negotiator.joins.links_open(world.now + 9.0, outside.me.node, message) == []
    assert join.deadline == deadline
    world.run(lambda: join.deadline > deadline)
    world.run(lambda: follows(outside))  # who follows may do so for as long as it likes
    go_on(world)


def test_a_former_member_that_is_refused_again_and_again_costs_the_others_no_fence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each time it closes its links, and they knew it as a member not long ago."""
    monkeypatch.setattr(limits, "MAX_FOLLOWERS", 0)
    fences: list[Policy] = []
    monkeypatch.setattr(Recovery, "open_fence", lambda _self, _now, policy: fences.append(policy))
    world = HarshWorld(0, Intensities(), micro_batches=6, steps=100_000)
    world.join_way = JoinWay.BESIDE
    hosts = [world.start(k, first=k == 0) for k in range(4)]
    world.run(lambda: all(h.is_member and h.trained and h.iteration >= 10 for h in hosts))
    world.follow(hosts[2].me.node)
    node_of(hosts[2]).standing.look(world.now)
    hosts[2].handle(Tick())
    world.run(lambda: len(hosts[2].joins_failed) >= 8)
    assert dict.fromkeys(hosts[2].joins_failed) == {standby.WANTED: None}
    assert not fences


def test_a_device_that_follows_can_be_expelled() -> None:
    world, hosts, outside = following(3)
    world.run(lambda: follows(outside))
    hosts[1].handle(ExpelWanted(outside.me.node))
    world.run(lambda: bool(outside.joins_failed))
    world.run(lambda: outside.me.node in policy_of(hosts[0]).view.expelled)
    assert not node_of(hosts[0]).negotiator.joins.open  # type: ignore[union-attr]
    go_on(world)


def test_a_device_follows_only_beside_a_few_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_FOLLOWERS", 1)
    world, hosts, outside = following(11)
    world.run(lambda: follows(outside))
    world.follow(world_member(8))
    another = world.join(8, hosts[0])
    world.run(lambda: bool(another.joins_failed))
    assert another.joins_failed == [standby.WANTED]
    assert follows(outside)
    go_on(world)


def test_it_is_let_in_only_if_it_is_worth_its_place_several_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, hosts = cluster(12, beside=True)
    negotiator = node_of(hosts[0]).negotiator
    assert negotiator is not None
    answers = iter(["slow"] * 4 + ["", "", "slow"] * 4 + [""] * 99)
    monkeypatch.setattr(negotiator.joins, "_slows_down", lambda _join: next(answers))
    joiner = world.join(9, hosts[0])
    enter(world, joiner)
    assert len(list(answers)) < 99 - standby.WORTH_TIMES + 1
    go_on(world)


def test_one_that_has_followed_for_long_may_lose_its_links_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(standby, "STEADY_SECONDS", 3.0)
    world, hosts, outside = following(13)
    world.run(lambda: follows(outside))
    negotiator = node_of(hosts[0]).negotiator
    assert negotiator is not None
    negotiator.joins._failed[outside.me.node] = 1
    at = world.now
    world.run(lambda: world.now > at + 6.0)
    assert not negotiator.joins._failed
    go_on(world)


def test_who_would_slow_the_others_down_follows_until_it_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, hosts = cluster(4, beside=True)
    negotiator = node_of(hosts[0]).negotiator
    assert negotiator is not None
    why = ["its link is slow"]
    monkeypatch.setattr(negotiator.joins, "_slows_down", lambda _join: why[0])
    joiner = world.join(9, hosts[0])
    world.run(lambda: follows(joiner))
    since = hosts[0].iteration
    world.run(lambda: hosts[0].iteration > since + 20)
    assert joining_of(joiner).outside == "its link is slow"
    why[0] = "its link is slower"
    world.run(lambda: joining_of(joiner).outside == why[0])
    why[0] = ""
    enter(world, joiner)
    go_on(world)


def test_a_device_without_a_source_that_has_memory_stands_by() -> None:
    world, hosts = cluster(5, beside=True)
    for host in hosts:
        host.copies.is_full = True
    world.follow(world_member(9))
    joiner = world.join(9, hosts[0])
    world.run(lambda: bool(joiner.joins_failed))
    assert joiner.joins_failed == [standby.WANTED], "the others do not hold their update for it"
    go_on(world)


def test_nobody_follows_where_the_optimizer_is_divided() -> None:
    """It would have no part of that state, so it could not go on if the others were lost."""
    world, _, outside = following(6, stripes=2)
    world.run(lambda: bool(outside.joins_failed))
    assert outside.joins_failed == [standby.WANTED]
    go_on(world)


def test_whose_links_cannot_carry_the_updates_does_not_follow() -> None:
    pace = Pace()
    cost = JoinCost(state_bytes=1 << 26, update_bytes=1 << 20, pace=pace)
    assert cost.can_follow((0,)), "not known yet"
    assert cost.can_follow((1 << 20,))
    for now in range(8):
        pace.applied(float(now))
    assert cost.can_follow((2 << 20,))
    assert not cost.can_follow((1 << 20,))
    assert not cost.can_follow((2 << 20,), failed=2)
    assert not replace(cost, way=JoinWay.PAUSE).can_follow((2 << 20,))
    assert not replace(cost, update_bytes=0).can_follow((2 << 20,))


def test_a_member_that_is_to_follow_leaves_once_there_are_enough_others() -> None:
    world, hosts = cluster(7, 3)
    judge = node_of(hosts[2])
    judge.context.config = replace(judge.context.config, follows=True)
    for _ in range(2):
        judge.standing.look(world.now)
    assert judge.context.departs == "standby"
    assert judge.context.standby == standby.WANTED
    few, pair = cluster(8, 2)
    judge = node_of(pair[1])
    judge.context.config = replace(judge.context.config, follows=True)
    judge.standing.look(few.now)
    assert judge.context.departs == "", "the other one would be alone"


def test_what_a_device_says_after_its_copy_is_whole_is_answered_without_a_snapshot() -> None:
    world, hosts, outside = following(9)
    world.run(lambda: follows(outside))
    source, number = hosts[1], joining_of(outside).number
    world.run(lambda: not source.copies.snapshots)
    sent = len(source.serves.get(number, []))
    for message in (m.ManifestRequest(number, 64, 0), m.ShardRequest(number, 64, (0,))):
        world.say(outside, source, message)
    assert len(source.serves.get(number, [])) == sent
    go_on(world)


def test_that_another_joiner_stays_outside_is_told_to_the_user_only() -> None:
    world, hosts = cluster(10, beside=True)
    joiner = world.join(9, hosts[0])
    reach(world, joiner, JoiningState.COPYING)
    entry, other = node_of(joiner).entry, hosts[1].me.node
    entry.stays_outside(m.StaysOutside(1, other, "slow"))
    assert joining_of(joiner).outside == ""
    entry.stays_outside(m.StaysOutside(1, joiner.me.node, "of an older join"))
    assert joining_of(joiner).outside == ""
    enter(world, joiner)
    joining_of(joiner).stay_outside("too late")
    assert joining_of(joiner).outside == ""
    hosts[0].handle(Tick())
    go_on(world)


def test_the_life_of_a_device_that_follows() -> None:
    life = Life(lambda: None)
    assert life.follows("slow") == [], "it has no join"
    life.state = LifeState.JOINING
    assert life.follows("slow") == [Say(Note.FOLLOWS, "slow")]
    assert life.follows("slower") == []
    assert life.standby == "slower"
    life.entered(1.0)
    assert life.standby == ""
    life.state = LifeState.JOINING
    assert life.follows("slow again") == [Say(Note.FOLLOWS, "slow again")]
    failed = life.join_failed(2.0, "the link broke", 7.0)
    assert failed == [
        Say(Note.FOLLOWS_NO_MORE, "the link broke", pause_s=7.0),
        DropNode(),
        KeepState(False),
    ]
    assert not life.is_hung, "its trainer answers"
    assert life.saved(3.0, "", "") == [DropNode()], "the trainer is idle by now"
    assert life.tick(9.0) == [LookAround(7.0)]
    life.state = LifeState.JOINING
    assert life.follows("slow again") == [Say(Note.FOLLOWS, "slow again")]


def test_one_whose_trainer_is_slow_applies_what_is_here_before_it_goes_on_alone() -> None:
    world, hosts, outside = harsh(3, steps=60)
    world.run(lambda: follows(outside))
    outside.hang(5.0)
    ends_alike(world, hosts, outside)
    assert outside.iteration == world.steps


def test_who_follows_fails_only_when_its_trainer_is_idle() -> None:
    """Its trainer applies what has come: that may be the last update, with which it has ended."""
    world, _, outside = following(1)
    world.run(lambda: follows(outside))
    joining = joining_of(outside)
    copy = joining.copy
    assert copy is not None
    update = Applied(copy.next, b"")
    with patch.object(Copying, "drains", property(lambda _copy: True)):
        joining.fail("the others are gone")
        assert follows(outside)
    with (
        patch.object(Copying, "drains", property(lambda _copy: False)),
        patch.object(copy, "applied", return_value=True),
    ):
        assert joining.update_applied(update)
    assert joining.state is JoiningState.FAILED
