"""Clusters in which no member keeps all of the optimizer's state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols.cluster.stripes import OnLost
from tests.unit.protocols.clusters import cluster, node_of

if TYPE_CHECKING:
    from protocols.cluster.policy import Policy
    from tests.simulation.host import Host
    from tests.simulation.world import World

STRIPES = 4


def policy_of(host: Host) -> Policy:
    policy = node_of(host).context.policy
    assert policy is not None
    return policy


def is_level(world: World, copies: int) -> bool:
    """Whether each stripe has as many holders as it can, and nobody learns."""
    for host in world.members:
        policy = policy_of(host)
        wanted = min(copies + 1, len(policy.view.nodes))
        if any(len(s.holders) != wanted or s.learners for s in policy.stripes):
            return False
    return True


def divided(
    seed: int, size: int, copies: int, steps: int = 60, on_lost: OnLost = OnLost.WAIT
) -> tuple[World, list[Host]]:
    """Return a world with `size` members that hold equally much."""
    world, hosts = cluster(seed, size, steps, stripes=STRIPES, copies=copies, on_lost=on_lost)
    world.run(lambda: is_level(world, copies))
    return world, hosts


def ends(world: World, *but: Host) -> None:
    """Run to the end of training, at which all but these must have the right state."""
    world.run(lambda: all(h.gone for h in world.hosts.values()))
    for host in world.hosts.values():
        if host not in but:
            assert host.gone == "steps", f"{host.me.name} ended with {host.gone}"
            assert host.state == world.right(world.steps, host.slots.losses)
