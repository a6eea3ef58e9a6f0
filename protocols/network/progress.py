"""Whether what is sent over a link's connections arrives, and what to do where it does not.

A link stands still if one of its connections has sent bytes that are not acknowledged although the
system sends them again and again, for longer than a time-out. The time-out grows with the delay of
the link and with the time that its own rate needs for a few segments. A reader that takes nothing
is another matter: its system acknowledges what was sent, so nothing is sent again. A device that
slept has seen no progress of anybody, so its own sleep does not count.

A path that swallows large packets lets the small ones pass. It shows in one of two ways: bytes are
sent again in vain while acknowledgements of something else keep coming, or the link can be opened
anew and stands still again at once. Then the link is opened with shorter segments; the second time
with the shortest that every path must carry, because everybody waits meanwhile. A link that stands
still again and again is given up (`recovery.py`), and another way takes its place, if there is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocols import limits

if TYPE_CHECKING:
    from collections.abc import Mapping

GAIN = 1 / 4  # of the rate, per heartbeat in which something arrived


@dataclass(frozen=True, slots=True)
class Sending:
    """How one connection stands. `acknowledged`: bytes so far that the other end's system has;
    `resends`: what was sent was not acknowledged in time and is being sent again; `hears`: small
    packets of the other end have come all the same."""

    acknowledged: int
    resends: bool
    hears: bool = False


@dataclass(slots=True)
class _Sender:
    acknowledged: int
    moved_at: float  # when bytes were acknowledged last, or nothing was wrong
    rate: float = 0.0  # bytes/s, 0: not known

    def follow(self, now: float, passed: float, state: Sending) -> None:
        """Another heartbeat has passed."""
        arrived, self.acknowledged = state.acknowledged - self.acknowledged, state.acknowledged
        if arrived > 0 and passed > 0:
            rate = arrived / passed
            self.rate += GAIN * (rate - self.rate) if self.rate else rate
        if arrived > 0 or not state.resends:
            self.moved_at = now


class Progress:
    """The connections of one node's links. Times in seconds of its own clock."""

    def __init__(self) -> None:
        self._senders: dict[bytes, tuple[_Sender, ...]] = {}  # of each connection of a link
        self._swallows: dict[bytes, int] = {}  # node -> which of the short segments it needs
        self._stuck_at: dict[bytes, float] = {}  # when a link ended with bytes sent in vain
        self._last: dict[bytes, tuple[Sending, ...]] = {}  # how each link stood a heartbeat ago
        self._beaten: float | None = None

    def gone(self, now: float, node: bytes) -> None:
        """The link to `node` has ended; perhaps because its other end heard nothing of what was
        sent in vain here: that notices sooner than we do."""
        self.ends(now, node, self._last.get(node, ()))
        self._senders.pop(node, None)

    def segment(self, node: bytes) -> int | None:
        """Return how long segments to and from `node` may be in bytes, None if that is not known to
        matter."""
        step = self._swallows.get(node, 0)
        return limits.SHORT_SEGMENTS[step - 1] if step else None

    def ends(self, now: float, node: bytes, connections: tuple[Sending, ...]) -> None:
        """The link to `node` is ended for silence, or because it stands still: note whether large
        packets were swallowed. A heartbeat behind one is not heard, so it may look like silence."""
        self._last.pop(node, None)
        stuck = [state for state in connections if state.resends]
        again = now - self._stuck_at.get(node, -limits.SWALLOW_SECONDS) < limits.SWALLOW_SECONDS
        if stuck:
            self._stuck_at[node] = now
        if stuck and again:
            self._swallows[node] = len(limits.SHORT_SEGMENTS)
        elif any(state.hears for state in stuck):
            self._swallows[node] = max(1, self._swallows.get(node, 0))

    def timeout(self, rate: float, delay: float | None) -> float:
        """Return how many seconds nothing may be acknowledged; `rate`: bytes/s so far, 0 if that is
        not known; `delay`: one way, in seconds."""
        more = limits.STALL_BYTES / rate if rate > 0 else 0.0
        wanted = limits.STALL_SECONDS + more + limits.STALL_ROUND_TRIPS * 2 * (delay or 0.0)
        return min(wanted, limits.MOST_STALL_SECONDS)

    def beat(
        self,
        now: float,
        links: Mapping[bytes, tuple[Sending, ...]],
        delays: Mapping[bytes, float | None],
    ) -> tuple[bytes, ...]:
        """A heartbeat is due: return to whom what is sent does not arrive any more, ascending."""
        before, self._beaten = self._beaten, now
        passed = now - before if before is not None else 0.0
        if passed > 2 * limits.HEARTBEAT_SECONDS:
            self._senders = {}  # we were asleep
        stalled = []
        self._last = dict(links)
        for node, states in sorted(links.items()):
            new = tuple(_Sender(state.acknowledged, now) for state in states)
            senders = self._senders.setdefault(node, new)
            for sender, state in zip(senders, states, strict=True):
                sender.follow(now, passed, state)
            longest = min(senders, key=lambda sender: sender.moved_at)
            if now - longest.moved_at > self.timeout(longest.rate, delays.get(node)):
                stalled.append(node)
                self.ends(now, node, states)
                self._senders.pop(node)
        return tuple(stalled)
