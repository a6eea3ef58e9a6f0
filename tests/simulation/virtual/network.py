"""Links between shells of one process, with seeded delays and bytes as on a real connection.

These links promise exactly what `transport.api` promises, and no more. Control and bulk frames
overtake each other, but each kind keeps its own order. A payload is read when it leaves, some time
after it was queued, and must not have changed by then. It arrives in two pieces with time between
them.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from edgeagent.errors import EdgeAgentError
from edgeagent.transport.traffic import NO_STRETCHES
from protocols.errors import RemoteProtocolError
from protocols.network.link_end import LinkEnd
from protocols.wire.bulk import BulkKind, decode_header

if TYPE_CHECKING:
    from edgeagent.transport.api import Link, LinkListener, PeerInfo
    from edgeagent.transport.traffic import Stretches
    from protocols.network.progress import Sending
    from protocols.wire.bulk import BulkHeader
    from tests.simulation.virtual.liar import Liar

MOST_DELAY_S = 0.004


class Unreachable(EdgeAgentError):
    """Raised by a dial if nobody answers, or the peer does not accept the link."""


@dataclass
class Stream:
    """One direction of one connection: everything arrives in order, each after a random delay."""

    delay: Callable[[], float]
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    _last: float = 0.0
    _open: int = 0

    def __post_init__(self) -> None:
        self.idle.set()

    def later(self, what: Callable[[], None]) -> None:
        """Call `what` after a delay, and after everything that was sent before."""
        loop = asyncio.get_running_loop()
        self._last = max(self._last + 1e-6, loop.time() + self.delay())
        self._open += 1
        self.idle.clear()
        loop.call_at(self._last, self._arrive, what)

    def _arrive(self, what: Callable[[], None]) -> None:
        what()
        self._open -= 1
        if self._open == 0:
            self.idle.set()


class MemoryLink:
    """One end of a link; implements `api.Link`."""

    def __init__(self, network: Network, peer: PeerInfo) -> None:
        self.network = network
        self._peer = peer
        self.other: MemoryLink | None = None
        self.control = Stream(network.world.delay)
        self.bulk = Stream(network.world.delay)
        self.open = True
        self.bulk_queued = 0
        self.bulk_bytes_sent = 0
        self.bulk_bytes_received = 0
        self.incoming_rate: float | None = None
        self.rate_is_alone = False
        self._sums_queued = 0  # bytes of partial sums
        self._drops = 0  # how many times these were dropped
        self._paused = False
        self._waiting: deque[tuple[BulkHeader, bytes]] = deque()
        self._target: memoryview | None = None
        self._discarded = False
        self.silent = False  # what arrives at this end is lost
        self._goodbyes = 0

    def fell(self, rate: float) -> None:
        self.incoming_rate = rate

    @property
    def peer(self) -> PeerInfo:
        return self._peer

    @property
    def sending(self) -> tuple[Sending, ...]:
        return ()

    def send_control(self, frame: bytes) -> None:
        if self.network.tamper is not None:
            frame = self.network.tamper.control(frame)
        self.control.later(lambda: self._other.control_arrived(frame))

    def send_bulk(self, header: BulkHeader, payload: memoryview) -> None:
        assert len(payload) == header.length
        was = bytes(payload)
        self.bulk_queued += len(was)
        drops = self._drops

        def leave() -> None:
            if header.kind is BulkKind.UP and drops != self._drops:
                return
            # Who has sent on a link that ended meanwhile may use its memory again.
            assert bytes(payload) == was or not self.open, f"a payload has changed: {header}"
            self.bulk_queued -= len(was)
            self._sums_queued -= len(was) if header.kind is BulkKind.UP else 0
            self.bulk_bytes_sent += len(was)
            if self.network.tamper is None:
                self._other.bulk_begins(header, was)
            else:
                self._other.altered_begins(*self.network.tamper.bulk(header, was))

        self._sums_queued += len(was) if header.kind is BulkKind.UP else 0
        self.bulk.later(leave)

    def drop_sums(self) -> None:
        self._drops += 1
        self.bulk_queued -= self._sums_queued
        self._sums_queued = 0

    @property
    def bulk_waiting(self) -> int:
        return self.bulk_queued

    def pause_bulk(self) -> None:
        self._paused = True

    def resume_bulk(self) -> None:
        self._paused = False
        self._read_bulk()

    def discard_bulk(self) -> None:
        if self._target is not None:
            self._target = memoryview(bytearray(len(self._target)))
            self._discarded = True

    async def close(self, *, flush: bool) -> None:
        if not self.open:
            return
        if flush:
            await self.control.idle.wait()
            await self.bulk.idle.wait()
        self.down("closed here")
        self.control.later(self._other.goodbye)
        self.bulk.later(self._other.goodbye)

    # --- the receiving end --------------------------------------------------------------------

    @property
    def _other(self) -> MemoryLink:
        assert self.other is not None
        return self.other

    def control_arrived(self, frame: bytes) -> None:
        """A control frame has arrived."""
        if self.open and not self.silent:
            self._told(lambda: self.network.listener.control_received(self, frame))

    def bulk_begins(self, header: BulkHeader, payload: bytes) -> None:
        """The header of a bulk frame has arrived, and its payload is on the way."""
        if self.silent:
            return
        self._waiting.append((header, payload))
        if len(self._waiting) == 1:
            self._read_bulk()

    def altered_begins(self, header: BulkHeader, payload: bytes) -> None:
        """The same for a frame of a lying member: its header is checked as the transport does."""
        try:
            read = decode_header(header.encode())
        except RemoteProtocolError as error:
            self.cut(str(error), LinkEnd.PROTOCOL_ERROR)
        else:
            self.bulk_begins(read, payload)

    def _read_bulk(self) -> None:
        if self._paused or not self._waiting or self._target is not None or not self.open:
            return
        header, payload = self._waiting[0]
        target: list[memoryview | None] = []
        self._told(lambda: target.append(self.network.listener.bulk_arriving(self, header)))
        if not target:
            return
        self._target = target[0] if target[0] is not None else memoryview(bytearray(len(payload)))
        half = len(payload) // 2
        self._target[:half] = payload[:half]
        wanted = target[0] is not None
        loop = asyncio.get_running_loop()
        loop.call_later(self.network.world.delay() / 8, self._bulk_ends, half, wanted)

    def _bulk_ends(self, half: int, wanted: bool) -> None:
        header, payload = self._waiting.popleft()
        target, self._target = self._target, None
        wanted, self._discarded = wanted and not self._discarded, False
        if not self.open or target is None:
            return
        target[half:] = payload[half:]
        self.bulk_bytes_received += len(payload)
        if wanted:
            self._told(lambda: self.network.listener.bulk_received(self, header))
        self._read_bulk()
        self._end_if_all_is_read()

    def goodbye(self) -> None:
        """The peer has closed one of the two connections."""
        self._goodbyes += not self.silent
        self._end_if_all_is_read()

    def _end_if_all_is_read(self) -> None:
        if self._goodbyes >= 2 and not self._waiting:
            self.down("closed by the peer")

    def _told(self, tell: Callable[[], None]) -> None:
        try:
            tell()
        except RemoteProtocolError as error:
            raise AssertionError(f"the shell has left it to the transport: {error}") from error

    def cut(self, reason: str, why: LinkEnd) -> None:
        if self.open:
            self.control.later(partial(self._other.down, "reset by the peer", LinkEnd.RESET))
        self.down(reason, why)

    def down(self, reason: str, why: LinkEnd = LinkEnd.GOODBYE) -> None:
        """End the link at this end, and tell the listener why."""
        if self.open:
            self.open = False
            if self.network.links.get(self.peer.node) is self:
                del self.network.links[self.peer.node]
            self.network.listener.link_down(self, reason, why)


class Network:
    """The network as one shell sees it; implements `shell.Network`."""

    def __init__(self, world: Wires, me: PeerInfo) -> None:
        self.world = world
        self.me = me
        self.trusted: dict[bytes, None] = {}
        self.links: dict[bytes, MemoryLink] = {}
        self.refuses: dict[bytes, None] = {}
        self.gone = False
        self.tamper: Liar | None = None
        self._listener: LinkListener | None = None

    @property
    def listener(self) -> LinkListener:
        """The shell, which is told of everything that arrives."""
        assert self._listener is not None
        return self._listener

    @listener.setter
    def listener(self, listener: LinkListener) -> None:
        self._listener = listener

    def trust(self, certificate: bytes) -> bytes:
        node = hashlib.sha256(certificate).digest()
        self.trusted[node] = None
        return node

    def shorten(self, node: bytes, segment: int) -> None:
        pass

    def stretches(self) -> Stretches:
        return NO_STRETCHES

    def distrust(self, node: bytes) -> None:
        self.trusted.pop(node, None)
        if (link := self.links.get(node)) is not None:
            link.cut("not trusted any more", LinkEnd.CUT)

    def die(self) -> None:
        """End as a process that is killed: its system closes every connection."""
        self.gone = True
        for link in list(self.links.values()):
            link.open = False
            other = link.other
            assert other is not None
            link.control.later(partial(other.down, "its process ended", LinkEnd.PROCESS_ENDED))
        self.links.clear()

    async def dial(self, peer: PeerInfo) -> Link:
        await asyncio.sleep(self.world.delay())
        other = self.world.nodes.get(peer.node)
        shut = other is None or other.gone or self.gone
        if shut or other is None or self.me.node not in other.trusted:
            raise Unreachable(f"{peer.name} does not let {self.me.name} in")
        if self.me.node in other.refuses:
            raise Unreachable(f"no way from {self.me.name} to {peer.name}")
        if (link := self.links.get(peer.node)) is not None:
            return link
        mine, theirs = MemoryLink(self, other.me), MemoryLink(other, self.me)
        mine.other, theirs.other = theirs, mine
        self.links[peer.node], other.links[self.me.node] = mine, theirs
        other.listener.link_up(theirs)
        self.listener.link_up(mine)
        return mine


class Wires:
    """The networks of all shells, with the only random generator."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.nodes: dict[bytes, Network] = {}

    def delay(self) -> float:
        """Return how many seconds something is on its way."""
        return self.random.uniform(0.0001, MOST_DELAY_S)

    def connect(self, me: PeerInfo) -> Network:
        """Return a new network for `me`."""
        network = self.nodes[me.node] = Network(self, me)
        return network
