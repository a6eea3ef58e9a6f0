"""Which members are waited for because they alone have a part of a divided optimizer state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols.cluster.stripes import orphans, renumbered

if TYPE_CHECKING:
    from protocols.member.context import Context
    from protocols.scheduler.fence import Lost


class MissingParts:
    """Finds these members, and reports when there are such, or none any more."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._told: tuple[bytes, ...] = ()
        self._since = 0.0

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
        context, missing = self._context, self.holders(lost)
        if missing == self._told or context.policy is None:
            return
        if missing:
            if not self._told:
                self._since = now
            found = (context.policy.view.member(n) for n in missing)
            names = [m.name for m in found if m is not None]
            context.report("parts_missing", nodes=names)
        else:
            context.report("parts_complete", seconds=round(now - self._since, 6))
        self._told = missing

    def forget(self) -> None:
        """This device is no member any more, and waits for nobody."""
        self._told = ()
