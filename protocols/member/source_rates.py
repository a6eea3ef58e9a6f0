"""What a joiner knows of how fast its sources send, and how much each has sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import limits
from protocols.scheduler.planning import Offer
from protocols.wire.messages import PulledFrom

if TYPE_CHECKING:
    from protocols.member.context import Context
    from protocols.member.pull import Pull


# A source that owes something is taken for slower when it has sent nothing for so many times as
# long as the last piece would need at its rate.
QUIET_TIMES = 2.0


class SourceRates:
    """The rates of the sources of one joiner."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._rates: dict[bytes, float] = {}  # source -> bytes/s at which its shards came last
        self._last: dict[bytes, tuple[float, int]] = {}  # source -> when something came, its bytes

    def arrived(self, source: bytes, rate: float | None, size: int) -> None:
        """Note that `size` bytes have come from `source`, and how fast, in bytes/s, None if that is
        not known."""
        self._last[source] = (self._context.now, size)
        if rate is not None:
            self._rates[source] = rate

    def offer(self, source: bytes, busy_bytes: int) -> Offer:
        """Return what is known of a source that still has `busy_bytes` to send: its rate while it
        sent shards, or else that of its link; less if it has sent nothing for longer than that
        explains."""
        known = self._context.incoming(source)
        rate = self._rates.get(source, known.rate if known is not None else None)
        if rate is not None and busy_bytes and source in self._last:
            at, size = self._last[source]
            quiet_s = self._context.now - at
            if quiet_s * rate > QUIET_TIMES * size:
                rate = QUIET_TIMES * size / quiet_s
        delay = known.delay_s if known is not None else 0.0
        return Offer(source, self._context.name(source), rate, delay, busy_bytes)

    def of_link(self, node: bytes) -> int:
        """Return the rate of the link from `node` in bytes/s, 0 if it is not known."""
        known = self._context.incoming(node)
        return min(int(known.rate), limits.MAX_INTEGER) if known is not None else 0

    def pulled(
        self, sources: tuple[bytes, ...], pull: Pull | None, shard_bytes: int
    ) -> tuple[PulledFrom, ...]:
        """Return how much each of `sources`, and of the fellows that have sent anything, has sent
        in `pull`, and how fast. `shard_bytes` is the size of a shard."""
        total = self._context.config.state_bytes
        pulled = dict.fromkeys(sources, 0)
        for shard, source in pull.verified.items() if pull is not None else ():
            size = min(shard_bytes, total - shard * shard_bytes)
            pulled[source] = pulled.get(source, 0) + size
        return tuple(
            PulledFrom(source, size, min(int(self._rates.get(source, 0.0)), limits.MAX_INTEGER))
            for source, size in pulled.items()
        )
