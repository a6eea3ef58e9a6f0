"""All who kept a part of the optimizer's state are lost: the others stop, or that part begins
anew."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from edgeagent.advice import leaving_waits_for
from protocols import limits
from protocols.cluster.policy import Pull
from protocols.cluster.stripes import OnLost, Stripe, begun_anew, orphans, taken_over
from protocols.effects import Report
from protocols.events import LeaveWanted
from protocols.recovery.missing_parts import MissingParts
from protocols.scheduler.fence import FenceLeader, Lost, LostParts, decide
from tests.simulation.sharding import ANEW, LOST
from tests.simulation.world import World
from tests.unit.protocols.clusters import enter, node_of
from tests.unit.protocols.divided_clusters import STRIPES, divided, ends, is_level, policy_of
from tests.unit.protocols.records import member, node, star_policy
from tests.unit.protocols.reports import (
    BATCH,
    BEFORE,
    CHUNKS,
    EPOCH,
    PLANNER,
    RUNNING,
    STEPS,
    report_of,
)
from tests.variants import variants

if TYPE_CHECKING:
    from protocols.cluster.policy import Policy
    from protocols.wire.messages import Restart
    from tests.simulation.host import Host


def wait(world: World, seconds: float) -> None:
    """Let so much time pass."""
    end = world.now + seconds
    world.later(seconds, lambda: None)
    world.run(lambda: world.now >= end)


def told(host: Host, event: str) -> list[dict[str, object]]:
    """Return what a device has reported of this kind."""
    return [r.values for r in host.reports if r.event == event]


@pytest.mark.parametrize("moment", variants(range(0, 180, 24), range(180)))
def test_one_of_three_is_killed_at_any_moment_and_its_parts_begin_anew(moment: int) -> None:
    world, hosts = divided(1, 3, 0, 60, OnLost.FRESH)
    dead = hosts[moment % 3]
    world.before(moment + 1, lambda: world.kill(dead))
    ends(world, dead)
    for host in hosts:
        if host is not dead:
            (anew,) = told(host, "parts_anew")
            assert anew["of"] == STRIPES
            assert not told(host, "parts_complete")
            assert any(what == ANEW for what, _, _ in host.slots.losses)


@pytest.mark.parametrize("moment", variants(range(3, 240, 48), range(240)))
def test_two_of_four_are_killed_at_once_and_what_only_they_had_begins_anew(moment: int) -> None:
    world, hosts = divided(2, 4, 1, 60, OnLost.FRESH)
    dead = [hosts[moment % 4], hosts[(moment + 1 + moment // 4 % 3) % 4]]
    for host in dead:
        world.before(moment + 1, lambda host=host: world.kill(host))  # type: ignore[misc]
    ends(world, *dead)


@pytest.mark.parametrize("moment", variants(range(5, 180, 48), range(180)))
def test_one_is_killed_shortly_after_another(moment: int) -> None:
    world, hosts = divided(3, 4, 0, 80, OnLost.FRESH)
    world.before(moment + 1, lambda: world.kill(hosts[1]))
    world.before(moment + 10 + moment % 30, lambda: world.kill(hosts[moment % 2 * 2]))
    ends(world, hosts[1], hosts[moment % 2 * 2])


def test_sums_that_are_lost_with_their_holder_are_left_out() -> None:
    found = []
    for moment in range(0, 120, 3):
        world, hosts = divided(4, 2, 0, 40, OnLost.FRESH)
        world.before(moment + 1, partial(world.kill, hosts[1]))
        ends(world, hosts[1])
        found += [what for what, _, _ in hosts[0].slots.losses]
    assert LOST in found
    assert ANEW in found


def test_who_is_only_out_of_reach_is_waited_for_first() -> None:
    world, hosts = divided(5, 3, 0, 4000, OnLost.FRESH)
    for other in hosts[:2]:
        world.cut(hosts[2], other)
    before = node_of(hosts[0]).context.iteration
    wait(world, limits.PARTS_WAIT_SECONDS - 5.0)
    assert node_of(hosts[0]).context.iteration <= before + 2
    assert not told(hosts[0], "parts_anew")
    wait(world, 15.0)
    assert told(hosts[0], "parts_anew")
    assert node_of(hosts[0]).context.iteration > before + 2


def test_a_joiner_begins_with_what_has_begun_anew() -> None:
    world, hosts = divided(6, 3, 0, 400, OnLost.FRESH)
    world.kill(hosts[2])
    world.run(lambda: bool(told(hosts[0], "parts_anew")))
    hosts.append(world.join(3, hosts[0]))
    enter(world, hosts[-1])
    ends(world, hosts[2])
    assert hosts[-1].slots.losses == hosts[0].slots.losses != frozenset()


def test_the_others_stop_if_that_is_wanted() -> None:
    world, hosts = divided(7, 3, 0, 4000, OnLost.STOP)
    world.kill(hosts[1])
    world.run(lambda: all(h.gone for h in hosts))
    for host in (hosts[0], hosts[2]):
        assert host.gone == "parts lost"
        assert told(host, "parts_missing")[0]["nodes"] == [hosts[1].me.name]


def test_what_a_user_is_told_when_parts_are_lost() -> None:
    world, hosts = divided(8, 3, 0, 4000, OnLost.STOP)
    context = node_of(hosts[0]).context
    parts = MissingParts(context)
    assert not parts.given_up(world.now, Lost())
    assert parts.words.endswith("are lost with , which alone had them")
    away = Lost(nodes=(hosts[1].me.node,))
    context.now = now = world.now
    parts.tell(now, away)
    assert parts.deadline == now + limits.PARTS_WAIT_SECONDS
    assert not parts.given_up(now, away)
    assert parts.given_up(now, Lost(dead=away.nodes))
    assert parts.given_up(now + limits.PARTS_WAIT_SECONDS, away)
    assert hosts[1].me.name in parts.words
    context.policy = None
    assert parts.words.endswith("are lost with , which alone had them")
    context.effects.clear()


def test_nobody_is_given_up_who_is_waited_for_without_limit() -> None:
    hosts = divided(9, 3, 0, 4000)[1]
    parts = MissingParts(node_of(hosts[0]).context)
    lost = Lost(dead=(hosts[1].me.node,))
    parts.tell(0.0, lost)
    assert parts.deadline is None
    assert not parts.given_up(1000.0, lost)


def test_parts_are_taken_over_by_those_that_hold_least() -> None:
    stripes = (Stripe(b"\0"), Stripe(b"", b"", 3), Stripe(b"\0\1"), Stripe(b""))
    found = taken_over(stripes, 3, 9)
    assert found == (stripes[0], Stripe(b"\2", b"", 9), stripes[2], Stripe(b"\1", b"", 9))
    assert orphans(found) == ()
    assert begun_anew(found, 9) == (1, 3)
    assert begun_anew(found, 8) == ()
    assert begun_anew(stripes, 0) == ()


ONE, TWO, THREE = (node(k) for k in range(1, 4))
COPY = Pull(7, member(9), (ONE, TWO), TWO, beside=True)


def holding(*holders: bytes) -> Policy:
    """Return a policy of members 1 to 3 with these holders of three stripes."""
    return replace(star_policy(3, (COPY,)), stripes=tuple(Stripe(h) for h in holders))


def without_three(policy: Policy, **report: Any) -> Restart:
    """Return the decision of members 1 and 2, who have reported the same."""
    found = {n: report_of(policy, links=(ONE, TWO), **report) for n in (ONE, TWO)}
    return decide(policy, found, EPOCH, CHUNKS, BATCH, PLANNER, ONE, forks=False)


def test_a_fence_names_the_iteration_at_which_parts_begin_anew() -> None:
    policy = holding(b"\0", b"\2", b"\2\1")
    again = without_three(policy)
    assert not again.applied
    assert [s.anew for s in again.policy.stripes] == [0, 5, 0]
    assert [s.holders for s in again.policy.stripes] == [b"\0", b"\0", b"\1"]
    finish = without_three(policy, have=(0,))
    assert finish.applied
    assert [s.anew for s in finish.policy.stripes] == [0, 6, 0]
    # A joiner that copies beside the training would not know of it.
    assert again.policy.pulls == finish.policy.pulls == ()
    kept = without_three(holding(b"\0", b"\1", b"\2\1"))
    assert kept.policy.pulls == (COPY,)


def test_an_update_without_the_lost_sums_is_another_one() -> None:
    policy = holding(b"\0", b"\2", b"\2\1")
    whole = without_three(policy, have=(0, 2))  # somebody has the result of the lost chunk
    assert whole.attempt_id == RUNNING
    lacking = without_three(policy, have=(0, 1, 3))
    assert lacking.attempt_id not in (RUNNING, BEFORE)
    assert lacking.attempt_id == without_three(policy, have=(0, 1, 3)).attempt_id
    found = {n: report_of(policy, links=(ONE, TWO), iteration=at) for n, at in ((ONE, 5), (TWO, 6))}
    ahead = decide(policy, found, EPOCH, CHUNKS, BATCH, PLANNER, ONE, forks=False)
    assert ahead.attempt_id == BEFORE


def leader(
    *,
    begins_anew: bool,
    lost: Lost,
    at: tuple[int, int] = (5, 5),
    steps: int = STEPS,
    since: float = 0.0,
) -> FenceLeader:
    """Return a fence of member 1 to which members 1 and 2 have reported at time 0, where they are
    `at` these iterations; member 3 has been gone since the time `since`."""
    policy = holding(b"\0", b"\2", b"\2\1")
    options = (policy, (policy.electorate,), lost, CHUNKS, BATCH, steps, PLANNER, 0.0)
    parts = LostParts(begins_anew, {THREE: since})
    fence = FenceLeader(ONE, EPOCH, *options, at=(at[0], 0), parts=parts)
    for reporter, iteration in zip((ONE, TWO), at, strict=True):
        fence.report(0.0, reporter, report_of(policy, links=(ONE, TWO), iteration=iteration))
    return fence


def test_a_fence_waits_for_who_may_come_back_with_a_part() -> None:
    dead, away = Lost(dead=(THREE,)), Lost(nodes=(THREE,))
    assert leader(begins_anew=True, lost=dead).restart is not None
    waits = leader(begins_anew=False, lost=dead)
    late = limits.PARTS_WAIT_SECONDS
    waits.tick(10 * late)
    assert waits.restart is None
    assert waits.orphans == (1,)
    patient = leader(begins_anew=True, lost=away)
    patient.tick(late - 1.0)
    assert patient.restart is None
    patient.tick(late)
    assert patient.restart is not None


def test_a_further_fence_does_not_wait_anew() -> None:
    late = limits.PARTS_WAIT_SECONDS
    patient = leader(begins_anew=True, lost=Lost(nodes=(THREE,)), since=11.0 - late)
    patient.tick(10.5)
    assert patient.restart is None
    patient.tick(11.0)
    assert patient.restart is not None


def test_who_is_lost_again_during_a_fence_is_waited_for_anew() -> None:
    late = limits.PARTS_WAIT_SECONDS
    patient = leader(begins_anew=True, lost=Lost(nodes=(THREE,)))
    patient.lose(late - 2.0, Lost())
    patient.lose(late - 1.0, Lost(nodes=(THREE,)))
    patient.tick(2 * late - 3.0)
    assert patient.restart is None
    patient.tick(2 * late - 1.0)
    assert patient.restart is not None


@pytest.mark.parametrize("at", [(6, 6), (5, 6), (6, 5)])
def test_after_the_last_update_members_end_without_parts(at: tuple[int, int]) -> None:
    dead, away = Lost(dead=(THREE,)), Lost(nodes=(THREE,))
    waits = leader(begins_anew=False, lost=dead, at=at, steps=7)
    waits.tick(10 * limits.PARTS_WAIT_SECONDS)
    assert waits.restart is None  # one more update is to be made, which needs the parts
    for lost, seconds in ((dead, 0.0), (away, limits.PARTS_WAIT_SECONDS)):
        fence = leader(begins_anew=False, lost=lost, at=at, steps=6)
        fence.tick(seconds - 1.0)
        assert (fence.restart is None) is (lost is away)
        fence.tick(seconds)
        assert fence.restart is not None
        assert fence.restart.applied is (5 in at)


def kill(world: World, host: Host) -> None:
    """Kill a device, unless it has ended already."""
    if host.gone is None:
        world.kill(host)


@pytest.mark.parametrize("moment", variants(range(0, 60, 10), range(60)))
@pytest.mark.parametrize("on_lost", OnLost)
def test_one_is_killed_after_the_last_update(moment: int, on_lost: OnLost) -> None:
    world, hosts = divided(12 + moment, 3, 0, 40, on_lost)
    dead = hosts[moment % 3]
    # One that still lacks the result of the last update gets it from the others; with `stop` it
    # leaves, because it cannot know that they have it.
    most = 3 if on_lost is OnLost.STOP else 2
    world.run(lambda: sum(h.iteration == world.steps for h in hosts) >= most)
    ahead = [h for h in hosts if h.iteration == world.steps]
    held = {h: dict(h.slots.here) for h in hosts}
    world.before(moment // 3 + 1, partial(kill, world, dead))
    ends(world, dead)
    for host in hosts:
        if host is not dead:
            assert not told(host, "parts_anew")
            assert not host.slots.losses
            # It saves what it held, and no zeros in the place of what is lost.
            assert host.slots.here.keys() == held[host].keys()
            if host in ahead:
                assert all(x["then"] == "end" for x in told(host, "parts_missing"))


def test_what_a_member_in_reach_has_learned_is_not_missing() -> None:
    world, hosts = divided(14, 3, 0, 4000)
    context = node_of(hosts[0]).context
    me, other, third = (h.me.node for h in hosts)
    nodes = policy_of(hosts[0]).view.nodes
    numbers = {n: nodes.index(n) for n in nodes}
    mine, theirs = bytes([numbers[me]]), bytes([numbers[third]])
    stripes = (Stripe(mine), Stripe(theirs, bytes([numbers[other]])), Stripe(theirs), Stripe(mine))
    policy = context.policy = replace(policy_of(hosts[0]), stripes=stripes)
    parts, lost = MissingParts(context), Lost(dead=(third,))
    parts.tell(world.now, lost)
    assert parts.lacking(policy, (me, other)) == (1, 2)
    parts.learned(other, (1, 2, 99))  # of stripe 2 it is no learner, and there is none of number 99
    parts.learned(node(99), (2,))
    assert parts.lacking(policy, (me, other)) == (2,)
    assert parts.lacking(policy, (me,)) == (1, 2)
    assert parts.holders(lost) == (third,)
    parts.switched()
    assert parts.lacking(policy, (me, other)) == (1, 2)
    context.policy = None
    parts.learned(other, (1,))
    context.effects.clear()


def test_who_rounds_updates_otherwise_is_told() -> None:
    world, hosts = divided(14, 3, 0, 4000)
    context = node_of(hosts[0]).context
    policy, parts = policy_of(hosts[0]), MissingParts(context)

    def rounding(*classes: str) -> list[object]:
        pairs = zip(policy.view.members, classes, strict=True)
        members = tuple(replace(m, numeric_class=name) for m, name in pairs)
        context.policy = replace(policy, view=replace(policy.view, members=members))
        parts.tell(world.now, Lost())
        reports = [e for e in context.effects if isinstance(e, Report) and e.event == "rounding"]
        context.effects.clear()
        return [r.values["groups"] for r in reports]

    first, second, third = (m.name for m in policy.view.members)
    assert rounding("", "", "") == []
    assert rounding("pc", "mac", "mac") == [[[second, third], [first]]]
    assert rounding("pc", "mac", "mac") == []
    assert rounding("pc", "pc", "mac") == [[[first, second], [third]]]
    assert rounding("mac", "mac", "mac") == [[[first, second, third]]]
    assert rounding("mac", "mac", "mac") == []


def test_after_the_last_update_who_is_out_of_reach_is_given_time_to_come_back() -> None:
    world, hosts = divided(13, 3, 0, 40)
    world.run(lambda: hosts[0].iteration == world.steps)
    for other in hosts[:2]:
        world.cut(hosts[2], other)
    before = world.now
    world.run(lambda: all(h.gone for h in hosts[:2]))
    assert world.now - before >= limits.PARTS_WAIT_SECONDS
    for host in hosts[:2]:
        assert host.gone == "steps"
        assert told(host, "parts_missing")


def test_who_waits_for_a_part_may_leave_soon() -> None:
    world, hosts = divided(10, 3, 0, 4000)
    world.kill(hosts[2])
    world.run(lambda: bool(told(hosts[0], "parts_missing")))
    wait(world, 5.0)
    before = world.now
    assert "within 3 s" in leaving_waits_for("training", node_of(hosts[0]))
    hosts[0].handle(LeaveWanted())
    world.run(lambda: hosts[0].gone is not None)
    assert hosts[0].gone == "left"
    assert world.now - before < limits.LEAVE_LACKING_SECONDS + 2 * limits.RETRY_SECONDS


def test_members_that_met_only_over_a_lost_one_look_for_each_other() -> None:
    world = World(11, steps=400)
    world.sparse = True
    world.stripes, world.stripe_copies = STRIPES, 1
    hub = world.found()
    hosts = [hub]
    for number in (1, 2):
        hosts.append(world.join(number, hub, neighbours=(hub.me.name,)))
        enter(world, hosts[-1])
    world.run(lambda: is_level(world, 1))
    assert hosts[1].me.node not in hosts[2].links
    world.kill(hub)
    ends(world, hub)
