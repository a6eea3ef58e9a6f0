"""Which policy the control word of a round names, so that it comes into force with the next
iteration.

The scheduler names a policy that is ready in its own word. It gives that before it waits for the
others, though, so what becomes ready while it waits would miss this round, and a joiner or a member
that wants to leave would wait for a whole step more. So the scheduler then has the policy named
where the word is summed, at the root of its tree (`PolicyReady`).

- The root does so only in the attempt that the scheduler runs, and only if it holds the policy's
  body. It may hear of it before it has begun that attempt; then it keeps it for that.
- If the word was summed before the root heard of it, the scheduler names the policy in the next
  round, and may amend it until then: all have the same word, and it does not name the policy.
- A policy that differs from the one in force by its plan alone can wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols.effects import NamePolicy
from protocols.member.cycle_table import CycleState
from protocols.wire.messages import PolicyReady

if TYPE_CHECKING:
    from protocols.member.context import Context
    from protocols.member.cycle import Cycle
    from protocols.member.mail import Mail
    from protocols.scheduler.succession import Succession

_OPEN = (CycleState.COMPUTING, CycleState.REDUCING)  # the word of the round may not be summed yet


class Naming:
    """The part of one node that names policies."""

    def __init__(self, context: Context, mail: Mail, succession: Succession) -> None:
        self._context = context
        self._mail = mail
        self._succession = succession
        self._told_in: int | None = None  # the iteration in which the root was last told of one
        self._ready: PolicyReady | None = None  # what the root was told, until it is done

    def offered(self) -> tuple[int, int]:
        """Return the key of the policy that this node's own word is to name."""
        self._told_in = None
        if (negotiator := self._succession.negotiator) is not None:
            return negotiator.offer()
        policy = self._context.policy
        return policy.key if policy is not None else (0, 0)

    def told(self, sender: bytes, message: PolicyReady) -> None:
        """The scheduler, if `sender` is that, says that a policy is ready."""
        if sender == self._context.election.scheduler:
            self._ready = message

    def look(self, cycle: Cycle) -> None:
        """Name what has become ready, if the word of the running round may still do so."""
        context, ready = self._context, self._ready
        if context.freeze.holds or not context.is_member:
            return
        if ready is not None and ready.iteration <= context.iteration:
            here = (context.iteration, cycle.attempt_ids[0]) == (ready.iteration, ready.attempt)
            key = (ready.policy_term, ready.version)
            if here and cycle.state in _OPEN and key in context.policies:
                context.do(NamePolicy(key))
            self._ready = None
        if self._succession.negotiator is not None:
            self._lead(cycle)

    def _lead(self, cycle: Cycle) -> None:
        """As the scheduler, have the root name what is ready."""
        context, negotiator = self._context, self._succession.negotiator
        assert negotiator is not None
        if self._told_in is not None and self._told_in != context.iteration:
            self._told_in = None
            negotiator.missed()
        if cycle.state is not CycleState.REDUCING or not negotiator.is_urgent:
            return
        policy = context.policy
        assert policy is not None
        self._told_in = context.iteration
        key, root = negotiator.offer(), policy.tree.root
        if root == context.node:
            context.do(NamePolicy(key))
        else:
            attempt = cycle.attempt_ids[0]
            self._mail.post(root, PolicyReady(*key, context.iteration, attempt))
