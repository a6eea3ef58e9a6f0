"""Which policy the control word of a round names, so that it comes into force with the next
iteration.

The scheduler names a policy that is ready in its own word. It gives that before it waits for the
others, though, so what becomes ready while it waits would miss this round, and a joiner or a member
that wants to leave would wait for a whole step more. So the scheduler then has the policy named
where the word is summed, at the root of its tree (`PolicyComing`).

- The word is summed long before the gradients are. So while enough nodes are still to store the
  policy, the root holds the word back, but only as long as gradients are missing there, too
  (`Round.hold_word`).
- The root does so only in the attempt that the scheduler runs, and names only a policy of which it
  holds the body. It may hear of it before it has begun that attempt, or before it has the body;
  then it keeps it for that.
- The word is also held back while no policy is made yet, but a joiner is expected to need one
  soon (`Join.is_expected`). If the scheduler's own word names a policy then, it says that this is
  ready, so that the word waits no longer.
- If the word was summed before the root heard of it, the scheduler names the policy in the next
  round, and may amend it until then: all have the same word, and it does not name the policy.
- A policy that differs from the one in force by its plan alone can wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols.effects import HoldWord, NamePolicy
from protocols.member.cycle_table import CycleState
from protocols.wire.messages import PolicyComing

if TYPE_CHECKING:
    from protocols.member.context import Context
    from protocols.member.cycle import Cycle
    from protocols.member.mail import Mail
    from protocols.scheduler.agenda import Switch
    from protocols.scheduler.succession import Succession

_OPEN = (CycleState.COMPUTING, CycleState.REDUCING)  # the word of the round may not be summed yet


class Naming:
    """The part of one node that names policies."""

    def __init__(self, context: Context, mail: Mail, succession: Succession) -> None:
        self._context = context
        self._mail = mail
        self._succession = succession
        # The iteration in which this scheduler has last told the root of a policy that was ready.
        self._told_in: int | None = None
        # The iteration, attempt and policy for which it has told it of one that was not.
        self._awaited: tuple[int, bytes, tuple[int, int]] | None = None
        self._coming: PolicyComing | None = None  # what the root was told, until it is done,
        self._done: PolicyComing | None = None  # and what it has named last

    def offered(self) -> tuple[int, int]:
        """Return the key of the policy that this node's own word is to name."""
        self._told_in = None
        if (negotiator := self._succession.negotiator) is not None:
            return negotiator.offer()
        policy = self._context.policy
        return policy.key if policy is not None else (0, 0)

    def told(self, sender: bytes, message: PolicyComing) -> None:
        """The scheduler, if `sender` is that, says that a policy is to come."""
        if sender != self._context.election.scheduler:
            return
        # Messages may overtake each other: who has heard what is ready need not wait for anything.
        attempt = (message.iteration, message.attempt)
        known = [x for x in (self._coming, self._done) if x is not None and x.ready]
        is_late = not message.ready and attempt in [(x.iteration, x.attempt) for x in known]
        if message not in known and not is_late:
            self._coming = message

    def look(self, cycle: Cycle) -> None:
        """Name what has become ready, if the word of the running round may still do so."""
        context, coming = self._context, self._coming
        if context.freeze.holds or not context.is_member or cycle.is_finishing:
            return
        if coming is not None:
            running = (context.iteration, cycle.attempt_ids[0])
            if coming.iteration < context.iteration:
                self._coming = None
            elif (coming.iteration, coming.attempt) == running and cycle.state in _OPEN:
                self._follow(coming)
        if self._succession.negotiator is not None:
            self._lead(cycle)

    def _follow(self, coming: PolicyComing) -> None:
        """As the root, do what the scheduler wants in the running attempt."""
        key = (coming.policy_term, coming.version)
        if not coming.ready:
            self._context.do(HoldWord())
        elif key in self._context.policies:
            self._context.do(NamePolicy(key))
            self._done = coming
        else:
            return  # its body may be on its way
        self._coming = None

    def _lead(self, cycle: Cycle) -> None:
        """As the scheduler, have the root name what is ready, and wait for what is not."""
        context, negotiator = self._context, self._succession.negotiator
        assert negotiator is not None
        if self._told_in is not None and self._told_in != context.iteration:
            self._told_in = None
            negotiator.missed()
        switch = negotiator.urgent
        if switch is None:
            if cycle.state in _OPEN and negotiator.expects(context.now):
                self._await(negotiator.policy.key, cycle)
        elif cycle.state is CycleState.REDUCING and not switch.ready:
            self._await(switch.policy.key, cycle)
        elif cycle.state is CycleState.REDUCING:
            self._told_in = context.iteration
            self._tell(negotiator.offer(), cycle.attempt_ids[0], ready=True)
        self._end_wait(cycle, negotiator.switch)

    def _end_wait(self, cycle: Cycle, switch: Switch | None) -> None:
        """If the word is held back in the running attempt, but this scheduler's own word names the
        `switch` already, have it wait no longer."""
        attempt, awaited = cycle.attempt_ids[0], self._awaited
        held = awaited is not None and awaited[:2] == (self._context.iteration, attempt)
        if held and switch is not None and switch.offered:
            self._awaited = None
            if self._told_in is None:
                self._tell(switch.policy.key, attempt, ready=True)

    def _await(self, key: tuple[int, int], cycle: Cycle) -> None:
        """Have the root hold the word of the running attempt back for the policy `key`; the key of
        the one in force stands for one that is not made yet."""
        about = (self._context.iteration, cycle.attempt_ids[0], key)
        if self._awaited != about:
            self._awaited = about
            self._tell(key, cycle.attempt_ids[0], ready=False)

    def _tell(self, key: tuple[int, int], attempt: bytes, *, ready: bool) -> None:
        """Tell the root of the control word's tree that the policy `key` is to come."""
        context, policy = self._context, self._context.policy
        assert policy is not None
        if (root := policy.tree.root) != context.node:
            coming = PolicyComing(*key, context.iteration, attempt, ready)
            self._mail.post(root, coming)
        else:
            context.do(NamePolicy(key) if ready else HoldWord())
