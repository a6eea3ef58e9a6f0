"""Paths that carry small frames only, and what the operating systems at both ends know about it.

A *hole* swallows segments longer than `passes` bytes in one direction. It also stops everything
behind them on the same connection, since TCP keeps the order; the other connection of the link goes
on. New links have segments as short as both ends wanted by then, which a hole may or may not let
pass. A system tells what Linux tells the agent's shell: how many bytes were acknowledged, whether
it sends bytes again in vain, and whether it hears the other end. The real
`protocols.network.progress` judges that at each heartbeat; here its verdict is only carried out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from protocols import limits
from protocols.network.link_end import LinkEnd
from protocols.network.progress import Sending

if TYPE_CHECKING:
    from tests.simulation.harsh import HarshWorld, Pair
    from tests.simulation.host import Host

SEGMENT = 1460  # bytes of a segment if nobody has asked for shorter ones
SMALL_FRAME = 200  # bytes of a control word or a goodbye, which pass every hole
LARGE_FRAME = 64 << 10  # bytes of a chunk, a shard or a probe
NO_BULK = 0  # a hole that lets control frames of any length pass, and large bulk frames never
PASSES = (1300, 600, NO_BULK)
RESEND_SECONDS = 0.7  # bytes that are not acknowledged by then are sent again
HEARD_SECONDS = 1.0  # an end counts as hearing the other if a packet came within this time

Connection = tuple[bytes, int, bool]  # sender, number of the link, whether it is the bulk one


@dataclass
class Way:
    """One direction of one connection."""

    sent: int = 0  # bytes
    arrived: int = 0
    acknowledged: int = 0  # bytes, as far as the sender knows
    moved_at: float = 0.0  # when that grew last, or everything was acknowledged
    heard_at: float = 0.0  # when a packet of the other end last reached the sender
    held: list[Callable[[], None]] = field(default_factory=list)  # frames that a hole holds back


class Narrow:
    """The holes of one world. Connections are watched only once there is a hole, to save time."""

    def __init__(self, world: HarshWorld) -> None:
        self._world = world
        self.active = False
        self._holes: dict[Pair, list[int]] = {}
        self._ways: dict[Connection, Way] = {}
        self._segments: dict[int, int] = {}  # number of a link -> bytes of its segments

    # --- holes --------------------------------------------------------------------------------

    def open(self, pairs: list[Pair], passes: int, seconds: float | None) -> None:
        """Let nothing longer than `passes` bytes pass in these directions, for so many seconds, or
        for ever if that is None."""
        if not self.active:
            self.active = True
            self._world.later(limits.HEARTBEAT_SECONDS, self._beat)
        for pair in pairs:
            self._holes.setdefault(pair, []).append(passes)
        if seconds is not None:
            self._world.later(seconds, partial(self._mend, pairs, passes))

    def _mend(self, pairs: list[Pair], passes: int) -> None:
        self._world.waits.disturb()
        for pair in pairs:
            self._holes[pair].remove(passes)
            if not self._holes[pair]:
                del self._holes[pair]
            for key, way in list(self._ways.items()):
                if key[0] == pair[0]:
                    held, way.held = way.held, []
                    for frame in held:  # another hole may hold them back again
                        self._world.later(0.0, frame)
            self._world.heard(pair)

    def is_open(self, pair: Pair) -> bool:
        """Whether large frames are swallowed in this direction."""
        return pair in self._holes

    def linked(self, a: Host, b: Host, link: int) -> None:
        """`a` has dialled `b`, and their systems agree on the length of segments. A listening
        socket has one length for all connections that it accepts, so the shortest one of `b`
        counts."""
        wanted = (a.segments.get(b.me.node, SEGMENT), *b.segments.values())
        self._segments[link] = min(SEGMENT, *wanted)

    # --- frames -------------------------------------------------------------------------------

    def _way(self, key: Connection) -> Way:
        way = self._ways.get(key)
        if way is None:
            way = self._ways[key] = Way(moved_at=self._world.now, heard_at=self._world.now)
        return way

    def sent(self, key: Connection, size: int) -> None:
        """A frame has been handed to the sender's system."""
        self._way(key).sent += size

    def keeps(self, key: Connection, to: bytes, size: int, frame: Callable[[], None]) -> bool:
        """Whether a frame that would arrive now is swallowed, or is behind one that is. It arrives
        when the hole is mended."""
        way = self._way(key)
        if not way.held and not (self._holes and self._swallows(key, to, size)):
            way.arrived += size
            return False
        way.held.append(frame)
        if len(way.held) == 1 and not key[2]:
            self._world.listen_to(to, key[0])
        return True

    def _swallows(self, key: Connection, to: bytes, size: int) -> bool:
        sender, link, is_bulk = key
        longest = min(size, self._segments.get(link, SEGMENT))
        return any(
            (is_bulk and size > SMALL_FRAME) if passes == NO_BULK else longest > passes
            for passes in self._holes.get((sender, to), ())
        )

    def is_mute(self, sender: Host, to: bytes) -> bool:
        """Whether heartbeats of `sender`, or the goodbye with which it has ended the link, are
        behind a frame that is swallowed."""
        link = self._world.hosts[to].ends.get(sender.me.node)
        way = self._ways.get((sender.me.node, link, False)) if link is not None else None
        return way is not None and bool(way.held)

    # --- what the systems know ----------------------------------------------------------------

    def _beat(self) -> None:
        """At each heartbeat, let every shell that is awake look at its connections."""
        world = self._world
        world.later(limits.HEARTBEAT_SECONDS, self._beat)
        for host in list(world.hosts.values()):
            if host.gone is not None or host.asleep:
                continue
            sending = {n: self.sending(host, n) for n in sorted(host.ends)}
            delays = dict.fromkeys(sending, world.most_delay / 2)
            for peer in host.progress.beat(host.clock(), sending, delays):
                world.fire("stalled")
                self._shorten(host, peer)
                link = host.ends[peer]
                world.reset_end(world.hosts[peer], host.me.node, link, LinkEnd.RESET)
                world.end(host, peer, LinkEnd.STALLED)

    def silent(self, host: Host, peer: bytes) -> None:
        """`host` is about to end its link to `peer`, which has been silent for too long."""
        if self.active:
            host.progress.ends(host.clock(), peer, self.sending(host, peer))
            self._shorten(host, peer)

    def gone(self, host: Host, peer: bytes) -> None:
        """The link of `host` to `peer` has ended."""
        if self.active:
            host.progress.gone(host.clock(), peer)
            self._shorten(host, peer)

    def _shorten(self, host: Host, peer: bytes) -> None:
        segment = host.progress.segment(peer)
        if segment is not None:
            host.segments[peer] = segment

    def sending(self, host: Host, peer: bytes) -> tuple[Sending, Sending]:
        """Return what the system of `host` knows of the two connections of its link to `peer`."""
        control, bulk = (self._sending(host, peer, is_bulk) for is_bulk in (False, True))
        return control, bulk

    def _sending(self, host: Host, peer: bytes, is_bulk: bool) -> Sending:
        world, me, link = self._world, host.me.node, host.ends[peer]
        way, back = self._way((me, link, is_bulk)), self._way((peer, link, is_bulk))
        comes_back = not world.is_shut(world.hosts[peer], host)
        if comes_back and way.arrived > way.acknowledged:
            way.acknowledged = way.arrived
            way.moved_at = way.heard_at = world.now
        if way.acknowledged == way.sent:
            way.moved_at = world.now
        if comes_back and not is_bulk and not back.held:
            way.heard_at = world.now  # heartbeats come
        resends = world.now - way.moved_at > RESEND_SECONDS
        return Sending(way.acknowledged, resends, world.now - way.heard_at < HEARD_SECONDS)
