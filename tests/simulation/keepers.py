"""Which parts of a divided optimizer state were lost with the last device that kept them.

An all-knowing observer notes it whenever a device goes. A history in which all devices wait for a
part without limit is right only if that part was lost so: whatever else members lack, somebody in
the newest policy still had it, and the protocol has lost it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols.cluster.stripes import held_by
from tests.simulation.sharding import chunks_of, lost_stripes

if TYPE_CHECKING:
    from protocols.cluster.policy import Policy
    from protocols.member.context import Context
    from protocols.member.node import Node
    from tests.simulation.host import Host
    from tests.simulation.world import World


class Keepers:
    """The observer of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        # Lineages and chunks that nobody keeps any more.
        self._lost: dict[tuple[bytes, int], None] = {}

    def goes(self, host: Host) -> None:
        """Note what is lost with `host`, which ends now."""
        if not self._world.stripes or host.node is None or host.gone is not None:
            return
        if not host.is_member:  # what it has is of no use to anybody
            return
        others = self._others(host, host.node.context)
        for chunk in kept_by(host):
            if not any(chunk in kept_by(other) for other in others):
                # Those who were cut off from a fork wait for it in the lineage before.
                self._lost |= dict.fromkeys((x, chunk) for x in lineages_of(host.node))

    def check(self, member: Host) -> None:
        """Check that `member` lacks a part that a device has taken away. Once one is gone all wait
        for ever, so others may be taken away then by whoever likes."""
        assert member.node is not None
        lineage, count = member.node.context.lineage, self._world.stripes
        chunks = [c for s in lost_stripes(member) for c in chunks_of((s,), count)]
        known = any((lineage, chunk) in self._lost for chunk in chunks)
        assert known, f"{member.me.name} lacks chunks {chunks}, which nobody took away"

    def _others(self, host: Host, own: Context) -> list[Host]:
        """Return the other members that run, by the newest policy in the lineage of `host`, whose
        context is `own`. That may be the policy of `host` alone: it acts on it from then on."""
        found: list[tuple[Host, Policy]] = []
        for other in self._world.hosts.values():
            if other is host or other.node is None or other.gone is not None or other.node.over:
                continue
            context = other.node.context
            if context.lineage == own.lineage and context.policy is not None and other.is_member:
                found.append((other, context.policy))
        policies = [policy for _, policy in found]
        if own.policy is not None:
            policies.append(own.policy)
        newest = max(policies, key=lambda policy: policy.key, default=None)
        nodes = newest.view.nodes if newest is not None else ()
        return [other for other, _ in found if other.me.node in nodes]


def lineages_of(node: Node) -> tuple[bytes, ...]:
    """Return the lineage of a node's cluster, and those from which it has forked."""
    return (node.context.lineage, *(a.lineage for a in node.context.ancestors))


def kept_by(host: Host) -> list[int]:
    """Return the chunks of which `host`, a member, has slots that count: those of the stripes that
    it holds under the policy in force, and those that it has learned. What it has beside them, as a
    former holder, counts for nobody."""
    node = host.node
    policy = node.context.policy if node is not None else None
    if node is None or policy is None:
        return []
    held = held_by(policy.stripes, policy.view.nodes.index(host.me.node))
    stripes = (*held, *node.cycle.learning.known)
    has = dict.fromkeys((*host.slots.here, *host.slots.coming))
    return [c for c in chunks_of(stripes, host.world.stripes) if c in has]
