"""Which joiners begin to copy together, and when.

Joiners whose copies begin with one policy share a snapshot and serve each other, so a joiner waits
for others that are about to copy (`JoinCost.waits_s`). It waits in any case while the members hold
their update for another joiner: no policy comes into force before they go on, and one that was made
at once would name only those who had come by then.

Before it is a member, each joiner receives the result of one round from a single member, its
parent. Other joiners do not help with that, so the joiner with the slowest parent decides how long
all of them, and the members, wait. One that is much slower than the rest begins later: when the
others are members, one of these is probably a faster parent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import limits
from protocols.scheduler.join import JoinState

if TYPE_CHECKING:
    from collections.abc import Collection

    from protocols.scheduler.join import Join
    from protocols.scheduler.join_cost import JoinCost

_ON_THE_WAY = (JoinState.INTRODUCING, JoinState.LINKING)


def is_held(joins: Collection[Join]) -> bool:
    """Whether the members hold their update for one of `joins`, as far as the scheduler knows."""
    return any(j.state is JoinState.PULLING and not j.has_state for j in joins)


def deadline(joins: Collection[Join]) -> float | None:
    """Return when joiners that wait for others have to be looked at, None if there are none."""
    if is_held(joins):
        return None  # until then nothing changes without an event
    waiting = [t for j in joins for t in (j.waits_until, j.gathers_until) if t is not None]
    return min(waiting, default=None)


def ready(now: float, joins: Collection[Join]) -> list[Join]:
    """Return the joins that waited for others and wait no longer, and note that they do not."""
    coming = any(join.state in _ON_THE_WAY for join in joins)
    for join in joins:
        if join.gathers_until is not None and now >= join.gathers_until:
            join.gathers_until = None
    gather = any(join.gathers_until is not None for join in joins)
    if is_held(joins):
        return []
    found = [
        j
        for j in joins
        if j.waits_until is not None and (now >= j.waits_until or not (coming or gather))
    ]
    for join in found:
        join.waits_until = None
    return found


class OthersFirst:
    """Knows which joiners are put off so that others join first, and how often that was."""

    def __init__(self, cost: JoinCost) -> None:
        self._cost = cost
        self._times: dict[bytes, int] = {}  # joiner -> how often it was put off

    def choose(self, joins: Collection[Join]) -> dict[int, float]:
        """Return those of `joins`, which are to begin together, that are put off: number -> for how
        many seconds. One that copies beside the training, or whose parent's rate is not known, is
        never put off, and none is more than `JOIN_MOST_PUT_OFF` times."""
        feeds = {j.number: self._cost.feed_s(_fastest(j)) for j in joins if _is_fed(j)}
        best = min(feeds.values(), default=0.0)
        most = max(limits.JOIN_FEED_SECONDS, limits.JOIN_FEED_TIMES * best)
        pause_s = min(max(limits.JOIN_AGAIN_SECONDS, 2 * best), limits.JOIN_MUCH_LATER_SECONDS)
        chosen: dict[int, float] = {}
        for join in joins:
            node = join.joiner.node
            times = self._times.get(node, 0)
            if feeds.get(join.number, 0.0) <= most or times >= limits.JOIN_MOST_PUT_OFF:
                continue
            chosen[join.number] = pause_s
            self._times.pop(node, None)
            self._times[node] = times + 1
        for old in list(self._times)[: -limits.MAX_OPEN_JOINS]:
            del self._times[old]
        return chosen

    def entered(self, node: bytes) -> None:
        """Begin to count anew for a joiner that has become a member."""
        self._times.pop(node, None)


def _is_fed(join: Join) -> bool:
    """Whether a parent will send this joiner a round while the others wait, at a known rate."""
    return not join.beside and _fastest(join) > 0


def _fastest(join: Join) -> int:
    """Return the rate of the fastest of the joiner's links (bytes/s), 0 if none is known."""
    return max((join.rates.get(n, 0) for n in join.links), default=0)
