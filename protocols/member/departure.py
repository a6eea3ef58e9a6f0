"""How this node goes: what it asks for, again and again, until the others go on without it.

- A member that wants to go stays until a policy without it is in force, so that nobody waits for
  what it owed. It goes without that only if nobody waits for it, or if it takes too long, for
  example because all other trainers hang.
- A scheduler hands its role over first, unless it leads a fence: then it decides that before.
- A member that gives way to another cluster does not wait for its own cluster for ever.
- A trainer that lacks updates gets them before the end, so that what it saves is what the cluster
  trained.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from protocols import limits
from protocols.effects import Depart
from protocols.member.cycle import CycleState
from protocols.member.joining import JoiningState
from protocols.wire import messages as m

if TYPE_CHECKING:
    from protocols.effects import Effect
    from protocols.member.context import Context
    from protocols.member.cycle import Cycle
    from protocols.member.joining import Entry
    from protocols.member.trainer_debt import TrainerDebt
    from protocols.scheduler.succession import Succession

_WHOLE = ("steps", "left", "yielded")  # ends at which the trainer saves its state


class Departure:
    """The part of one node that pursues its own leave."""

    def __init__(
        self,
        context: Context,
        cycle: Cycle,
        debt: TrainerDebt,
        entry: Entry,
        succession: Succession,
    ) -> None:
        self._context = context
        self._cycle = cycle
        self._debt = debt
        self._entry = entry
        self._succession = succession
        self._again_at = 0.0
        self._held: Depart | None = None  # until the trainer has caught up,
        self._held_until = math.inf  # but for no longer than so
        self._yield_by = 0.0  # when to go without having been let go
        self._leave_by = 0.0  # the same

    @property
    def deadline(self) -> float | None:
        """When there is something to ask for again, or to wait for no longer."""
        if self._held is not None:
            return self._held_until if math.isfinite(self._held_until) else None
        return self._again_at if self._context.departs and not self._cycle.over else None

    def hold(self, now: float, effects: list[Effect]) -> list[Effect]:
        """Return what of `effects` may be done now: the end waits for a trainer that is behind."""
        debt = self._debt
        found = [e for e in effects if isinstance(e, Depart) and e.why in _WHOLE]
        if found and debt.is_stale and not debt.is_gone:
            self._held = found[0]
            wait = limits.LEAVER_CATCHES_UP_SECONDS if found[0].why == "left" else math.inf
            self._held_until = now + wait
            return [e for e in effects if e is not self._held]
        if self._held is None or (debt.is_stale and now < self._held_until):
            return effects
        held, self._held = self._held, None
        return [*effects, held]

    def leave(self, now: float) -> None:
        """The user wants this node to leave."""
        if not self._context.leaving:
            self._leave_by = now + limits.LEAVE_SECONDS
        self._context.leaving = True
        self._again_at = now

    def give_way(self, now: float) -> None:
        """This node's cluster gives way to another."""
        self._context.yielding = True
        self._yield_by = now + limits.YIELD_SECONDS
        self._again_at = now

    def hurry(self, now: float) -> None:
        """Something has changed: ask anew at once."""
        self._again_at = now

    def _is_overdue(self, now: float) -> bool:
        """Whether to go at once: what this node holds of the iteration is done again then."""
        context = self._context
        if context.leaving:
            return now >= self._leave_by
        return context.yielding and (context.is_isolated or now >= self._yield_by)

    def pursue(self, now: float) -> None:
        """Ask if it is time to."""
        if self._context.departs and not self._cycle.over and now >= self._again_at:
            self._pursue(now)

    def _pursue(self, now: float) -> None:
        """Hand over the role if we hold it, then ask to leave; again until it has happened."""
        context, policy, cycle = self._context, self._context.policy, self._cycle
        self._again_at = now + limits.RETRY_SECONDS
        joining = self._entry.joining
        if joining is not None and joining.state is JoiningState.CAUGHT_UP:
            return  # a policy with this node may be on its way: enter first, then leave
        idle = cycle.state is not CycleState.APPLYING
        if not context.is_member or policy is None:
            cycle.leave(context.departs, "")
            return
        if policy.view.nodes == (context.node,):
            if idle and not context.yielding:  # who gives way ends its iteration first
                cycle.leave(context.departs, "")
            return
        if self._is_overdue(now) and idle:
            cycle.leave(context.departs, "")
            return
        negotiator = self._succession.negotiator
        if negotiator is None:
            message = m.LeaveRequest(context.config.me.incarnation)
            context.send(context.election.scheduler, message)
            return
        if negotiator.switch is None and not self._succession.leads_fence:
            self._succession.pass_role(policy, negotiator)
