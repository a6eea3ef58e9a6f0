"""Members that leave and hand on what only they keep of the optimizer's state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgeagent.advice import leaving_waits_for
from protocols import limits
from protocols.events import LeaveWanted, StandAside
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
    told = [int(str(e["parts"])) for e in reported(going[-1], "handing_on")]
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


def test_who_is_to_go_because_its_trainer_hangs_goes_though_nobody_lets_it_go() -> None:
    world, hosts = cluster(0)
    world.compute = lambda: 10_000.0  # type: ignore[method-assign]  # the trainers hang
    begun = world.now
    hosts[1].handle(StandAside())
    world.run(lambda: hosts[1].gone is not None, 200.0)
    assert hosts[1].gone == "stalled"
    assert world.now - begun < limits.LEAVE_SECONDS + 5.0
