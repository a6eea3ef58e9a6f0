"""Links between members that break again and again although nobody ends, and until when the
scheduler asks for none of them anew.

The scheduler has links opened that would shorten paths or protect against losses
(`Negotiator._densify`). Each loss of a link costs everybody a fence, and a fence ends all joins. A
link whose path swallows large packets can be opened at any time and stands still soon after, so a
scheduler that asks for it each time would let nobody in any more. The same holds for a device that
has no other link, and so is lost with it each time and joins again at once. All members count
losses, because reports of them are flooded and any member may be the next scheduler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import limits
from protocols.cluster.view import edge

if TYPE_CHECKING:
    from protocols.cluster.view import Edge


class Unsteady:
    """How often the links between members were lost lately."""

    def __init__(self) -> None:
        self._times: dict[Edge, list[float]] = {}  # link -> when it was lost, the last few times

    def lost(self, now: float, a: bytes, b: bytes) -> None:
        """Note that the link between `a` and `b` was lost."""
        pair = edge(a, b)
        times = [*self._times.pop(pair, ()), now]
        self._times[pair] = times[-limits.MOST_STALLS :]
        old = now - limits.STALLS_WITHIN_SECONDS
        self._times = {pair: times for pair, times in self._times.items() if times[-1] > old}

    @property
    def until(self) -> dict[Edge, tuple[float, float]]:
        """Links that were lost too often -> until when they are not to be asked for, and until when
        a device that would have no other link is not let in."""
        most, within = limits.MOST_STALLS, limits.STALLS_WITHIN_SECONDS
        often = {pair: times for pair, times in self._times.items() if len(times) >= most}
        pause = limits.LET_GO_SECONDS
        return {pair: (times[0] + within, times[-1] + pause) for pair, times in often.items()}
