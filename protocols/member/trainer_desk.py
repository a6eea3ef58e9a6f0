"""What the trainer says goes to the parts of the node that it concerns."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from protocols.events import (
    ChunksReady,
    Contributed,
    PiecesTaken,
    Progressed,
    Published,
    TrainerEnded,
    TrainerEvent,
    UpdateDelayed,
)
from protocols.member.ended_trainer import EndedTrainer

if TYPE_CHECKING:
    from protocols.member.context import Context
    from protocols.member.cycle import Cycle
    from protocols.member.replicas import Replicas
    from protocols.member.trainer_debt import TrainerDebt


class TrainerDesk:
    """The part of one node that hears its trainer. `ended` answers once there is none any more.

    What the trainer applies is taken by the node, since a joiner's updates may be those of its
    copy.
    """

    def __init__(
        self, context: Context, debt: TrainerDebt, cycle: Cycle, replicas: Replicas
    ) -> None:
        self._context, self._debt = context, debt
        self._cycle, self._replicas = cycle, replicas
        self.ended = EndedTrainer(self._is_one_of_several)

    def _is_one_of_several(self, joiner: bytes) -> bool:
        """Whether this node and others forward the rounds to `joiner`."""
        pull = self._context.pull_of(joiner)
        return pull is not None and bool(pull.feeds) and pull.is_fed_by(self._context.node)

    def take(self, event: TrainerEvent) -> None:
        """Take what the trainer has done, or that its process has ended."""
        match event:
            case Published():
                self._cycle.published(event)
            case ChunksReady():
                self._cycle.ready(event)
            case Progressed():
                self._debt.progressed(event)
            case Contributed():
                self.ended.contributed(event)
                if self._debt.contributed(event):
                    self._cycle.contributed(event)
            case TrainerEnded():
                self._debt.is_gone = True
                at, turn = self._context.iteration, self._debt.turn
                state, owed = self._cycle.state, self._cycle.owed
                self.ended.ended(at, turn, state, self._debt.kept, owed)
            case UpdateDelayed():
                self._debt.delayed(event)
            case PiecesTaken():
                self._replicas.taken(event)
            case _:
                assert_never(event)
