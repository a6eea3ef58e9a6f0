"""How this node leaves the cluster: it repeats its request until the others go on without it.

- A member that wants to leave stays until a policy without it is in force, so that nobody waits for
  work that it owed. It leaves without that only if nobody waits for it, or if being let go takes
  longer than `LEAVE_SECONDS`, for example because the trainers of all other members hang, or than
  `LEAVE_LACKING_SECONDS` while parts of a divided optimizer's state are missing. While it keeps
  such parts, it stays until `LEAVE_HOLDING_SECONDS`, or `HOLDING_STEPS`, pass in which it could
  hand on none: if it went with the last copy of one, the others could not go on.
- One whose trainer hangs goes without having been let go only if the others wait for what this
  trainer alone can do, and have copies of what it keeps; one whose trainer has ended or gone wrong
  goes even without copies, as then nobody would be helped by waiting (`step_aside`).
- A scheduler hands its role over first. If it leads a fence it decides that before, because its
  members stand still until then.
- A member that had better stand by does the same, but waits only for a moment, because the running
  step may take very long; unless it keeps parts of a divided optimizer's state that fewer than two
  others keep, too.
- A member whose cluster gives way to another one waits for its own cluster for `YIELD_SECONDS`.
- A trainer that lacks updates gets them before the end, so that what it saves is what the cluster
  has trained.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from protocols import limits
from protocols.cluster import standby
from protocols.cluster.stripes import kept_without
from protocols.effects import Depart
from protocols.member.cycle_table import CycleState
from protocols.wire import messages as m

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.effects import Effect
    from protocols.member.context import Context
    from protocols.member.cycle import Cycle
    from protocols.member.entry import Entry
    from protocols.member.trainer_debt import TrainerDebt
    from protocols.scheduler.succession import Succession

HOLDING_STEPS = 3  # a part takes a step, so it is waited for so many usual ones, at least
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
        followers_lack: Callable[[], bool],
    ) -> None:
        """`lacks_parts()`: whether nobody can go on before lost members are back;
        `followers_lack()`: whether devices that follow from outside lack updates of this node."""
        self._context = context
        self._cycle = cycle
        self._debt = debt
        self._entry = entry
        self._succession = succession
        self._lacks_parts = lacks_parts
        self._followers_lack = followers_lack
        self._again_at = 0.0
        self._held: Depart | None = None  # the end, which waits until the trainer has caught up
        self._held_until = math.inf  # the time at which it waits no longer
        self._followers_until = 0.0  # the same for devices that follow from outside
        self._yield_by = 0.0  # when a node that gives way goes without having been let go
        self._leave_from = 0.0  # since when a node wants to leave
        self._why = ""  # for which reason it has wanted that since then
        self._asked_under = (0, 0)  # the key of the policy that was in force when it began to
        self._handing = 0  # how many parts it has to hand on,
        self._handing_from = 0.0  # when it last handed one on,
        self._told_at = 0.0  # and when the user was last told
        # Since when it has known that others went on without it, and that its last round is broken.
        self._passed_at: float | None = None
        self._stand_by_from = 0.0  # when a node that had better stand by goes all the same

    @property
    def deadline(self) -> float | None:
        """When a request is to be repeated, or a wait ends."""
        if self._held is not None:
            until = self._held_until if self._debt.is_stale else self._followers_until
            return until if math.isfinite(until) else None
        return self._again_at if self._context.departs and not self._cycle.over else None

    def hold(self, now: float, effects: list[Effect]) -> list[Effect]:
        """Return those of `effects` that may be done now. A `Depart` at which the trainer saves its
        state is held back while the trainer lacks updates, and that at the end of training while
        devices that follow from outside lack the last ones."""
        debt = self._debt
        found = [e for e in effects if isinstance(e, Depart) and e.why in _WHOLE]
        ends = bool(found) and found[0].why == "steps" and self._followers_lack()
        if found and ((debt.is_stale and not debt.is_gone) or ends):
            self._held = found[0]
            wait = limits.LEAVER_CATCHES_UP_SECONDS if found[0].why == "left" else math.inf
            self._held_until = now + wait
            self._followers_until = now + limits.FOLLOWERS_CATCH_UP_SECONDS
            return [e for e in effects if e is not self._held]
        if self._held is None or (debt.is_stale and now < self._held_until):
            return effects
        lack = self._held.why == "steps" and self._followers_lack()
        if lack and now < self._followers_until:
            return effects
        held, self._held = self._held, None
        return [*effects, held]

    def leave(self, now: float) -> None:
        """Begin to leave, as the user wants."""
        self._context.leaving = True
        self._again_at = now

    def give_way(self, now: float) -> None:
        """Begin to leave, because this node's cluster gives way to another one."""
        self._context.yielding = True
        self._yield_by = now + limits.YIELD_SECONDS
        self._again_at = now

    def stand_by(self, now: float, reason: str, *, at_once: bool = True) -> None:
        """Begin to leave, because the others are faster without this node. `at_once`: the others
        have a quorum, and all parts of a divided optimizer's state, even if all go that have the
        same reason to, so that it need not wait for consent for long."""
        self._context.stands_by, self._context.standby = True, reason
        self._stand_by_from = now + standby.GO_SECONDS if at_once else math.inf
        self._again_at = now

    def stay(self) -> None:
        """Take the wish to stand by back."""
        self._context.stands_by = False

    def hurry(self, now: float) -> None:
        """Repeat the request at once, because something has changed, for example the scheduler."""
        self._again_at = now

    def step_aside(self) -> None:
        """Leave at once if the others wait for what only this node's trainer can do, which does not
        answer or is away for long, and members that keep up, or later ones (which stay), have
        copies. They wait in vain if its process has ended or its state differs, even without. A
        member whose link to this node has ended does not count."""
        context, cycle, debt, policy = self._context, self._cycle, self._debt, self._context.policy
        ended = debt.is_gone or context.diverged  # then the trainer is told nothing any more
        late = context.stalled or (debt.is_away and cycle.learning.owes_long)
        lends = cycle.learning.owes and debt.has_old_slots and (late or ended)
        waits = cycle.state is CycleState.PUBLISHING and (debt.is_overdue_publisher or ended)
        if not (lends or waits) or context.freeze.holds or not context.is_member or policy is None:
            return
        if debt.is_gone and context.departs:
            cycle.leave(context.departs, context.standby)
            return
        me, nodes = policy.view.nodes.index(context.node), policy.view.nodes
        # Who should be linked to this node and is not may have left just now, even if it came later
        # in the view: this trainer may not have been late yet when that one left.
        linked, near = policy.view.neighbours(context.node), context.near
        here = [node for node in nodes if node not in linked or node in near]
        able = [
            k
            for k, node in enumerate(nodes)
            if ended or (node in here and (k > me or context.keeps_up(node)))
        ]
        if context.diverged or kept_without(policy.stripes, me, able):
            cycle.leave("diverged" if context.diverged else "stalled", "")

    def passed_over(self, now: float, *, is_broken: bool) -> None:
        """End this node's part, because the others have gone on without it. One that leaves takes
        the result of its last round first. None will come if it is frozen, nor soon if the round
        `is_broken`: a link is not open any more with which it began."""
        context = self._context
        if context.departs and not context.freeze.holds:
            if not is_broken or self._cycle.round_is_here:  # and an update must not be torn
                self._passed_at = None
                return
            self._passed_at = now if self._passed_at is None else self._passed_at
            if now < self._passed_at + limits.LEAVER_RESULT_SECONDS:
                return
        self._cycle.leave(context.departs or "expelled", context.standby)

    def _is_overdue(self, now: float) -> bool:
        """Whether to go without having been let go. The others then do again what this node has
        contributed to the running iteration."""
        context = self._context
        if context.departs == "yielded":
            return context.is_isolated or now >= self._yield_by
        if context.departs == "standby":
            # What others miss counts first: while some member is lost, this one may be needed for a
            # quorum, or be the last in reach that keeps a part of the state.
            owes = context.has_few_copies or self._cycle.learning.owes
            needed = owes or context.freeze.holds or self._lacks_parts()
            return now >= self._stand_by_from and not needed
        if context.departs != "left":
            return False  # its trainer hangs or has gone wrong, so it may be all that is left
        if self._lacks_parts():
            return now >= self._leave_from + limits.LEAVE_LACKING_SECONDS
        if not self._handing:
            return now >= self._leave_from + limits.LEAVE_SECONDS
        if self._takes_all:
            return False
        wait = max(limits.LEAVE_HOLDING_SECONDS, HOLDING_STEPS * context.pace.usual_s)
        return now >= self._handing_from + wait

    @property
    def _takes_all(self) -> bool:
        """Whether this node is the scheduler and all others want to go, too: it lets them hand on
        to it what they keep, and goes once it is alone, with the whole state."""
        negotiator, policy = self._succession.negotiator, self._context.policy
        if negotiator is None or policy is None:
            return False
        return all(n in negotiator.leaving for n in policy.view.nodes if n != self._context.node)

    @property
    def alone_with(self) -> int:
        """How many stripes only this node keeps, so that it has to hand them on if it leaves."""
        return sum(len(holders) == 1 for holders in self._kept_by)

    @property
    def _kept_by(self) -> list[bytes]:
        """The holders of each stripe that this node keeps."""
        context, policy = self._context, self._context.policy
        if policy is None or not context.is_member:
            return []
        me = policy.view.nodes.index(context.node)
        return [stripe.holders for stripe in policy.stripes if me in stripe.holders]

    def _look(self, now: float) -> None:
        """Note since when this node has wanted to go, and what it has handed on since then."""
        context, policy = self._context, self._context.policy
        if context.departs != self._why:
            self._why, self._leave_from, self._handing, self._told_at = context.departs, now, 0, 0.0
            self._asked_under = policy.key if policy is not None else (0, 0)
        if policy is None or not context.is_member or context.is_at_end or context.is_alone:
            self._handing = 0
            return
        # Others that keep a stripe, too, may be about to go like this node, which it does not know.
        # So all that it keeps counts until a policy leaves it nothing.
        left, before = len(self._kept_by), self._handing
        if left != before:
            self._handing_from = now
        # A later policy leaves it only what nobody else keeps that stays.
        parts = left if policy.key > self._asked_under else self.alone_with
        if parts and (not self._told_at or now >= self._told_at + limits.LEAVE_SECONDS):
            self._told_at = now
            context.report("handing_on", parts=parts)
        self._handing = left

    def pursue(self, now: float) -> None:
        """Ask to be let go, if this node wants to go and it is time to ask."""
        if not self._context.departs:
            self._why = ""
        elif not self._cycle.over and now >= self._again_at:
            self._look(now)
            self._pursue(now)

    def _pursue(self, now: float) -> None:
        """Take the next step of leaving: go, ask the scheduler, or hand the scheduler's role over.
        Called again every `RETRY_SECONDS` until this node has left."""
        context, policy, cycle = self._context, self._context.policy, self._cycle
        self._again_at = now + limits.RETRY_SECONDS
        joining = self._entry.joining
        if joining is not None and joining.on_the_way and context.may_be_named:
            return  # a policy with this node may come into force: enter first, then leave
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
