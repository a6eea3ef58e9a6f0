"""The dialling end of links, and choosing among a peer's addresses.

An address counts only if the certificate behind it is the one asked for. Addresses are tried side
by side, each starting a little later than the one before, so that an address that does not answer
costs little. `dial` returns the link even if it comes from the other end's opening.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from edgeagent.config import split_address
from edgeagent.errors import EdgeAgentError
from edgeagent.transport import bounds, link_wire
from edgeagent.transport.connecting import connect
from edgeagent.transport.errors import LinkRefused, Unreachable
from edgeagent.transport.framing import Connection, Registry
from edgeagent.transport.link_wire import Channel, LinkHello, Refuse
from edgeagent.transport.links import Connections
from protocols import limits
from protocols.errors import RemoteProtocolError
from protocols.wire.packing import decode_tagged, encode_tagged

if TYPE_CHECKING:
    from edgeagent.transport.api import PeerInfo
    from edgeagent.transport.links import TcpLink
    from edgeagent.transport.openings import Links, Opening
    from edgeagent.transport.tls import Trust

_LOWAT_OPTION = {"linux": 25, "darwin": 0x201}.get(sys.platform)  # TCP_NOTSENT_LOWAT
_KEEPALIVE_OPTIONS = [
    getattr(socket, name) for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL") if hasattr(socket, name)
]


class Dialler:
    """Opens links from this end."""

    def __init__(self, trust: Trust, links: Links, registry: Registry) -> None:
        self.interface = ""  # through which connections go; "" = as the system chooses
        self._trust = trust
        self._registry = registry
        self._links = links
        self._dialling: dict[bytes, asyncio.Task[TcpLink]] = {}
        self._waiting: Counter[asyncio.Task[TcpLink]] = Counter()  # by whom each is waited for
        self.segments: dict[bytes, int] = {}  # nodes whose path needs short segments -> bytes

    async def dial(self, peer: PeerInfo) -> TcpLink:
        """Return the link with `peer`, opening one if there is none, within LINK_OPEN_SECONDS.

        Raises `Unreachable` or `LinkRefused`. Cancelled, it opens none, unless somebody else waits
        for that link, too.
        """
        link = self._links.get(peer.node)
        if link is not None:
            return link
        task = self._dialling.get(peer.node)
        if task is None or task.cancelling():
            task = asyncio.create_task(self._open(peer))
            self._dialling[peer.node] = task
            task.add_done_callback(lambda done: self._done(peer.node, done))
        self._waiting[task] += 1
        try:
            async with asyncio.timeout(limits.LINK_OPEN_SECONDS):
                return await self._opened(peer, task)
        except TimeoutError:
            task.cancel()
            raise Unreachable(
                f"no link with {peer.name} within {limits.LINK_OPEN_SECONDS:.0f} s"
            ) from None
        except asyncio.CancelledError:
            if self._waiting[task] == 1:
                task.cancel()
            raise
        finally:
            self._waiting[task] -= 1
            if not self._waiting[task]:
                del self._waiting[task]

    async def _opened(self, peer: PeerInfo, task: asyncio.Task[TcpLink]) -> TcpLink:
        """Wait for the link, whichever end's opening it comes from; `task` is this end's."""
        while True:
            waiter = self._links.waiter(peer.node)
            futures: list[asyncio.Future[Any]] = [waiter] if task.done() else [waiter, task]
            try:
                await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
                link = waiter.result() if waiter.done() else self._links.get(peer.node)
            finally:
                waiter.cancel()
            if link is not None:
                return link
            if task.done() and not self._links.is_opening(peer.node):
                if task.cancelled():
                    raise Unreachable(f"no link with {peer.name}: given up")
                return task.result()

    async def stop(self) -> None:
        """Give up what is being opened."""
        tasks = list(self._dialling.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, node: bytes, task: asyncio.Task[TcpLink]) -> None:
        if self._dialling.get(node) is task:
            del self._dialling[node]
        if not task.cancelled():
            task.exception()  # marks it as seen, because nobody may wait for it any more

    async def _open(self, peer: PeerInfo) -> TcpLink:
        opening = self._links.begin(peer.node)
        settled = False
        try:
            async with asyncio.timeout(limits.LINK_OPEN_SECONDS):
                link = await self._open_all(opening, peer)
            settled = True
            return link
        except RemoteProtocolError as error:
            raise Unreachable(f"{peer.name} broke the link protocol: {error}") from None
        except TimeoutError:
            raise Unreachable(
                f"{peer.name} opened no link within {limits.LINK_OPEN_SECONDS:.0f} s"
            ) from None
        except OSError:
            raise Unreachable(f"{peer.name} hung up: it may not trust this node yet") from None
        finally:
            self._links.over(opening)
            if not settled:
                for connection in opening.connections:
                    connection.abort()

    async def _open_all(self, opening: Opening, peer: PeerInfo) -> TcpLink:
        address, control = await self._first_reached(peer)
        opening.connections.append(control)
        nonce = os.urandom(bounds.LINK_NONCE_BYTES)
        control.send(encode_tagged(self._links.hello(Channel.CONTROL, nonce)))
        hello = self._expect(await control.frame(), Channel.CONTROL, nonce, peer)
        # Side by side, because each takes three round trips.
        both = [
            asyncio.create_task(self._open_other(opening, address, peer, channel, nonce))
            for channel in (Channel.BULK, Channel.LIFE)
        ]
        try:
            bulk, life = await asyncio.gather(*both)
        finally:
            for task in both:
                task.cancel()
        return await self._links.settle(opening, hello, Connections(control, bulk, life))

    async def _open_other(
        self, opening: Opening, address: str, peer: PeerInfo, channel: Channel, nonce: bytes
    ) -> Connection:
        """Open a connection that belongs to the control connection with this nonce."""
        connection = await self._connect(address, peer, channel)
        opening.connections.append(connection)
        connection.send(encode_tagged(self._links.hello(channel, nonce)))
        self._expect(await connection.frame(), channel, nonce, peer)
        return connection

    def _expect(self, body: bytes, channel: Channel, nonce: bytes, peer: PeerInfo) -> LinkHello:
        hello: LinkHello | Refuse = decode_tagged(body, LinkHello, Refuse)
        if isinstance(hello, Refuse):
            text = link_wire.REFUSAL_TEXTS[hello.reason]
            raise LinkRefused(f"{peer.name} refused a link: {text}")
        if (hello.channel, hello.nonce, hello.node) != (channel, nonce, peer.node):
            raise RemoteProtocolError("answered another hello than ours")
        refusal = self._links.objection(hello)
        if refusal is not None:
            raise LinkRefused(f"no link with {peer.name}: {link_wire.REFUSAL_TEXTS[refusal]}")
        return hello

    async def _first_reached(self, peer: PeerInfo) -> tuple[str, Connection]:
        """Return the first address at which `peer` answers, and a control connection to it."""
        tasks: list[asyncio.Task[tuple[str, Connection]]] = []
        for address in peer.addresses:
            turn = self._reach_in_turn(tuple(tasks), address, peer)
            tasks.append(asyncio.create_task(turn))
        problems = []
        kept: Connection | None = None
        try:
            for next_done in asyncio.as_completed(tasks):
                try:
                    address, kept = await next_done
                except (OSError, EdgeAgentError) as error:
                    problems.append(str(error))
                    continue
                return address, kept
        finally:
            for task in tasks:
                task.cancel()
                self._discard_unless(task, kept)
        raise Unreachable(f"{peer.name} cannot be reached: {'; '.join(problems) or 'no address'}")

    def _discard_unless(
        self, task: asyncio.Task[tuple[str, Connection]], kept: Connection | None
    ) -> None:
        def done(ended: asyncio.Task[tuple[str, Connection]]) -> None:
            if not ended.cancelled() and ended.exception() is None:
                connection = ended.result()[1]
                if connection is not kept:
                    connection.abort()

        task.add_done_callback(done)

    async def _reach_in_turn(
        self, before: tuple[asyncio.Task[tuple[str, Connection]], ...], address: str, peer: PeerInfo
    ) -> tuple[str, Connection]:
        """Dial `address` once the attempt before it has failed, or has taken its time."""
        if before:
            patience = len(before) * bounds.DIAL_STAGGER_SECONDS
            await asyncio.wait(before[-1:], timeout=patience)
        return address, await self._connect(address, peer, Channel.CONTROL)

    async def _connect(self, address: str, peer: PeerInfo, channel: Channel) -> Connection:
        """Connect and do mutual TLS; raise `Unreachable` unless `peer` is at `address`."""
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        connection = Connection(self._registry)
        try:
            sock = await connect(
                host, port, segment=self.segments.get(peer.node), interface=self.interface
            )
            transport, _connection = await loop.create_connection(
                lambda: connection,
                sock=sock,
                ssl=self._trust.client,
                server_hostname="",
                ssl_handshake_timeout=limits.HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=bounds.TLS_CLOSE_SECONDS,
            )
        except ssl.SSLError:
            raise Unreachable(f"{address} is not {peer.name}") from None
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise Unreachable(f"{address}: {reason}") from None
        except asyncio.CancelledError:
            connection.abort()
            raise
        if self._trust.trusted_node(transport) != peer.node:
            connection.abort()
            raise Unreachable(f"{address} is not {peer.name}")
        tune_socket(transport, channel)
        return connection


def tune_socket(transport: asyncio.BaseTransport, channel: Channel) -> None:
    """Set the socket options that `channel` needs; options that a system lacks are left alone."""
    sock = transport.get_extra_info("socket")
    if sock is None:
        return
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if channel is Channel.BULK and _LOWAT_OPTION is not None:
            sock.setsockopt(socket.IPPROTO_TCP, _LOWAT_OPTION, bounds.NOTSENT_LOWAT_BYTES)
        if channel is Channel.LIFE:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option in _KEEPALIVE_OPTIONS:
                sock.setsockopt(socket.IPPROTO_TCP, option, bounds.KEEPALIVE_SECONDS)
    except OSError:
        return
