"""For which joins this member holds the update of the running iteration.

A joiner whose pull is not `beside` copies the state as it is at the start of the policy's first
iteration. The members let nothing change it until the joiner says that it has all of it, or its
join is given up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocols import limits
from protocols.member.copies import pull_begins

if TYPE_CHECKING:
    from protocols.cluster.policy import Policy, Pull
    from protocols.member.context import Context
    from protocols.member.copies import Copies
    from protocols.wire.messages import PullBegins

_NEVER = -1  # no iteration: a joiner that follows the rounds is no source and holds no state


@dataclass(frozen=True, slots=True)
class _Lacking:
    """A join for which the state here lacks updates. `by`: when its scheduler is told so."""

    policy: Policy
    pull: Pull
    by: float


class Holds:
    """The part of one node that knows who still copies the state of the running iteration."""

    def __init__(self, context: Context, copies: Copies) -> None:
        self._context = context
        self._copies = copies
        self._beside: dict[int, int] = {}  # join beside the training -> since which iteration
        self._held: dict[int, int] = {}  # join -> iteration whose update waits for it
        self._lacking: dict[int, _Lacking] = {}  # join -> what to offer once the state is whole
        self._released: dict[int, None] = {}  # joins that have their copy or were given up
        self._said: dict[int, tuple[bytes, PullBegins]] = {}  # join -> joiner, what it was told

    @property
    def joins(self) -> tuple[int, ...]:
        """Joins for which this node keeps the state of the running iteration unchanged."""
        at = self._context.iteration
        return tuple(j for j, i in self._held.items() if i == at and j not in self._released)

    @property
    def begun(self) -> dict[int, tuple[bytes, PullBegins]]:
        """Join -> (joiner, the message it was sent), for the pulls that begin with the running
        iteration and have this node as a source."""
        if not self._said:
            return {}
        holding = self.joins
        return {join: said for join, said in self._said.items() if join in holding}

    def is_for(self, joiner: bytes) -> bool:
        """Whether this node keeps the state of the running iteration for the join of `joiner`."""
        pull = self._context.pull_of(joiner)
        return pull is not None and pull.join in self.joins

    def reads(self, policy: Policy) -> bool:
        """Whether joiners that `policy` names may still want the state of a later iteration. Who
        copies beside the training has what it wants of it in snapshots."""
        return any(not pull.beside or pull.join not in self._beside for pull in policy.pulls)

    @property
    def was_copied(self) -> bool:
        """Whether joiners copy, or have copied, the state of the running iteration."""
        return self._context.iteration in self._held.values()

    def release(self, join: int) -> None:
        """Hold the state for join `join` no longer: the joiner has its copy, or gave up."""
        self._released[join] = None
        for old in list(self._released)[: -limits.MAX_OPEN_JOINS]:
            del self._released[old]

    def drop(self) -> None:
        """Hold nothing any more, because a fence has ended the joins."""
        self._held, self._said, self._lacking = {}, {}, {}

    def begin(self, policy: Policy, *, is_whole: bool) -> None:
        """Hold the state for joiners whose pull begins with the running iteration under `policy`,
        and tell those of which this node is a source. `is_whole`: no update is missing in the state
        here, so that it may be copied. If the trainer has yet to apply some, joiners that the
        others wait for are offered the state when it has."""
        context = self._context
        named = [p.join for p in policy.pulls if not p.beside]
        self._held = {j: i for j, i in self._held.items() if j in named}
        self._said = {j: said for j, said in self._said.items() if j in named}
        for pull in policy.pulls:
            known = self._beside if pull.beside else self._held
            if pull.join in known:
                continue
            known[pull.join] = context.iteration if context.is_member else _NEVER
            if context.node not in pull.sources or pull.join in self._released:
                continue
            if is_whole:
                self._offer(policy, pull)
            elif pull.beside:  # the members go on, so this state is not there any more then
                self._copies.refuse(pull.join)
            else:
                by = context.now + limits.JOIN_OFFER_SECONDS
                self._lacking[pull.join] = _Lacking(policy, pull, by)
        kept = (*list(self._beside)[-limits.MAX_OPEN_JOINS :], *(p.join for p in policy.pulls))
        self._beside = {j: i for j, i in self._beside.items() if j in kept}

    def _offer(self, policy: Policy, pull: Pull) -> None:
        """Tell the joiner of `pull` that it may copy from here."""
        message = pull_begins(self._context, policy, pull)
        if pull.beside:
            self._copies.begin(pull, message)
        else:
            self._said[pull.join] = pull.joiner.node, message
            self._context.send(pull.joiner.node, message)

    @property
    def deadline(self) -> float | None:
        """When `tick` has something to do although nothing has happened."""
        return min((lacking.by for lacking in self._lacking.values()), default=None)

    def tick(self, *, is_whole: bool) -> None:
        """Offer the state to joiners for which it lacked updates, or tell the scheduler that it
        still does."""
        for join, lacking in list(self._lacking.items()):
            if join in self.joins and not is_whole and self._context.now < lacking.by:
                continue
            del self._lacking[join]
            if join in self.joins and is_whole:
                self._offer(lacking.policy, lacking.pull)
            elif join in self.joins:
                self._copies.refuse(join)
