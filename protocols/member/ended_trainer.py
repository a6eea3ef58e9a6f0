"""What the node answers in the place of a trainer whose process has ended, until the device leaves.

The other members wait for the answers of this node, so it gives them at once:

- Micro-batches that the trainer had handed in count, as long as no others were dealt out instead of
  them, and none besides: what it was computing when it ended may be in P in part.
- An update passes by: nobody applies it, and the node goes on. So the state of this device grows
  out of date. It is offered to no joiner from now on, and no digest of it is taken.
- Results of a divided optimizer, and updates that a late trainer had missed, are not made any more.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from protocols.effects import (
    Apply,
    CloseLink,
    GiveWork,
    KeepUpdate,
    PassOver,
    Publish,
    Send,
    TakeDigest,
)
from protocols.events import Applied, Contributed
from protocols.wire.messages import PullBegins

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.effects import Effect


class EndedTrainer:
    """The part of one node that answers for its trainer. `has_ended`: whether it has to."""

    def __init__(self, feeds: Callable[[bytes], bool] = lambda _node: False) -> None:
        """`feeds(joiner)`: whether this node is one of several that forward the rounds to it."""
        self._feeds = feeds
        self.has_ended = False
        self.answers: deque[Contributed | Applied] = deque()  # events that the node takes next
        self._last: Contributed | None = None

    def contributed(self, event: Contributed) -> None:
        """Note what the trainer has handed in."""
        self._last = event

    def ended(
        self, iteration: int, turn: int, state: str, kept: tuple[int, ...], owed: int = 0
    ) -> None:
        """Answer from now on, first what the trainer owes in the `state` of the node's cycle.

        `iteration` is the node's, `turn` that of the work in it, and `kept` are the iterations of
        which the trainer still had to replay the updates. `owed`: how often it was given work of
        this iteration and has not answered; a fence may have given it more before it was done.
        """
        self.has_ended = True
        if state == "computing" or owed:
            self._last = None
        if kept:  # the node names the others one by one
            self.answers.append(Applied(kept[0], b""))
        if state == "applying":
            self.answers.append(Applied(iteration, b""))
        else:
            self.answers += [self._work_done(iteration, turn)] * max(1, owed)

    def stand_in(self, effects: list[Effect]) -> list[Effect]:
        """Return `effects` without what only a trainer can do; `answers` has what it would say."""
        if not self.has_ended:
            return effects
        left: list[Effect] = []
        for effect in effects:
            match effect:
                case GiveWork(iteration, _, turn):
                    self.answers.append(self._work_done(iteration, turn))
                case Apply(iteration):
                    left.append(PassOver(iteration))
                case KeepUpdate() | Publish() | TakeDigest():
                    pass
                case Send(to, envelope) if isinstance(envelope.message, PullBegins):
                    if not self._feeds(to):
                        left.append(CloseLink(to))  # the joiner then uses other sources
                case _:
                    left.append(effect)
        return left

    def _work_done(self, iteration: int, turn: int) -> Contributed:
        """Return what the trainer had finished of this work."""
        last = self._last
        if last is None or (last.iteration, last.turn) != (iteration, turn):
            return Contributed(iteration, (), 0.0, b"", b"", True, turn)
        return last
