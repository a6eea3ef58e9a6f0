"""What this node does when members turn out to have different training states.

The members that have the state of the majority go on at once without the others. Each of them sends
the digests of its state's pieces to those of its neighbours that differ, so that these can tell
their users where the first difference is. A member that differs leaves the cluster and pulls the
state anew. If it stays instead, and is found to differ again in the same incarnation, its
neighbours close their links to it and accuse it, because it is broken (protocol.md, 11).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import limits
from protocols.effects import Differs, TakePieces
from protocols.rounds.divergence import first_difference
from protocols.wire import messages as m

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.events import PiecesTaken
    from protocols.member.context import Context
    from protocols.member.entry import Entry
    from protocols.member.trainer_debt import TrainerDebt


class Replicas:
    """The part of one node that compares its state with that of others."""

    def __init__(
        self,
        context: Context,
        debt: TrainerDebt,
        entry: Entry,
        blame: Callable[[float, bytes, str], None],
    ) -> None:
        """`blame(now, node, reason)` closes the link to a node and tells the others why."""
        self._context = context
        self._debt = debt
        self._entry = entry
        self._blame = blame
        self._mine: PiecesTaken | None = None
        self._theirs: m.StatePieces | None = None
        self._tell: tuple[bytes, ...] = ()  # members that differ, to which our digests are sent
        self._seen: dict[tuple[bytes, int], None] = {}  # (node, incarnation) found to differ so far

    def found(self, differing: tuple[bytes, ...]) -> None:
        """Act on the control word of the running iteration, which shows that the members in
        `differing` have another state than most."""
        context = self._context
        for who in differing:
            name = context.name(who)
            context.report("diverged", node=name, iteration=context.iteration)
        if (joining := self._entry.under_way) is not None:
            joining.fail("members have different training states; they part first")
            return
        context.do(TakePieces(context.iteration))
        if context.node in differing:
            self._debt.diverge()
            return
        self._tell = differing
        again = [n for n in differing if self._differed_before(n)]
        for neighbour in [n for n in again if n in context.links]:
            self._blame(context.now, neighbour, "its training state differs again")

    def _differed_before(self, who: bytes) -> bool:
        """Note that `who` differs; return whether it has done so before in this incarnation."""
        policy = self._context.policy
        member = policy.view.member(who) if policy is not None else None
        life = (who, member.incarnation if member is not None else 0)
        before = life in self._seen
        self._seen[life] = None
        for old in list(self._seen)[: -limits.MAX_MEMBERS]:
            del self._seen[old]
        return before

    def taken(self, event: PiecesTaken) -> None:
        """The digests of the pieces of this node's state have been computed."""
        context = self._context
        if context.diverged:
            self._mine = event
            self._compare()
            return
        message = m.StatePieces(event.iteration, event.pieces, context.meta)
        for neighbour in [n for n in self._tell if n in context.near]:
            context.send(neighbour, message)

    def heard(self, message: m.StatePieces) -> None:
        """A neighbour sends the digests of its state, possibly before this node has seen the word
        that shows that its own state differs."""
        self._theirs = message
        self._compare()

    def _compare(self) -> None:
        mine, theirs, context = self._mine, self._theirs, self._context
        if mine is None or theirs is None or mine.iteration != theirs.iteration:
            return
        piece = first_difference(mine.pieces, theirs.pieces)
        self._mine = None  # several neighbours send theirs, but one comparison is enough
        context.do(Differs(mine.iteration, piece, context.meta, theirs.meta))
