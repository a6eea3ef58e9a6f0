"""The order in which a neighbour's chunks can come. A chunk out of this order has a wrong header,
because no correct neighbour sends it.

One direction of a link is a stream, and a round completes nowhere before each member has sent all
of its part. Therefore:

- a neighbour that owes chunks of the running round sends none of a later round under the same
  policy, except that where chunks have holders it may go on to the next attempt of the iteration;
- no chunk is two iterations ahead of a member;
- no chunk has the running iteration and attempt under another policy;
- a neighbour sends no chunk of an older round after one of a newer round, and none at all of a
  round that is complete here.

Chunks of older rounds that come in order are not wrong: while a fence has this node frozen, a
neighbour may be an iteration ahead of it, and the fence's decision goes back behind that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocols import limits
from protocols.errors import RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Container

    from protocols.rounds.round import Round
    from protocols.wire.bulk import BulkHeader

Key = tuple[bytes, int, int, int, int, int]  # as `RoundSpec.key`


@dataclass(slots=True)
class FrameOrder:
    """The newest round of which one neighbour has sent a chunk."""

    lineage: bytes = b""
    newest: tuple[int, int, int, int] = (0, 0, 0, 0)  # term, policy, iteration, attempt

    def follows(self, header: BulkHeader) -> None:
        """Take the next header of this neighbour. Raises `RemoteProtocolError` if it belongs to an
        older round of the same lineage than the last one."""
        place = (header.term, header.policy, header.iteration, header.attempt)
        if header.lineage == self.lineage and place < self.newest:
            raise RemoteProtocolError("a chunk of a round before those that came already")
        self.lineage, self.newest = header.lineage, place


def check_place(
    header: BulkHeader, sender: bytes, now: Round, lineages: Container[bytes], over: Key | None
) -> None:
    """Raise `RemoteProtocolError` if `header`, whose round is not the running one, cannot come now.

    `now` is the running round, `lineages` those that this node knows, and `over` the round that was
    completed here last. A joiner that follows the rounds (`contributes` False) knows less than a
    member, so less is required of what it is sent.
    """
    spec = now.spec
    if header.lineage != spec.lineage:
        if spec.contributes and header.lineage not in lineages:
            raise RemoteProtocolError("a chunk of a lineage that nobody has begun")
        return
    place, here = (header.iteration, header.attempt), (spec.iteration, spec.attempt)
    plan, ours = (header.term, header.policy), (spec.term, spec.policy)
    key = (header.lineage, header.view, header.policy, *place, header.term)
    if key == over:
        raise RemoteProtocolError("a chunk of a round that is complete")
    if place == here or (plan == ours and header.view != spec.view):
        raise RemoteProtocolError("a chunk of the running round under another policy")
    if place < here or plan < ours:
        return  # of a round given up: a neighbour ahead of us may have sent it before a fence
    if header.attempt > spec.attempt + limits.MAX_ATTEMPT_STEP:
        raise RemoteProtocolError("a chunk of an attempt that cannot have come yet")
    if spec.contributes and header.iteration > spec.iteration + 1:
        raise RemoteProtocolError("a chunk of an iteration that cannot have come yet")
    # Where chunks have holders, an attempt that lacks micro-batches ends without results.
    cut_short = spec.is_held and header.iteration == spec.iteration
    if plan == ours and not cut_short and now.owes(sender):
        raise RemoteProtocolError("a chunk of a later round before all of this one")
    if header.policy > spec.policy + limits.MAX_VERSION_STEP:
        raise RemoteProtocolError("a chunk of a later round under a policy that cannot be in force")
