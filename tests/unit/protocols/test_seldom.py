"""Cases that random histories reach only in one of some hundred seeds."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

from protocols import effects, events
from protocols.cluster.policy import Pull
from protocols.cluster.view import edge, make_view
from protocols.member.cycle_table import CycleState
from protocols.member.holds import _Lacking
from protocols.member.joining_table import JoiningState
from protocols.member.orders import may_store
from protocols.wire import messages as m
from tests.simulation.world import World
from tests.unit.protocols.clusters import (
    ENDLESS,
    cluster,
    go_on,
    node_of,
    policy_of,
    reach,
    state_of,
)
from tests.unit.protocols.reports import report_of
from tests.unit.protocols.test_recovery import FIRST, said

if TYPE_CHECKING:
    from protocols.cluster.policy import Policy


def restart_of(policy: Policy, iteration: int) -> m.Restart:
    """Return a decision to do a round again, as any scheduler could make it."""
    members = len(policy.view.members)
    empty = (b"",) * members
    return m.Restart(policy, iteration, False, 0, 1, bytes(32), empty, empty)


def test_a_joiner_that_was_dropped_takes_nothing_more_from_that_member() -> None:
    world, hosts = cluster(0)
    joiner = world.join(9, hosts[0])
    reach(world, joiner, JoiningState.PULLING)
    source = next(iter(joiner.links))
    wanted = said(world, world.hosts[source], joiner, m.Dropped())
    assert effects.CloseLink(source) in wanted


def test_a_policy_that_is_older_than_the_one_in_force_is_not_stored() -> None:
    world, hosts = cluster(0)
    old = policy_of(hosts[1])
    world.join(9, hosts[0])
    world.run(lambda: policy_of(hosts[1]).key > old.key)
    context = node_of(hosts[1]).context
    assert not may_store(context, hosts[0].me.node, old)


def test_a_policy_of_another_lineage_is_not_stored() -> None:
    _world, hosts = cluster(0)
    policy = policy_of(hosts[1])
    other = replace(policy, view=replace(policy.view, lineage=bytes(16)))
    assert not may_store(node_of(hosts[1]).context, hosts[0].me.node, other)


def test_a_joiner_waits_until_members_that_differ_have_parted() -> None:
    world, hosts = cluster(0)
    joiner = world.join(9, hosts[0])
    reach(world, joiner, JoiningState.FOLLOWING)
    node_of(joiner).replicas.found((hosts[2].me.node,))
    assert state_of(joiner) is JoiningState.FAILED


def test_a_decision_of_somebody_who_leads_no_fence_here_is_not_followed() -> None:
    _world, hosts = cluster(0)
    node = node_of(hosts[2])
    restart = restart_of(policy_of(hosts[2]), node.context.iteration)
    assert not node.recovery.fenced.decided(hosts[1].me.node, FIRST, restart)


def test_a_decision_is_nothing_to_who_is_no_member() -> None:
    world, hosts = cluster(0)
    joiner = world.join(9, hosts[0])
    reach(world, joiner, JoiningState.PULLING)
    restart = restart_of(policy_of(hosts[2]), node_of(joiner).context.iteration)
    assert not node_of(joiner).recovery.fenced.decided(hosts[0].me.node, FIRST, restart)


def test_who_says_that_it_is_outside_is_not_waited_for() -> None:
    world, hosts = cluster(0, size=4)
    recovery = node_of(hosts[0]).recovery
    world.kill(hosts[3])
    world.run(lambda: recovery.fence is not None)
    fence = recovery.fence
    assert fence is not None
    recovery.outside(world.now, hosts[2].me.node, fence.epoch)
    assert fence._outside == {hosts[2].me.node: None}


def test_a_fence_keeps_the_join_of_who_may_be_a_member_by_now() -> None:
    world, hosts = cluster(0)
    joiner = world.join(9, hosts[0])
    negotiator = node_of(hosts[0]).negotiator
    assert negotiator is not None
    world.run(lambda: bool(negotiator.joins.open))
    policy = policy_of(hosts[0])
    view = policy.view
    link = edge(hosts[0].me.node, joiner.me.node)
    larger = make_view(
        view.lineage, view.number + 1, [*view.members, joiner.me], [*view.edges, link]
    )
    recovery = node_of(hosts[0]).recovery
    entering = SimpleNamespace(view=larger, pulls=())
    recovery._end_changes(policy, entering)  # type: ignore[arg-type]
    (number,) = negotiator.joins.open
    beside = Pull(number, joiner.me, (hosts[0].me.node,), hosts[0].me.node, beside=True)
    recovery._end_changes(replace(policy, pulls=(beside,)))
    assert list(negotiator.joins.open) == [number], "what is kept for it does not change"
    recovery._end_changes(replace(policy, pulls=(replace(beside, beside=False),)))
    assert not negotiator.joins.open


def test_a_report_to_a_fence_of_an_older_term_asks_for_a_new_one() -> None:
    """The member is frozen by a fence that nobody leads any more."""
    world, hosts = cluster(0)
    world.kill(hosts[0])
    world.run(lambda: any(h.node is not None and h.node.negotiator for h in hosts[1:]))
    scheduler = next(h for h in hosts[1:] if node_of(h).negotiator is not None)
    go_on(world)
    node = node_of(scheduler)
    assert node.recovery.fence is None
    other = next(h for h in hosts[1:] if h is not scheduler)
    report = report_of(policy_of(scheduler), iteration=node.context.iteration)
    late = m.FenceReport(1, 1, *[getattr(report, name) for name in m.FenceReport.__slots__[2:]])
    node.recovery.reported(world.now, other.me.node, late)
    scheduler.handle(events.Tick())
    assert node.recovery.fence is not None


def test_the_first_member_hangs_in_the_update_with_which_the_second_enters() -> None:
    """The joiner has followed the round, so it is a member already and waits, although the policy
    in force at the first one names nobody else yet."""
    world = World(5, steps=ENDLESS)
    first = world.found()
    second = world.join(1, first)
    node = node_of(first)

    def enters() -> bool:
        policy = node.context.policies.get(node.cycle._named)
        is_named = policy is not None and second.me.node in policy.view.nodes
        return is_named and node.context.is_alone and node.cycle.state is CycleState.APPLYING

    world.run(enters)
    first.hang(60.0)
    at = world.now
    world.run(lambda: second.is_member and second.iteration >= first.iteration + 3)
    assert world.now < at + 50.0


def test_a_member_whose_trainer_lacked_updates_forgets_a_joiner_that_is_gone_meanwhile() -> None:
    world, hosts = cluster(0)
    joiner = world.join(9, hosts[0])
    reach(world, joiner, JoiningState.PULLING)
    policy = policy_of(hosts[0])
    (pull,) = policy.pulls
    node = node_of(hosts[1])
    holds = node.cycle.holds
    holds.drop()
    holds._lacking[pull.join] = _Lacking(policy, pull, by=world.now)
    before = len(node.context.take_effects())
    holds.tick(is_whole=True)
    assert holds.deadline is None
    assert len(node.context.take_effects()) == before == 0, "nobody is told anything"
