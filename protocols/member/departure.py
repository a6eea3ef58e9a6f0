"""How this node leaves the cluster: it repeats its request until the others go on without it.

- A member that wants to leave stays until a policy without it is in force, so that nobody waits for
  work that it owed. It leaves without that only if nobody waits for it, or if being let go takes
  longer than `LEAVE_SECONDS`, for example because the trainers of all other members hang, or than
  `LEAVE_LACKING_SECONDS` while parts of a divided optimizer's state are missing.
- A scheduler hands its role over first. If it leads a fence it decides that before, because its
  members stand still until then.
- A member that had better stand by does the same, but waits only for a moment, because the running
  step may take very long.
- A member whose cluster gives way to another one waits for its own cluster for `YIELD_SECONDS`.
- A trainer that lacks updates gets them before the end, so that what it saves is what the cluster
  has trained.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from protocols import limits
from protocols.cluster import standby
from protocols.effects import Depart
from protocols.member.cycle_table import CycleState
from protocols.member.joining import JoiningState
from protocols.wire import messages as m

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.effects import Effect
    from protocols.member.context import Context
    from protocols.member.cycle import Cycle
    from protocols.member.entry import Entry
    from protocols.member.trainer_debt import TrainerDebt
    from protocols.scheduler.succession import Succession

_WHOLE = ("steps", "left", "yielded")  # reasons for which the trainer saves its state at the end


class Departure:
    """The part of one node that pursues its own leave."""

    def __init__(
        self,
        context: Context,
        cycle: Cycle,
        debt: TrainerDebt,
        entry: Entry,
        succession: Succession,
        lacks_parts: Callable[[], bool],
    ) -> None:
        """`lacks_parts()`: whether nobody can go on before lost members are back."""
        self._context = context
        self._cycle = cycle
        self._debt = debt
        self._entry = entry
        self._succession = succession
        self._lacks_parts = lacks_parts
        self._again_at = 0.0
        self._held: Depart | None = None  # the end, which waits until the trainer has caught up
        self._held_until = math.inf  # the time at which it waits no longer
        self._yield_by = 0.0  # when a node that gives way goes without having been let go
        self._leave_from = 0.0  # since when a node wants to leave
        self._stand_by_from = 0.0  # when a node that had better stand by goes all the same

    @property
    def deadline(self) -> float | None:
        """When a request is to be repeated, or a wait ends."""
        if self._held is not None:
            return self._held_until if math.isfinite(self._held_until) else None
        return self._again_at if self._context.departs and not self._cycle.over else None

    def hold(self, now: float, effects: list[Effect]) -> list[Effect]:
        """Return those of `effects` that may be done now. A `Depart` at which the trainer saves its
        state is held back while the trainer lacks updates, and returned once it has them."""
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
        """Begin to leave, as the user wants."""
        if not self._context.leaving:
            self._leave_from = now
        self._context.leaving = True
        self._again_at = now

    def give_way(self, now: float) -> None:
        """Begin to leave, because this node's cluster gives way to another one."""
        self._context.yielding = True
        self._yield_by = now + limits.YIELD_SECONDS
        self._again_at = now

    def stand_by(self, now: float, reason: str, *, at_once: bool = True) -> None:
        """Begin to leave, because the others are faster without this node. `at_once`: the others
        have a quorum even if all go that have the same reason to, so that it need not wait for
        consent for long."""
        self._context.stands_by, self._context.standby = True, reason
        self._stand_by_from = now + standby.GO_SECONDS if at_once else math.inf
        self._again_at = now

    def stay(self) -> None:
        """Take the wish to stand by back."""
        self._context.stands_by = False

    def hurry(self, now: float) -> None:
        """Repeat the request at once, because something has changed, for example the scheduler."""
        self._again_at = now

    def _is_overdue(self, now: float) -> bool:
        """Whether to go without having been let go. The others then do again what this node has
        contributed to the running iteration."""
        context = self._context
        if context.leaving:
            lacks = self._lacks_parts()
            wait = limits.LEAVE_LACKING_SECONDS if lacks else limits.LEAVE_SECONDS
            return now >= self._leave_from + wait
        if context.departs == "standby":
            return now >= self._stand_by_from
        return context.yielding and (context.is_isolated or now >= self._yield_by)

    def pursue(self, now: float) -> None:
        """Ask to be let go, if this node wants to go and it is time to ask."""
        if self._context.departs and not self._cycle.over and now >= self._again_at:
            self._pursue(now)

    def _pursue(self, now: float) -> None:
        """Take the next step of leaving: go, ask the scheduler, or hand the scheduler's role over.
        Called again every `RETRY_SECONDS` until this node has left."""
        context, policy, cycle = self._context, self._context.policy, self._cycle
        self._again_at = now + limits.RETRY_SECONDS
        joining = self._entry.joining
        if joining is not None and joining.state is JoiningState.CAUGHT_UP:
            return  # a policy with this node may be on its way: enter first, then leave
        idle = cycle.state is not CycleState.APPLYING  # an update must not be torn
        if not context.is_member or policy is None:
            cycle.leave(context.departs, context.standby)
            return
        if policy.view.nodes == (context.node,):
            if idle and not context.yielding:  # a node that gives way ends its iteration first
                cycle.leave(context.departs, context.standby)
            return
        if self._is_overdue(now) and idle:
            cycle.leave(context.departs, context.standby)
            return
        negotiator = self._succession.negotiator
        if negotiator is None:
            message = m.LeaveRequest(context.config.me.incarnation)
            context.send(context.election.scheduler, message)
            return
        # A switch under way is completed first, since the heir may not know of it.
        if negotiator.switch is None and not self._succession.leads_fence:
            self._succession.pass_role(policy, negotiator)
