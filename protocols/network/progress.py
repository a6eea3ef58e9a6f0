"""Whether what is sent over a link's connections arrives, and what to do if it does not.

A link stands still if one of its connections has sent bytes that are not acknowledged, although the
system sends them again and again, for longer than a time-out. The time-out grows with the delay of
the link and with the time that its own rate needs for a few segments. A reader that takes nothing
is another matter: its system acknowledges what was sent, so nothing is sent again. A device that
slept has seen no progress of anybody, so time in which it slept does not count.

A path that swallows large packets (for example a tunnel with a small MTU whose ICMP messages are
filtered) lets small packets pass. It shows in one of two ways: bytes are sent again in vain while
other packets keep coming, or the link can be opened anew and stands still again at once. Then the
link is opened with shorter segments; the second time with the shortest that every path must carry,
because all members wait meanwhile. A link that stands still again and again is given up
(`recovery/standstill.py`), and the tree takes another path if there is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocols import limits

if TYPE_CHECKING:
    from collections.abc import Mapping

GAIN = 1 / 4  # the weight of the last heartbeat in which bytes arrived, in the mean rate


@dataclass(frozen=True, slots=True)
class Sending:
    """The state of one connection, as the operating system tells it.

    `acknowledged`: how many bytes the other end's system has acknowledged so far. `resends`: bytes
    were not acknowledged in time and are being sent again. `hears`: packets of the other end have
    come nevertheless, so the path works for small ones.
    """

    acknowledged: int
    resends: bool
    hears: bool = False


@dataclass(slots=True)
class _Sender:
    acknowledged: int
    moved_at: float  # when bytes were acknowledged last, or nothing had to be sent again
    rate: float = 0.0  # bytes/s, 0: not known

    def follow(self, now: float, passed: float, state: Sending) -> None:
        """Take the state of the connection a heartbeat (`passed` seconds) after the last one."""
        arrived, self.acknowledged = state.acknowledged - self.acknowledged, state.acknowledged
        if arrived > 0 and passed > 0:
            rate = arrived / passed
            self.rate += GAIN * (rate - self.rate) if self.rate else rate
        if arrived > 0 or not state.resends:
            self.moved_at = now


class Progress:
    """The connections of one node's links. Times are in seconds of its own clock."""

    def __init__(self) -> None:
        self._senders: dict[bytes, tuple[_Sender, ...]] = {}  # node -> one for each connection
        self._swallows: dict[bytes, int] = {}  # node -> place in `SHORT_SEGMENTS`, from 1
        self._stuck_at: dict[bytes, float] = {}  # node -> when a link ended with bytes sent in vain
        self._last: dict[bytes, tuple[Sending, ...]] = {}  # node -> states at the last heartbeat
        self._beaten: float | None = None  # when the last heartbeat was due

    def gone(self, now: float, node: bytes) -> None:
        """The link to `node` has ended. Perhaps its other end has closed it because nothing of what
        was sent in vain arrived there, which it notices sooner than this end."""
        self.ends(now, node, self._last.get(node, ()))
        self._senders.pop(node, None)

    def segment(self, node: bytes) -> int | None:
        """Return how many payload bytes a segment to or from `node` may have, None for as many as
        the system chooses."""
        step = self._swallows.get(node, 0)
        return limits.SHORT_SEGMENTS[step - 1] if step else None

    def ends(self, now: float, node: bytes, connections: tuple[Sending, ...]) -> None:
        """The link to `node` is ended because of silence or because it stands still; note whether
        the path seems to swallow large packets. That may look like silence, because a heartbeat
        behind a swallowed packet does not arrive."""
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
        """Return for how many seconds nothing may be acknowledged. `rate`: bytes/s so far, 0 if it
        is not known; `delay`: one way in seconds, None if it is not known."""
        more = limits.STALL_BYTES / rate if rate > 0 else 0.0
        wanted = limits.STALL_SECONDS + more + limits.STALL_ROUND_TRIPS * 2 * (delay or 0.0)
        return min(wanted, limits.MOST_STALL_SECONDS)

    def beat(
        self,
        now: float,
        links: Mapping[bytes, tuple[Sending, ...]],
        delays: Mapping[bytes, float | None],
    ) -> tuple[bytes, ...]:
        """A heartbeat is due: return the nodes to which links stand still, ascending. `links`: the
        connections of the link to each node; `delays`: one way, in seconds."""
        before, self._beaten = self._beaten, now
        passed = now - before if before is not None else 0.0
        if passed > 2 * limits.HEARTBEAT_SECONDS:
            self._senders = {}  # this device slept
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
