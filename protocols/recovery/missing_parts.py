"""What would be lost of a divided optimizer state, which members are waited for because they alone
have a part of it, when these are given up (`OnLost`), and whose members' results round
otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import limits
from protocols.cluster.stripes import (
    OnLost,
    alike,
    orphans,
    renumbered,
    smallest_losses,
    with_learned,
)
from protocols.scheduler.fence import LostParts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocols.cluster.policy import Policy
    from protocols.member.context import Context
    from protocols.scheduler.fence import Lost
    from protocols.wire.messages import Restart


class MissingParts:
    """Finds these members, and reports when there are such, or none any more, and how many members
    could be lost at once, whichever they are."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._told: tuple[bytes, ...] = ()
        self._since = 0.0
        self._survives = 0
        self._alike: tuple[tuple[bytes, ...], ...] = ()  # groups that round alike, if several
        self._seen: Policy | None = None  # what was looked at the last time
        self._lost: Lost | None = None
        self._gone_since: dict[bytes, float] = {}
        self._learned: dict[bytes, tuple[int, ...]] = {}  # learner -> the stripes that it has

    @property
    def lost(self) -> LostParts:
        """What becomes of parts that nobody in reach has, for a fence that opens now."""
        return LostParts(self._context.config.on_lost is OnLost.FRESH, dict(self._gone_since))

    @property
    def deadline(self) -> float | None:
        """When members that are not proven dead are given up, None if that may not come."""
        until = self._since + limits.PARTS_WAIT_SECONDS
        gives_up = self._told and not self._waits
        return until if gives_up and until > self._context.now else None

    @property
    def _waits(self) -> bool:
        """Whether members that alone have a part are waited for without limit. After the last
        update nobody here needs their parts. They are still given time to come back, since they
        may need ours to make that update, too."""
        return self._context.config.on_lost is OnLost.WAIT and not self._context.is_at_end

    def given_up(self, now: float, lost: Lost) -> bool:
        """Whether members that alone have a part are waited for no more, as far as `tell` knows
        them: they are proven dead, or have been out of reach for long."""
        if not self._told or self._waits:
            return False
        dead = all(n in lost.dead for n in self._told)
        return dead or now >= self._since + limits.PARTS_WAIT_SECONDS

    def suffices(self, now: float, policy: Policy, here: Sequence[bytes], lost: Lost) -> bool:
        """Whether the members `here` have all parts, or those that lack are waited for no more."""
        return not self.lacking(policy, here) or self.given_up(now, lost)

    def learned(self, sender: bytes, stripes: tuple[int, ...]) -> None:
        """Note that a member says that it has learned these stripes."""
        policy = self._context.policy
        if policy is not None and sender in policy.view.nodes:
            self._learned[sender] = stripes
            self._seen = None

    def switched(self) -> None:
        """Another policy is in force. Learners of stripes that it names say anew what they have."""
        self._learned = {}

    def lacking(self, policy: Policy, here: Sequence[bytes]) -> tuple[int, ...]:
        """Return the stripes that none of the members `here` holds or has learned."""
        nodes, known = policy.view.nodes, self._learned
        learners = [[nodes[k] for k in stripe.learners] for stripe in policy.stripes]
        learned = {
            n: [s for s in known[n] if s < len(learners) and n in learners[s]]
            for n in here
            if n in known
        }
        return orphans(with_learned(renumbered(policy.stripes, nodes, here), here, learned))

    def holders(self, lost: Lost) -> tuple[bytes, ...]:
        """Return those of the `lost` members that alone had some stripe, so that the others cannot
        go on without them."""
        policy = self._context.policy
        if policy is None or not policy.stripes or not self._context.is_member:
            return ()
        nodes = policy.view.nodes
        without = self.lacking(policy, [n for n in nodes if n not in lost.all])
        return tuple(dict.fromkeys(nodes[k] for s in without for k in policy.stripes[s].holders))

    @staticmethod
    def smallest_losses(policy: Policy, lost: Lost) -> tuple[tuple[bytes, ...], ...]:
        """Return the smallest sets of members with which a part of the optimizer's state would be
        lost. Those that are `lost` already are still named by the policy."""
        nodes = policy.view.nodes
        here = [k for k, node in enumerate(nodes) if node not in lost.all]
        found = smallest_losses(policy.stripes, here)
        return tuple(tuple(nodes[k] for k in members) for members in found)

    @classmethod
    def survives(cls, policy: Policy, lost: Lost) -> int:
        """Return how many more members can be lost at once, whichever they are, without a part of
        the optimizer's state."""
        return max(0, len(cls.smallest_losses(policy, lost)[0]) - 1)

    def tell(self, now: float, lost: Lost) -> None:
        """Report what has changed since the last time."""
        context, policy = self._context, self._context.policy
        if policy is None or not policy.stripes or (policy is self._seen and lost == self._lost):
            return
        self._seen, self._lost = policy, lost
        self._gone_since = {n: self._gone_since.get(n, now) for n in lost.all}
        survives = self.survives(policy, lost)
        if survives != self._survives:
            self._survives = survives
            context.report("copies", survives=survives)
        self._tell_who_rounds_alike(policy)
        missing = self.holders(lost)
        if missing == self._told:
            return
        if missing:
            if not self._told:
                self._since = now
            found = (policy.view.member(n) for n in missing)
            names = [m.name for m in found if m is not None]
            then = "end" if context.is_at_end else context.config.on_lost.value
            context.report("parts_missing", nodes=names, then=then)
        else:
            context.report("parts_complete", seconds=round(now - self._since, 6))
        self._told = missing

    def _tell_who_rounds_alike(self, policy: Policy) -> None:
        """Report which members round updates alike, if not all do, and when all do again. That is
        allowed: all take over the results of owners. But slots of copies differ then."""
        groups = alike(policy.view)
        several = groups if len(groups) > 1 else ()
        if several != self._alike:
            self._alike = several
            names = {member.node: member.name for member in policy.view.members}
            told = [[names[node] for node in group] for group in groups]
            self._context.report("rounding", groups=told)

    @property
    def sought(self) -> tuple[bytes, ...]:
        """Members out of reach that may live, while parts are missing. Any of them may have these,
        or lead to who has, so links to them are worth having that no policy names."""
        return self._lost.nodes if self._told and self._lost is not None else ()

    @property
    def words(self) -> str:
        """What a user is told when this device stops because parts are lost."""
        policy = self._context.policy
        found = [policy.view.member(n) for n in self._told] if policy is not None else []
        names = ", ".join(m.name for m in found if m is not None)
        return f"parts of the optimizer's state are lost with {names}, which alone had them"

    def begun_anew(self, restart: Restart) -> None:
        """Report, once the decision of a fence is known, which stripes begin anew."""
        policy, stripes = self._context.policy, restart.policy.stripes
        before = policy.stripes if policy is not None else stripes
        pairs = enumerate(zip(before, stripes, strict=True))
        found = [s for s, (old, new) in pairs if new.anew != old.anew]
        at = restart.iteration + restart.applied
        if found:
            self._told = ()  # they are waited for no more
        if found and at < self._context.steps:
            self._context.report("parts_anew", parts=found, of=len(stripes), iteration=at)

    def forget(self) -> None:
        """This device is no member any more, and waits for nobody."""
        self._seen, self._told, self._survives, self._alike = None, (), 0, ()
