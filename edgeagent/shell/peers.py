"""The links to other agents: opened, watched, trusted and closed as the node wants.

In two cases this module ends a link without being asked by the node: nothing was heard on it for
too long (`protocols/network/heartbeats.py`), or nothing that is sent on it arrives
(`protocols/network/progress.py`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, assert_never

from edgeagent.dataplane.probe import Prober
from edgeagent.errors import EdgeAgentError
from edgeagent.network import peer_of
from edgeagent.transport.complaints import LimitedLog
from protocols import effects, events
from protocols.errors import RemoteProtocolError
from protocols.network.heartbeats import Heartbeats
from protocols.network.link_end import LinkEnd
from protocols.network.progress import Progress
from protocols.wire import codec

if TYPE_CHECKING:
    from edgeagent.network import Network
    from edgeagent.observer import Observer
    from edgeagent.search import Spawn
    from edgeagent.shell.hub import Hub
    from edgeagent.transport.api import Link
    from protocols.cluster.view import Member
    from protocols.wire.bulk import BulkHeader

DISTRUST_SECONDS = 30.0  # time for a node that left to receive what was sent to it before


class Peers:
    """The links of one agent. `links`: node id -> the link that is open to it."""

    def __init__(self, hub: Hub, network: Network, observer: Observer, spawn: Spawn) -> None:
        self.links: dict[bytes, Link] = {}
        self.heartbeats = Heartbeats()
        self._hub = hub
        self._network = network
        self._observer = observer
        self._spawn = spawn
        self._loop = asyncio.get_running_loop()
        self._progress = Progress()
        self._prober = Prober(self.heartbeats.delay)
        self._distrusted: dict[bytes, asyncio.TimerHandle] = {}
        self._dials: dict[asyncio.Task[None], None] = {}
        self.lines = LimitedLog(observer.say, self._loop.time)

    # --- what the transport says ------------------------------------------------------------------

    def up(self, link: Link) -> None:
        """Note that `link` is open; an older link with that peer must be forgotten before."""
        self.links[link.peer.node] = link
        self.heartbeats.linked(self._loop.time(), link.peer.node)

    def over(self, peer: bytes) -> bool:
        """Forget everything about the link with `peer`; return whether there was a link."""
        if self.links.pop(peer, None) is None:
            return False
        self._observer.delays.pop(peer, None)
        self.heartbeats.gone(peer)
        self._progress.gone(self._loop.time(), peer)
        self._shorten(peer)
        return True

    def distrust_now(self, peer: bytes) -> None:
        """Distrust `peer`, whose link has ended, if that was waiting for the end of the link."""
        if (timer := self._distrusted.pop(peer, None)) is not None:
            timer.cancel()
            self._network.distrust(peer)

    def heard(self, peer: bytes) -> None:
        """Note that something has arrived from `peer`."""
        self.heartbeats.heard(self._loop.time(), peer)

    # --- what the node wants ----------------------------------------------------------------------

    def perform(self, effect: effects.PeerEffect) -> None:
        """Perform `effect`; raise `RemoteProtocolError` if it names a certificate that is none."""
        match effect:
            case effects.Send(to, envelope):
                if (link := self.links.get(to)) is not None:
                    link.send_control(codec.encode(envelope))
            case effects.Trust(member):
                self._network.trust(member.certificate)
                self.keep_trust(member.node)
            case effects.Distrust(node):
                self._distrust_later(node)
            case effects.Dial(member):
                task = self._spawn(self.dial(member))
                self._dials[task] = None
                task.add_done_callback(lambda done: self._dials.pop(done, None))
            case effects.Probe(node):
                if (link := self.links.get(node)) is not None:
                    self._spawn(self._prober.probe(link))
            case effects.LinkFell(node, rate):
                if (link := self.links.get(node)) is not None:
                    link.fell(rate)
            case effects.CloseLink(node):
                if (link := self.links.get(node)) is not None:
                    link.discard_bulk()  # its payload must not be written to memory any more
                    self._spawn(link.close(flush=True))
            case _:
                assert_never(effect)

    def send_bulk(self, to: bytes, header: BulkHeader, payload: memoryview) -> None:
        """Queue a bulk frame; it is dropped if there is no link."""
        if (link := self.links.get(to)) is not None:
            link.send_bulk(header, payload)

    async def dial(self, member: Member) -> None:
        """Open a link, or tell the node that it cannot be opened."""
        try:
            self._network.trust(member.certificate)
            await self._network.dial(peer_of(member))
        except (EdgeAgentError, RemoteProtocolError) as error:
            self.lines.say("dial", f"no link to {member.name}: {error}")
            self._hub.handle(events.DialFailed(member.node))

    def give_up_dials(self) -> None:
        """Open none of the links that are being opened: they are for a node that is given up, and
        the next one would neither hear of such a link nor get another from the transport, or would
        take the failure for that of a link of its own."""
        for task in list(self._dials):
            task.cancel()

    def refuse(self, link: Link) -> None:
        """Close `link`, which has come up while there is no node."""
        self._spawn(link.close(flush=False))

    def accuse(self, peer: bytes, reason: str) -> None:
        """End the link to `peer`, which has broken the protocol, and tell the others."""
        if (link := self.links.get(peer)) is not None:
            self._hub.handle(events.Faulty(peer, reason))
            self.cut(link, reason, LinkEnd.PROTOCOL_ERROR)

    def cut(self, link: Link, reason: str, why: LinkEnd) -> None:
        """End a link at once and log one line about it."""
        self.lines.say("cut", f"closed the link to {link.peer.name}: {reason}")
        link.discard_bulk()
        link.cut(reason, why)

    def keep_trust(self, node: bytes) -> None:
        """Cancel the pending distrust of `node`, which was admitted again."""
        if (timer := self._distrusted.pop(node, None)) is not None:
            timer.cancel()

    def _distrust_later(self, node: bytes) -> None:
        """Distrust a node that left, but not before it has received what is on its way to it."""
        if node not in self.links:
            self._network.distrust(node)
        elif node not in self._distrusted:
            later = self._loop.call_later(DISTRUST_SECONDS, self._network.distrust, node)
            self._distrusted[node] = later

    # --- time -------------------------------------------------------------------------------------

    def beat(self, now: float) -> None:
        """End links on which nothing was heard for too long, or on which nothing sent arrives."""
        for peer in self.heartbeats.beat(now):
            if (link := self.links.get(peer)) is not None:
                self._observer.say(f"nothing heard from {link.peer.name}: closing the link")
                self.heartbeats.gone(peer)
                self._progress.ends(now, peer, link.sending)
                self._shorten(peer)
                self._hub.handle(events.Silent(peer))
        sending = {n: states for n, link in self.links.items() if (states := link.sending)}
        delays = {n: self.heartbeats.delay(n) for n in sending}
        for peer in self._progress.beat(now, sending, delays):
            self._shorten(peer)
            if (link := self.links.get(peer)) is not None:  # cutting another one may have ended it
                self.cut(link, "what is sent does not arrive", LinkEnd.STALLED)

    def _shorten(self, peer: bytes) -> None:
        """Have new connections with `peer` use segments as short as its path needs."""
        segment = self._progress.segment(peer)
        if segment is not None:
            self._network.shorten(peer, segment)

    async def close(self, *, flush: bool) -> None:
        """Close all links; with `flush`, after sending what is queued."""
        await asyncio.gather(*(link.close(flush=flush) for link in list(self.links.values())))

    def stop_timers(self) -> None:
        """Cancel all pending distrust, because the agent ends."""
        for timer in self._distrusted.values():
            timer.cancel()
