"""Links that others ask this member for: the joiners it expects, the members it was told to dial.

A joiner's key is trusted from its introduction on, for as long as its join is under way; for longer
only if a policy names it meanwhile. The node that asked for a link is told when the link is open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import limits
from protocols.effects import CloseLink, Dial, Distrust, Trust

if TYPE_CHECKING:
    from protocols.cluster.view import Member
    from protocols.member.context import Context


class Introductions:
    """The part of one node that keeps whom it expects."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._asked_by: dict[bytes, bytes] = {}  # member being dialled -> who asked for it
        self._expected: dict[int, Member] = {}  # join -> whose link is expected
        self._begun_anew: dict[int, None] = {}  # joins whose link here is gone

    @property
    def expected(self) -> dict[int, Member]:
        """Join -> the joiner whose link is expected."""
        return self._expected

    def dial(self, member: Member, asker: bytes) -> bool:
        """`asker` wants a link to `member`; return whether it is open already."""
        self._asked_by[member.node] = asker
        if member.node in self._context.links:
            return True
        self._context.do(Dial(member))
        return False

    def settled(self, node: bytes) -> bytes | None:
        """The link to `node` is open, or could not be opened: return who asked for it."""
        return self._asked_by.pop(node, None)

    def expect(self, number: int, joiner: Member) -> None:
        """A joiner will open a link."""
        self._context.do(Trust(joiner))
        self._expected[number] = joiner
        for old in list(self._expected)[: -limits.MAX_OPEN_JOINS]:
            del self._expected[old]
        self._begun_anew = {n: None for n in self._begun_anew if n in self._expected}

    def link_down(self, node: bytes) -> None:
        """The link to `node` has ended: if it is a joiner, the next one is of another life."""
        self._begun_anew |= {n: None for n, j in self._expected.items() if j.node == node}

    def expect_no_more(self, number: int) -> None:
        """A join was given up: its joiner, unless it is a member or has begun anew, has to go."""
        context, joiner = self._context, self._expected.pop(number, None)
        if joiner is None or any(j.node == joiner.node for j in self._expected.values()):
            return
        if any(p.view.member(joiner.node) is not None for p in context.policies.values()):
            return
        if joiner.node not in context.links:
            context.do(Distrust(joiner.node))
        elif number not in self._begun_anew:
            context.do(Distrust(joiner.node))
            context.do(CloseLink(joiner.node))
