"""In which order a neighbour's chunks can come: a chunk out of this order has a wrong header.

One direction of a link is a stream, and a round completes nowhere before each member has sent all
of its part. Therefore:

- a neighbour that owes chunks of the running round sends none of a later round under the same
  policy;
- no chunk is two iterations ahead of a member;
- no chunk has the running iteration and attempt under another policy;
- of rounds that are over, no chunk comes behind one of a newer round, and none of a round that is
  complete here.

While a fence has this node frozen, the others may be ahead of it.
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

Key = tuple[bytes, int, int, int, int, int]


@dataclass(slots=True)
class FrameOrder:
    """The newest round of which one neighbour has sent a chunk."""

    lineage: bytes = b""
    newest: tuple[int, int, int, int] = (0, 0, 0, 0)  # term, policy, iteration, attempt

    def follows(self, header: BulkHeader) -> None:
        """Take the next header; raise `RemoteProtocolError` if it falls behind the last."""
        place = (header.term, header.policy, header.iteration, header.attempt)
        if header.lineage == self.lineage and place < self.newest:
            raise RemoteProtocolError("a chunk of a round before those that came already")
        self.lineage, self.newest = header.lineage, place


def check_place(
    header: BulkHeader, sender: bytes, now: Round, lineages: Container[bytes], over: Key | None
) -> None:
    """Raise `RemoteProtocolError` if `header`, whose round is not the running one, cannot come now.

    `lineages`: those that this node knows. `over`: the round that was completed here last."""
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
        return  # given up: whoever was an iteration ahead may have sent that before a fence
    if header.attempt > spec.attempt + limits.MAX_ATTEMPT_STEP:
        raise RemoteProtocolError("a chunk of an attempt that cannot have come yet")
    if spec.contributes and header.iteration > spec.iteration + 1:
        raise RemoteProtocolError("a chunk of an iteration that cannot have come yet")
    if plan == ours and now.owes(sender):
        raise RemoteProtocolError("a chunk of a later round before all of this one")
    if header.policy > spec.policy + limits.MAX_VERSION_STEP:
        raise RemoteProtocolError("a chunk of a later round under a policy that cannot be in force")
