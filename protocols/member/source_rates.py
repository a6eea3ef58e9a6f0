"""What a joiner knows of how fast its sources send, and how much each has sent."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from protocols import limits
from protocols.scheduler.planning import Offer
from protocols.wire.messages import PulledFrom

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.member.context import Context
    from protocols.member.pull import Pull


# A source that owes something is taken for slower when it has sent nothing for so many times as
# long as the last piece would need at its rate.
QUIET_TIMES = 2.0
# The rate of a source is that of the last so many seconds, and of so many pieces at least.
RECENT_SECONDS = 0.1
RECENT_PIECES = 2
# Pieces arrive in lumps where a processor is busy, so a shorter time says nothing.
LEAST_RECENT_SECONDS = 0.05
# After so long without news the rate of the link counts again, so that a source that was slow once,
# and therefore is asked for hardly anything, is tried again.
FORGET_SECONDS = 3.0


class SourceRates:
    """The rates of the sources of one joiner. `owes(source)` tells how many pieces a source was
    asked for that have not come, of the state and of updates together.

    All of them send at once, and updates come over the same links. So what a source has sent a
    moment ago is what it can be counted on for, whatever its link carries when nothing else does,
    and it shows within a tenth of a second that a link has become slower or faster. The rate of the
    link (`Meter`) is used until that much is known.
    """

    def __init__(self, context: Context, owes: Callable[[bytes], int]) -> None:
        self._context = context
        self._owes = owes
        self._rates: dict[bytes, tuple[float, float]] = {}  # source -> when it sent so fast, B/s
        self._links: dict[bytes, float] = {}  # source -> bytes/s that its link carried last
        self._recent: dict[bytes, _Recent] = {}  # source -> what it has sent without a pause

    def arrived(self, source: bytes, rate: float | None, size: int) -> None:
        """Note that a piece of `size` bytes, which `source` still owes, has come, and that its link
        has `rate`, in bytes/s, None if that is not known."""
        now, recent = self._context.now, self._recent.setdefault(source, _Recent())
        recent.arrived(now, size, is_last=self._owes(source) <= 1)
        if (measured := recent.rate) is not None:
            self._rates[source] = now, measured
        if rate is not None:
            self._links[source] = rate

    def offer(self, source: bytes, busy_bytes: int) -> Offer:
        """Return what is known of a source that still has `busy_bytes` to send: its rate while it
        sent, or else that of its link; less if it has sent nothing for longer than that explains.
        """
        known = self._context.incoming(source)
        link = self._links.get(source) or (known.rate if known is not None else None)
        delay = known.delay_s if known is not None else 0.0
        at, rate = self._rates.get(source, (0.0, link))
        if self._context.now - at > FORGET_SECONDS:
            rate = link
        if busy_bytes and rate is not None and source in self._recent:
            rate = self._recent[source].slowed(rate, self._context.now, delay)
        return Offer(source, self._context.name(source), rate, delay, busy_bytes, link)

    def of_link(self, node: bytes) -> int:
        """Return the rate of the link from `node` in bytes/s, 0 if it is not known."""
        known = self._context.incoming(node)
        return min(int(known.rate), limits.MAX_INTEGER) if known is not None else 0

    def pulled(
        self, sources: tuple[bytes, ...], pull: Pull | None, shard_bytes: int
    ) -> tuple[PulledFrom, ...]:
        """Return how much each of `sources`, and of the fellows that have sent anything, has sent
        in `pull`, and how fast its link is. `shard_bytes` is the size of a shard."""
        total = self._context.config.state_bytes
        pulled = dict.fromkeys(sources, 0)
        for shard, source in pull.verified.items() if pull is not None else ():
            size = min(shard_bytes, total - shard * shard_bytes)
            pulled[source] = pulled.get(source, 0) + size
        return tuple(
            PulledFrom(source, size, min(int(self._links.get(source, 0.0)), limits.MAX_INTEGER))
            for source, size in pulled.items()
        )


class _Recent:
    """What one source has sent lately, while it always had something to send."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[float, int]] = deque()  # when each was here, and its bytes
        self._bytes = 0  # of all but the first, which only says since when the others came
        self._is_over = False  # nothing was owed after the last one
        self._since: float | None = None  # since when something has been owed again

    def arrived(self, now: float, size: int, *, is_last: bool) -> None:
        """A piece of `size` bytes is here, after which nothing is owed if it `is_last`. Forget
        those that are no longer recent."""
        pieces = self._pieces
        if self._is_over:
            pieces.clear()  # a pause in which nothing was owed says nothing
            self._bytes = 0
        self._is_over, self._since = is_last, None
        self._bytes += size if pieces else 0
        pieces.append((now, size))
        while len(pieces) > RECENT_PIECES + 1 and pieces[1][0] < now - RECENT_SECONDS:
            pieces.popleft()
            self._bytes -= pieces[0][1]

    @property
    def rate(self) -> float | None:
        """In bytes/s; None if too little has come."""
        seconds = self._pieces[-1][0] - self._pieces[0][0]
        if len(self._pieces) <= RECENT_PIECES or seconds < LEAST_RECENT_SECONDS:
            return None
        return self._bytes / seconds

    def slowed(self, rate: float, now: float, delay_s: float) -> float:
        """Return `rate`, or less if the next piece, which is owed, should be here for long. If
        nothing was owed when the last one came, the request has to arrive first, too."""
        last, size = self._pieces[-1]
        if self._is_over:
            self._since = now if self._since is None else self._since
            last = self._since + 2 * delay_s
        quiet_s = now - last
        return QUIET_TIMES * size / quiet_s if quiet_s * rate > QUIET_TIMES * size else rate
