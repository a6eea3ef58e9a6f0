"""The accepting end of links: mutual TLS, then three hellos that belong together.

A connection counts as unproven until mutual TLS has shown a certificate that is trusted at present.
An opening that has not become a link within `LINK_OPEN_SECONDS` is given up and its connections
are closed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from edgeagent.transport import bounds, link_wire
from edgeagent.transport.dialler import tune_socket
from edgeagent.transport.doorkeeper import Doorkeeper, Gate, Visitor
from edgeagent.transport.errors import LinkRefused
from edgeagent.transport.framing import Connection, Registry
from edgeagent.transport.link_wire import Channel, LinkHello, Refuse
from edgeagent.transport.links import Connections
from protocols import limits
from protocols.errors import RemoteProtocolError
from protocols.wire.packing import decode_tagged, encode_tagged

if TYPE_CHECKING:
    import socket

    from edgeagent.transport.complaints import Complaints
    from edgeagent.transport.openings import Links, Opening
    from edgeagent.transport.tls import Trust


class PeerListener:
    """Accepts the connections of links for one agent."""

    def __init__(
        self,
        sockets: tuple[socket.socket, ...],
        trust: Trust,
        links: Links,
        doorkeeper: Doorkeeper,
        complaints: Complaints,
        registry: Registry,
    ) -> None:
        self._registry = registry
        self._trust = trust
        self._links = links
        self._complaints = complaints
        # Node, nonce and channel of a connection that an opening waits for.
        self._awaited: dict[tuple[bytes, bytes, Channel], asyncio.Future[Connection]] = {}
        self._silent: dict[bytes, list[Connection]] = {}  # that have said nothing yet, by node
        self._gate = Gate(sockets, self._serve, doorkeeper, complaints)

    def start(self) -> None:
        """Begin to accept."""
        self._gate.start()

    async def stop(self) -> None:
        """Close the listening sockets and all connections that do not belong to a link yet."""
        await self._gate.stop()

    async def _serve(self, visitor: Visitor) -> None:
        connection = Connection(self._registry)
        transport = await visitor.secure(connection, self._trust.server)
        kept = False
        try:
            node = self._trust.trusted_node(transport)
            if node is None:
                self._complain(visitor, "untrusted", "its certificate was trusted and is no more")
                return
            visitor.proven()
            async with asyncio.timeout(limits.LINK_OPEN_SECONDS):
                kept = await self._open(node, connection)
        except RemoteProtocolError as error:
            self._complain(visitor, "protocol", f"broke the link protocol: {error}")
        except LinkRefused as error:
            self._complain(visitor, "refused", str(error))
        except TimeoutError:
            self._complain(
                visitor, "slow", f"opened no link within {limits.LINK_OPEN_SECONDS:.0f} s"
            )
        except (OSError, EOFError):
            pass  # the dialling end has given this opening up, which is not a fault
        finally:
            if not kept:
                connection.close()

    async def _first_frame(self, node: bytes, connection: Connection) -> bytes:
        """Return what the other end says first. A device that says nothing keeps its newest
        connections only, so that it cannot use up this device's sockets."""
        silent = self._silent.setdefault(node, [])
        if len(silent) >= bounds.MAX_SILENT_PER_PEER:
            silent.pop(0).abort()
        silent.append(connection)
        try:
            return await connection.frame()
        finally:
            if connection in silent:
                silent.remove(connection)
            if not silent:
                self._silent.pop(node, None)

    async def _open(self, node: bytes, connection: Connection) -> bool:
        """Take the first frame; return whether the connection lives on as part of a link."""
        hello = decode_tagged(await self._first_frame(node, connection), LinkHello)
        tune_socket(connection.transport, hello.channel)
        if hello.node != node:
            raise RemoteProtocolError("first frame is not this node's hello")
        if hello.channel is not Channel.CONTROL:
            future = self._awaited.pop((node, hello.nonce, hello.channel), None)
            if future is None or future.done():
                return False  # that opening was given up, perhaps in favour of another one
            future.set_result(connection)
            return True
        refusal = self._links.objection(hello)
        if refusal is not None:
            connection.send(encode_tagged(Refuse(refusal)))
            raise LinkRefused(f"{hello.name}: {link_wire.REFUSAL_TEXTS[refusal]}")
        opening = self._links.begin(node)
        opening.connections.append(connection)
        try:
            return await self._open_control(opening, hello, connection)
        finally:
            self._links.over(opening)

    async def _open_control(self, opening: Opening, hello: LinkHello, control: Connection) -> bool:
        keys = [(opening.node, hello.nonce, channel) for channel in (Channel.BULK, Channel.LIFE)]
        if any(key in self._awaited for key in keys):
            raise RemoteProtocolError("the same link nonce twice")
        loop = asyncio.get_running_loop()
        others: list[asyncio.Future[Connection]] = [loop.create_future() for _ in keys]
        self._awaited |= zip(keys, others, strict=True)
        settled = False
        try:
            control.send(encode_tagged(self._links.hello(Channel.CONTROL, hello.nonce)))
            early = control.expect()  # is also done when the dialling end gives up
            for (_, nonce, channel), future in zip(keys, others, strict=True):
                either: list[asyncio.Future[Any]] = [future, early]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if not future.done():
                    early.result()
                    raise RemoteProtocolError("spoke before its other connections were there")
                opening.connections.append(future.result())
                future.result().send(encode_tagged(self._links.hello(channel, nonce)))
            bulk, life = (future.result() for future in others)
            await self._links.settle(opening, hello, Connections(control, bulk, life))
            settled = True
            return True
        finally:
            for key, future in zip(keys, others, strict=True):
                self._awaited.pop(key, None)
                if not settled and future.done() and not future.cancelled():
                    future.result().abort()

    def _complain(self, visitor: Visitor, kind: str, reason: str) -> None:
        self._complaints.refused(visitor.host, f"link {kind}", reason)
