"""What is in force, and what is on its way into force: the parts of the scheduler share it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocols import limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.cluster.policy import Policy


# So many policies may be made before one of them comes into force: a member that is late must still
# know the one that does, and keeps only `limits.MAX_POLICIES_KEPT`.
MOST_MADE = limits.MAX_POLICIES_KEPT // 2


@dataclass(slots=True)
class Switch:
    """A policy on its way into force.

    `stored`: the nodes that have its body. `ready`: these are enough, so it may be offered.
    `offered`: the scheduler's control word has named it, or the root was told that it may, so it
    may be in force at somebody already.
    `amend_at`: when a later one may be made in its place, unless it is offered by then.
    """

    policy: Policy
    stored: dict[bytes, None] = field(default_factory=dict)
    ready: bool = False
    offered: bool = False
    resend_at: float = 0.0
    amend_at: float = 0.0


@dataclass(slots=True)
class Agenda:
    """What the scheduler of one term has decided, and whether there is something to decide.

    `policy`: the one in force. `switch`: the next one, None if none is on its way. `amended`: what
    takes the place of `switch` once enough nodes have stored it, unless that is offered before.
    `passing`: the role is being handed over, so nothing new is started. `dirty`: something has
    changed since it was last looked at which policy is desired.
    """

    policy: Policy
    switch: Switch | None = None
    amended: Switch | None = None
    passing: bool = False
    dirty: bool = True
    made: int = 0  # policies made since the one in force, which members may have stored

    @property
    def under_way(self) -> tuple[Switch, ...]:
        """The switches of which one may come into force next."""
        return tuple(x for x in (self.switch, self.amended) if x is not None)

    def stored(self, sender: bytes, key: tuple[int, int], enough: Callable[[Switch], bool]) -> None:
        """`sender` has stored the body of the policy `key`. `enough(switch)`: whether all have who
        have to before it may be offered."""
        for switch in self.under_way:
            if switch.policy.key == key:
                switch.stored[sender] = None
                switch.ready = enough(switch)
        if self.amended is not None and self.amended.ready:
            self.switch, self.amended = self.amended, None

    def offer(self) -> tuple[int, int]:
        """Return the key that the scheduler's control word is to name: that of the policy in force,
        or of the switch if it is ready. Then it is too late to amend it."""
        if self.switch is None or not self.switch.ready:
            return self.policy.key
        self.switch.offered, self.amended = True, None
        return self.switch.policy.key

    def missed(self) -> None:
        """The control words of all rounds so far were made without the switch, so it may be amended
        again."""
        if self.switch is not None:
            self.switch.offered, self.dirty = False, True

    def lets_in(self, node: bytes) -> bool:
        """Whether a policy that lets the joiner `node` in may be in force already: it is too late
        to stop it then."""
        switch = self.switch
        return switch is not None and switch.offered and node in switch.policy.view.nodes

    def names(self, join: int) -> bool:
        """Whether the policy in force or the next one names the pull of the join `join`."""
        policies = (self.policy, *(switch.policy for switch in self.under_way))
        return any(pull.join == join for policy in policies for pull in policy.pulls)

    def withdraw_pull(self, joiner: bytes) -> bool:
        """Withdraw the switch by which members would forward the rounds to `joiner`, if there is
        one; return False if it may be in force already, so that this is too late."""
        pulls = {s.policy.key: s.policy.pull_of(joiner) for s in self.under_way}
        return self._withdraw([k for k, pull in pulls.items() if pull and not pull.beside])

    def changed(self, joiner: bytes) -> None:
        """Note that the joiner `joiner` has changed: a switch that lets it in is withdrawn, unless
        it is offered."""
        self.dirty = True
        self._withdraw([s.policy.key for s in self.under_way if joiner in s.policy.view.nodes])

    def _withdraw(self, keys: list[tuple[int, int]]) -> bool:
        """Withdraw the policies with these keys; return False if one of them stays, since it is
        offered, or since members would have to store too many others in its place."""
        if self.amended is not None and self.amended.policy.key in keys:
            self.amended = None
        switch = self.switch
        if switch is None or switch.policy.key not in keys:
            return True
        if switch.offered or (switch.ready and self.made >= MOST_MADE):
            return False
        self.switch, self.amended = self.amended, None
        return True

    def in_force(self, policy: Policy) -> None:
        """`policy` is in force from now on, and nothing else under way."""
        self.policy, self.switch, self.amended = policy, None, None
        self.dirty, self.made = True, 0
