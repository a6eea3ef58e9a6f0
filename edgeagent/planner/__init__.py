"""Pure algorithms of the scheduler: numbers in, a plan and the reason for it out.

Law: no I/O, no clock, no randomness that was not passed in; equal arguments give equal answers.
`StandardPlanner` is what `protocols.planning.Planner` asks for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeagent.planner.shards import even_assignment
from edgeagent.planner.shares import even_shares
from edgeagent.planner.trees import shallow_tree
from protocols import limits
from protocols.planning import Plan

if TYPE_CHECKING:
    from protocols.view import View


class StandardPlanner:
    """Even shares, a shallow tree, links from a joiner to every member, even shards."""

    def plan(self, view: View, micro_batches: int, away: tuple[bytes, ...]) -> Plan:
        """Return the tree and the shares for `view`."""
        parents, depth = shallow_tree(view)
        shares = even_shares(view.nodes, micro_batches, away)
        working = sum(share > 0 for share in shares)
        reason = (
            f"tree of depth {depth} over {len(shares)} devices; "
            f"{micro_batches} micro-batches evenly over {working}"
        )
        return Plan(parents, shares, reason)

    def neighbours(self, view: View, wanted: tuple[str, ...]) -> tuple[bytes, ...]:
        """Return the members that a joiner shall link to: the wanted ones, else all."""
        named = tuple(m.node for m in view.members if m.name in wanted)
        return (named or view.nodes)[: limits.MAX_LINKS_PER_NODE - 1]

    def assign(
        self, shards: tuple[int, ...], sources: tuple[bytes, ...]
    ) -> dict[bytes, tuple[int, ...]]:
        """Divide equal `shards` evenly among `sources`."""
        return even_assignment(shards, sources)
