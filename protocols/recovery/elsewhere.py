"""Members that have gone on in another lineage, and so take no more part in ours, although links to
them are open.

Parts of a cluster that are apart for long go on in lineages of their own. If they meet again while
some members still wait for one of these decisions, a neighbour may have acted on another one. It
never comes back into our lineage, so nobody may wait for its vote or its chunks: after a while it
counts as lost. Until then it may only be that its decision has not reached this node yet. One who
speaks in a lineage from which ours comes is merely behind, and still counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import limits
from protocols.wire import messages as m

if TYPE_CHECKING:
    from protocols.cluster.view import View
    from protocols.member.context import Context
    from protocols.wire.envelope import Envelope, Tags

NO_LINEAGE = bytes(limits.LINEAGE_BYTES)  # what a node says that is in none yet


class Elsewhere:
    """The neighbours that one member hears in other lineages."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._heard: dict[bytes, tuple[bytes, int, float]] = {}  # lineage, incarnation, since when

    def heard(self, now: float, via: bytes, tags: Tags) -> bool:
        """Take note of a message that came over the link to `via`; return whether it is of another
        lineage. What is passed on shows nothing, because its tags are not proven."""
        strange = tags.lineage not in (self._context.lineage, NO_LINEAGE)
        if tags.origin == via:
            known = self._heard.pop(via, None)
            if strange:
                place = (tags.lineage, tags.incarnation)
                since = known[2] if known is not None and known[:2] == place else now
                self._heard[via] = (*place, since)
        return strange

    def leads_here(self, envelope: Envelope) -> bool:
        """Whether a message of another lineage may concern this node, because it leads from one
        lineage to the next. What the agent of a member says that has started again does not: it may
        lead a cluster that it has founded since, in the very term in which it led this one."""
        policy, tags = self._context.policy, envelope.tags
        member = policy.view.member(tags.origin) if policy is not None else None
        if member is not None and member.incarnation != tags.incarnation:
            return False
        return isinstance(envelope.message, (*m.FENCE_MESSAGES, m.Welcome))

    def is_ours(self, lineage: bytes) -> bool:
        """Whether a policy of `lineage` is stored here: it is that of this node, one in which it
        was before a fork, or that of a fork. Another cluster may have reached the same terms and
        iterations, even one from whose state ours was founded, but its reports say nothing here."""
        return any(p.view.lineage == lineage for p in self._context.policies.values())

    def gone(self, now: float, view: View) -> tuple[bytes, ...]:
        """Members of `view` that have been in another lineage for so long that they are lost."""
        since = self._parted(view) if self._heard else {}
        return tuple(n for n, t in since.items() if now >= t + limits.PARTITION_WAIT_SECONDS)

    @property
    def deadline(self) -> float | None:
        """When the next member counts as lost, None if none will."""
        policy, now = self._context.policy, self._context.now
        since = self._parted(policy.view) if policy is not None and self._heard else {}
        due = [t + limits.PARTITION_WAIT_SECONDS for t in since.values()]
        return min((t for t in due if t > now), default=None)

    def _parted(self, view: View) -> dict[bytes, float]:
        """Return member of `view` -> since when it is heard in a lineage that ours knows nothing
        of."""
        context = self._context
        known = (context.lineage, *(a.lineage for a in context.ancestors))
        found: dict[bytes, float] = {}
        for node, (lineage, incarnation, since) in self._heard.items():
            member = view.member(node)
            same = member is not None and member.incarnation == incarnation
            if same and lineage not in known and node in context.links:
                found[node] = since
        return found
