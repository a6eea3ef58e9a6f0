"""What this node does when members turn out to have different training states.

The members whose state counts go on at once, without those that have another state. Each of them
sends the digests of its state's pieces to those of its neighbours that differ, so that these can
name the first difference. A member that differs leaves and pulls the state anew. If it stays, and
is found to differ again in the same life, the others part from it.
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
    from protocols.member.joining import Entry
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
        """`blame` parts this node from another one, now, and tells the others why."""
        self._context = context
        self._debt = debt
        self._entry = entry
        self._blame = blame
        self._mine: PiecesTaken | None = None
        self._theirs: m.StatePieces | None = None
        self._tell: tuple[bytes, ...] = ()  # who is to hear what the state is here
        self._seen: dict[tuple[bytes, int], None] = {}  # who was found to differ, in which life

    def found(self, differing: tuple[bytes, ...]) -> None:
        """The running iteration's control word shows that these members have another state."""
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
        """Note that `who` differs; return whether it did so before in this life of its."""
        policy = self._context.policy
        member = policy.view.member(who) if policy is not None else None
        life = (who, member.incarnation if member is not None else 0)
        before = life in self._seen
        self._seen[life] = None
        for old in list(self._seen)[: -limits.MAX_MEMBERS]:
            del self._seen[old]
        return before

    def taken(self, event: PiecesTaken) -> None:
        """The digests of the state's pieces are here."""
        context = self._context
        if context.diverged:
            self._mine = event
            self._compare()
            return
        message = m.StatePieces(event.iteration, event.pieces, context.meta)
        for neighbour in [n for n in self._tell if n in context.near]:
            context.send(neighbour, message)

    def heard(self, message: m.StatePieces) -> None:
        """A neighbour tells what the state is there, perhaps before we know that ours differs."""
        self._theirs = message
        self._compare()

    def _compare(self) -> None:
        mine, theirs, context = self._mine, self._theirs, self._context
        if mine is None or theirs is None or mine.iteration != theirs.iteration:
            return
        piece = first_difference(mine.pieces, theirs.pieces)
        self._mine = None  # one answer is enough
        context.do(Differs(mine.iteration, piece, context.meta, theirs.meta))
