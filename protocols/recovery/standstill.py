"""Links that stand still again and again, because the path carries small frames and loses large
ones.

Such a link is given up: it no longer counts as a link for ten minutes, although it may be open. A
fence then finds a tree without it, and a member that no other link reaches is lost. It stays given
up even if the other end opens it anew, because that end may not have noticed that anything stood
still. Only a policy that names it again, as when a user asks for it, gives it another chance.

Where the optimizer's state is divided, a link is not given up without which this member could never
go on, because it would not reach all parts of that state any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import limits
from protocols.cluster.stripes import orphans, renumbered

if TYPE_CHECKING:
    from protocols.member.context import Context


class Standstill:
    """The neighbours of one member to which links stand still."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._times: dict[bytes, list[float]] = {}  # when the link to a node has stood still lately
        self._given_up: dict[bytes, float] = {}  # node -> until when
        self._named: tuple[bytes, ...] = ()  # neighbours in the policy that came into force last

    def __contains__(self, node: bytes) -> bool:
        """Whether the link to `node` has been given up."""
        if node not in self._given_up or self._context.now >= self._given_up[node]:
            return False
        return not self._are_needed

    @property
    def _are_needed(self) -> bool:
        """Whether this member reaches some part of a divided optimizer state only over links that
        have been given up."""
        policy, me = self._context.policy, self._context.node
        if policy is None or not policy.stripes or not self._context.is_member:
            return False
        reached = [me]
        for here in reached:
            ends = (e for e in policy.view.edges if here in (e.low, e.high))
            near = (e.low if here == e.high else e.high for e in ends)
            reached += [
                n for n in near if n not in reached and (here != me or n not in self._given_up)
            ]
        members = [n for n in policy.view.nodes if n in reached]
        return bool(orphans(renumbered(policy.stripes, policy.view.nodes, members)))

    def stalled(self, node: bytes) -> None:
        """The link to `node` was ended because it stood still; give it up if it does so often."""
        now = self._context.now
        self._times.setdefault(node, []).append(now)
        lately = {
            n: [t for t in times if now - t < limits.STALLS_WITHIN_SECONDS]
            for n, times in self._times.items()
        }
        self._times = {n: times for n, times in lately.items() if times}
        if len(self._times[node]) >= limits.MOST_STALLS:
            self._given_up[node] = now + limits.STALLS_WITHIN_SECONDS

    def switched(self) -> None:
        """Another policy came into force. Links that it names and the one before did not name count
        again. Those that neither names stay given up: a fence would name them if they were open,
        and where all links to a member carry nothing large it would choose one after the other."""
        now, before = self._context.now, self._named
        self._named = near = self._context.neighbours
        again = [n for n in near if n not in before]
        kept = {n: t for n, t in self._given_up.items() if now < t and n not in again}
        self._given_up = kept

    @property
    def near(self) -> tuple[bytes, ...]:
        """Members to which a link is open that has not been given up."""
        return tuple(n for n in self._context.near if n not in self)

    @property
    def unlinked(self) -> list[bytes]:
        """Neighbours to which no link is open, or only one that has been given up."""
        missing = self._context.unlinked
        if not self._given_up:
            return missing
        given_up = [n for n in self._context.neighbours if n in self]
        return missing + [n for n in given_up if n not in missing]
