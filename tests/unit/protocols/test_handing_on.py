"""Members that leave and hand on what only they keep of the optimizer's state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgeagent.advice import leaving_waits_for
from protocols import limits
from protocols.events import LeaveWanted, StandAside
from protocols.member.cycle_table import CycleState
from protocols.scheduler.levelling import Haste, level
from tests.unit.protocols.clusters import cluster, go_on, node_of, policy_of, reported

if TYPE_CHECKING:
    from tests.simulation.world import Host, World

STRIPES, STRIPE_BYTES = 24, 16 << 20  # so large that one is handed on under each policy
STEP_S = 2.0


def slow_steps(size: int, copies: int) -> tuple[World, list[Host]]:
    """Return a world whose members hold equally much, and whose steps take `STEP_S`."""
    world, hosts = cluster(
        0, size, stripes=STRIPES, copies=copies, stripe_bytes=STRIPE_BYTES, steps=2000
    )
    world.run(lambda: all(not s.learners for s in policy_of(hosts[0]).stripes))
    world.compute = lambda: STEP_S / 2  # type: ignore[method-assign]  # of each of its two parts
    return world, hosts


@pytest.mark.parametrize(("size", "copies", "leavers"), [(4, 1, 2), (2, 0, 1)])
def test_who_leaves_stays_until_others_keep_what_it_alone_kept(
    size: int, copies: int, leavers: int
) -> None:
    world, hosts = slow_steps(size, copies)
    going, staying = hosts[size - leavers :], hosts[: size - leavers]
    begun = world.now
    for host in going:
        host.handle(LeaveWanted())
    world.run(lambda: all(h.gone for h in going), 120.0)
    assert [h.gone for h in going] == ["left"] * leavers
    assert world.now - begun > limits.LEAVE_SECONDS, "so it would have left too early"
    go_on(world, 3)
    assert not any(reported(h, "parts_missing") for h in staying)
    reports = max((reported(h, "handing_on") for h in going), key=len)
    told = [int(str(e["parts"])) for e in reports]
    assert told
    assert told == sorted(told, reverse=True)
    assert len(told) <= 1 + (world.now - begun) / limits.LEAVE_SECONDS


def test_who_can_hand_nothing_on_goes_in_the_end() -> None:
    world, hosts = slow_steps(2, 0)
    node = node_of(hosts[1])
    assert "first hands 12 parts of the optimizer's state" in leaving_waits_for("training", node)
    world.compute = lambda: 10_000.0  # type: ignore[method-assign]  # the trainers hang
    begun = world.now
    hosts[1].handle(LeaveWanted())
    world.run(lambda: hosts[1].gone is not None, 200.0)
    assert hosts[1].gone == "left"
    waited = world.now - begun
    assert limits.LEAVE_HOLDING_SECONDS <= waited < limits.LEAVE_HOLDING_SECONDS + 5.0


def test_who_hangs_does_not_go_before_it_is_let_go() -> None:
    """If all hang, each may be all that is left of the cluster."""
    world, hosts = cluster(0)
    world.compute = lambda: 10_000.0  # type: ignore[method-assign]  # the trainers hang
    begun = world.now
    for host in hosts:
        host.handle(StandAside())
    world.run(lambda: world.now > begun + 200.0, 300.0)
    assert [h.gone for h in hosts] == [None] * 3


def test_where_all_leave_the_last_one_takes_everything() -> None:
    """However long that takes: it is the scheduler, to which the others hand on what they keep."""
    world, hosts = slow_steps(2, 0)
    scheduler = next(h for h in hosts if node_of(h).context.election.leads)
    other = next(h for h in hosts if h is not scheduler)
    for host in hosts:
        host.handle(LeaveWanted())
    departure = node_of(scheduler).departure
    world.run(lambda: departure._takes_all)
    assert not departure._is_overdue(world.now + 1e6)
    world.run(lambda: all(h.gone for h in hosts), 120.0)
    assert (scheduler.gone, other.gone) == ("left", "left")
    assert len(policy_of(scheduler).view.nodes) == 1
    assert not departure._kept_by or departure.alone_with == STRIPES


def test_what_only_leavers_keep_is_handed_on_first() -> None:
    _, hosts = slow_steps(4, 1)
    policy = policy_of(hosts[0])
    going = policy.view.nodes[2:]
    new = level(policy.view, policy.stripes, 1, going, haste=Haste(STRIPE_BYTES))
    (learned,) = [s for s in new if s.learners]
    assert not any(k < 2 for k in learned.holders)


def test_nothing_is_kept_by_who_is_no_member_and_an_update_is_not_torn() -> None:
    world, hosts = slow_steps(2, 0)
    node = node_of(hosts[1])
    hosts[1].handle(LeaveWanted())
    world.run(lambda: node.cycle.state is CycleState.APPLYING)
    node.departure.passed_over(world.now, is_broken=True)
    node.departure.passed_over(world.now + 10.0, is_broken=True)
    assert not node.over
    policy, node.context.policy = node.context.policy, None
    assert node.departure.alone_with == 0
    assert not node.departure._takes_all
    node.context.policy = policy
