"""Links that other nodes ask this member for.

There are two kinds. The scheduler introduces a joiner that will dial this member: its key is
trusted from then on while its join is under way, and for longer only if a policy names the joiner
meanwhile. The scheduler also tells this member to dial another one; the node that asked is told
when that link is open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import limits
from protocols.effects import CloseLink, Dial, Distrust, Trust

if TYPE_CHECKING:
    from protocols.cluster.view import Member
    from protocols.member.context import Context


class Introductions:
    """The part of one node that remembers which links others have asked it for."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._asked_by: dict[bytes, bytes] = {}  # member being dialled -> who asked for it
        self._expected: dict[int, Member] = {}  # join -> the joiner whose link is expected
        self._begun_anew: dict[int, None] = {}  # joins whose joiner's link here has ended since

    @property
    def expected(self) -> dict[int, Member]:
        """Join -> the joiner whose link is expected."""
        return self._expected

    def dial(self, member: Member, asker: bytes) -> bool:
        """Dial `member` because `asker` wants a link to it, unless a link is open already; return
        whether one is."""
        self._asked_by[member.node] = asker
        if member.node in self._context.links:
            return True
        self._context.do(Dial(member))
        return False

    def settled(self, node: bytes) -> bytes | None:
        """Note that the link to `node` is open or could not be opened; return who asked for it, or
        None if nobody did."""
        return self._asked_by.pop(node, None)

    def expect(self, number: int, joiner: Member) -> None:
        """Trust the key of `joiner`, which will open a link to this node for the join `number`."""
        self._context.do(Trust(joiner))
        self._expected[number] = joiner
        for old in list(self._expected)[: -limits.MAX_OPEN_JOINS]:
            del self._expected[old]
        self._begun_anew = {n: None for n in self._begun_anew if n in self._expected}

    def link_down(self, node: bytes) -> None:
        """Note that the link to `node` has ended. If `node` is an expected joiner, its next link
        belongs to another attempt to join, which giving up this join must not close."""
        self._begun_anew |= {n: None for n, j in self._expected.items() if j.node == node}

    def expect_no_more(self, number: int) -> None:
        """Act on the end of the join `number`: its joiner is trusted no longer and its link closed,
        unless another join or a stored policy names it, or it has opened a new link since."""
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
