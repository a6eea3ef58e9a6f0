"""What would be lost of a divided optimizer state, and which members are waited for because they
alone have a part of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols.cluster.stripes import orphans, renumbered

if TYPE_CHECKING:
    from protocols.cluster.policy import Policy
    from protocols.member.context import Context
    from protocols.scheduler.fence import Lost


class MissingParts:
    """Finds these members, and reports when there are such, or none any more, and how many members
    could be lost at once, whichever they are."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._told: tuple[bytes, ...] = ()
        self._since = 0.0
        self._survives = 0
        self._seen: Policy | None = None  # what was looked at the last time
        self._lost: Lost | None = None

    def holders(self, lost: Lost) -> tuple[bytes, ...]:
        """Return those of the `lost` members that alone had some stripe, so that the others cannot
        go on without them."""
        policy = self._context.policy
        if policy is None or not policy.stripes or not self._context.is_member:
            return ()
        gone = (*lost.nodes, *lost.dead, *lost.out)
        nodes = policy.view.nodes
        here = [n for n in nodes if n not in gone]
        without = orphans(renumbered(policy.stripes, nodes, here))
        return tuple(dict.fromkeys(nodes[k] for s in without for k in policy.stripes[s].holders))

    def tell(self, now: float, lost: Lost) -> None:
        """Report what has changed since the last time."""
        context, policy = self._context, self._context.policy
        if policy is None or not policy.stripes or (policy is self._seen and lost == self._lost):
            return
        self._seen, self._lost = policy, lost
        survives = min(len(stripe.holders) for stripe in policy.stripes) - 1
        if survives != self._survives:
            self._survives = survives
            context.report("copies", survives=survives)
        missing = self.holders(lost)
        if missing == self._told:
            return
        if missing:
            if not self._told:
                self._since = now
            found = (policy.view.member(n) for n in missing)
            names = [m.name for m in found if m is not None]
            context.report("parts_missing", nodes=names)
        else:
            context.report("parts_complete", seconds=round(now - self._since, 6))
        self._told = missing

    def forget(self) -> None:
        """This device is no member any more, and waits for nobody."""
        self._seen, self._told, self._survives = None, (), 0
