"""Which joiners this node still forwards the rounds to.

A joiner follows the rounds over the link on which they were first forwarded to it. When that link
ends, chunks are lost, so its join fails. The joiner opens a new link at once to ask again, while
the policy in force names its old join still. What was forwarded on the new link would be of no use
to it, and it would not read it before its next join has come as far. The update of the running
iteration would wait for ever until it does, because a joiner is not to be left behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protocols.member.context import Context


class Followers:
    """The part of one node that knows which joins have lost chunks."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lost: dict[int, None] = {}  # joins of which a link from here has ended

    def has_failed(self, joiner: bytes) -> bool:
        """Whether the policy in force names a join of `joiner` that has lost chunks."""
        policy = self._context.policy
        pull = policy.pull_of(joiner) if policy is not None else None
        return pull is not None and pull.join in self._lost

    def link_down(self, node: bytes) -> None:
        """The link to `node` has ended: forward no more for a join of it under any policy that is
        or may come into force. One that copies beside the training does not follow yet."""
        policies = self._context.policies.values()
        pulls = [pull for policy in policies for pull in policy.pulls if not pull.beside]
        named = {pull.join: None for pull in pulls}
        gone = {pull.join: None for pull in pulls if pull.joiner.node == node}
        self._lost = {join: None for join in (*self._lost, *gone) if join in named}
