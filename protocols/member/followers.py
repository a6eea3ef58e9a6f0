"""Which joiners this node still forwards the rounds to.

A joiner follows the rounds over the link on which they were first forwarded to it. When that link
ends, chunks are lost, so its join fails, and the joiner opens a new link at once to ask again. Or
its join fails for another reason, and it asks again over the same link. The policy in force names
the old join still. What is forwarded under it would be of no use to the joiner, which would not
read it before its next join has come as far. That needs the next iteration, and the update of the
running one would wait for the joiner without limit, because a joiner is not to be left behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import limits

if TYPE_CHECKING:
    from protocols.cluster.policy import Pull
    from protocols.member.context import Context


class Followers:
    """The part of one node that knows which joins have failed."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._failed: dict[int, None] = {}  # joins that have failed and that a policy still names

    def has_failed(self, joiner: bytes) -> bool:
        """Whether the policy in force names a join of `joiner` that has failed."""
        pull = self._context.pull_of(joiner)
        return pull is not None and pull.join in self._failed

    def link_down(self, node: bytes) -> None:
        """The link to `node` has ended: forward no more for a join of it under any policy that is
        or may come into force. One that copies beside the training does not follow yet."""
        pulls = [pull for pull in self._pulls() if not pull.beside]
        self._note_failed(tuple(pull.join for pull in pulls if pull.joiner.node == node))

    def given_up(self, join: int) -> None:
        """The scheduler has given the join `join` up, perhaps because its joiner asks anew."""
        self._note_failed((join,))

    def _note_failed(self, gone: tuple[int, ...]) -> None:
        """Add the joins `gone`. Those that no policy names are forgotten after a while: one that
        names them may still be on its way here."""
        named = [pull.join for pull in self._pulls()]
        failed = tuple(dict.fromkeys((*self._failed, *gone)))
        recent = failed[-limits.MAX_OPEN_JOINS :]
        self._failed = {join: None for join in failed if join in named or join in recent}

    def _pulls(self) -> list[Pull]:
        return [pull for policy in self._context.policies.values() for pull in policy.pulls]
