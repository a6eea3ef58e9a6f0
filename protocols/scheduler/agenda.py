"""What is in force, and what is on its way into force: the parts of the scheduler share it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protocols.cluster.policy import Policy


@dataclass(slots=True)
class Switch:
    """A policy on its way into force."""

    policy: Policy
    stored: dict[bytes, None] = field(default_factory=dict)
    offered: bool = False
    resend_at: float = 0.0


@dataclass(slots=True)
class Agenda:
    """What the scheduler of one term has decided, and whether there is something to decide.

    `policy`: the one in force. `switch`: the next one, None if none is on its way. `passing`: the
    role is being handed over, so nothing new is started. `dirty`: something has changed since it
    was last looked at which policy is desired.
    """

    policy: Policy
    switch: Switch | None = None
    passing: bool = False
    dirty: bool = True

    def lets_in(self, node: bytes) -> bool:
        """Whether a policy that lets the joiner `node` in may be in force already: it is too late
        to stop it then."""
        switch = self.switch
        return switch is not None and switch.offered and node in switch.policy.view.nodes

    def names(self, join: int) -> bool:
        """Whether the policy in force or the next one names the pull of the join `join`."""
        pulls = self.policy.pulls + (self.switch.policy.pulls if self.switch is not None else ())
        return any(pull.join == join for pull in pulls)

    def withdraw_pull(self, joiner: bytes) -> bool:
        """Withdraw the switch by which a parent would forward the rounds to `joiner`, if there is
        one; return False if it may be in force already, so that this is too late."""
        switch = self.switch
        pull = switch.policy.pull_of(joiner) if switch is not None else None
        if switch is None or pull is None or pull.beside:
            return True
        if not switch.offered:
            self.switch = None
        return not switch.offered

    def changed(self, joiner: bytes) -> None:
        """Note that the joiner `joiner` has changed: a switch that lets it in is withdrawn, unless
        it is offered."""
        self.dirty = True
        switch = self.switch
        if switch is not None and not switch.offered and joiner in switch.policy.view.nodes:
            self.switch = None
