"""Which links are up, which are being opened, and how several openings become one link.

Of two nodes the one with the smaller id commits an opening (see `link_wire`). Committing ends every
other opening and any older link with that peer. At each end at most one link with a peer is up.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeagent.transport import bounds, link_wire
from edgeagent.transport.api import PeerInfo
from edgeagent.transport.errors import LinkRefused
from edgeagent.transport.link_wire import (
    Channel,
    Commit,
    LinkHello,
    Ready,
    Refusal,
    Refuse,
)
from edgeagent.transport.links import Connections, TcpLink
from edgeagent.transport.traffic import Traffic
from protocols import limits
from protocols.network.link_end import LinkEnd
from protocols.wire.packing import decode_tagged, encode_tagged

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeagent.transport.api import LinkListener
    from edgeagent.transport.framing import Connection
    from edgeagent.transport.tls import Trust


@dataclass(slots=True, eq=False)
class Opening:
    """One attempt at a link: its connections so far and the task that drives it."""

    node: bytes
    task: asyncio.Task[object]
    connections: list[Connection]

    def end(self) -> None:
        """Give up this attempt."""
        for connection in self.connections:
            connection.abort()
        self.task.cancel()


class Links:
    """All links of one agent, up or being opened."""

    def __init__(
        self,
        me: Callable[[], PeerInfo],
        trust: Trust,
        listener: LinkListener,
        log: Callable[[str], None],
    ) -> None:
        self._me = me
        self._node = me().node
        self._trust = trust
        self._listener = listener
        self._log = log
        self.traffic = Traffic()
        self._up: dict[bytes, TcpLink] = {}
        self._openings: dict[bytes, list[Opening]] = {}
        self._ready: dict[bytes, asyncio.Lock] = {}
        self._waiters: dict[bytes, list[asyncio.Future[TcpLink | None]]] = {}

    @property
    def up(self) -> tuple[TcpLink, ...]:
        """The links that are up."""
        return tuple(self._up.values())

    def get(self, node: bytes) -> TcpLink | None:
        """Return the link with `node`, None if there is none or it is ending."""
        link = self._up.get(node)
        return link if link is not None and link.is_usable else None

    def is_opening(self, node: bytes) -> bool:
        """Return whether a link with `node` is being opened, by either end."""
        return bool(self._openings.get(node))

    def waiter(self, node: bytes) -> asyncio.Future[TcpLink | None]:
        """Return a future of the next link with `node`; its result is None if all openings fail.

        Cancel it when it is no longer needed.
        """
        future: asyncio.Future[TcpLink | None] = asyncio.get_running_loop().create_future()
        waiters = self._waiters.setdefault(node, [])
        waiters.append(future)
        future.add_done_callback(lambda done: self._forget_waiter(node, done))
        return future

    def begin(self, node: bytes) -> Opening:
        """Register the running task as an opening with `node`; if there are too many, end the
        oldest."""
        task = asyncio.current_task()
        assert task is not None
        openings = self._openings.setdefault(node, [])
        while len(openings) >= bounds.MAX_OPENINGS_PER_PEER:
            openings.pop(0).end()
        opening = Opening(node, task, [])
        openings.append(opening)
        return opening

    def over(self, opening: Opening) -> None:
        """Forget an opening, however it has ended."""
        self._forget(opening)
        if opening.node not in self._openings and opening.node not in self._up:
            self._wake(opening.node, None)

    def _forget(self, opening: Opening) -> None:
        openings = self._openings.get(opening.node, [])
        if opening in openings:
            openings.remove(opening)
        if not openings:
            self._openings.pop(opening.node, None)

    def hello(self, channel: Channel, nonce: bytes) -> LinkHello:
        """Return the hello of this node."""
        me = self._me()
        return LinkHello(
            channel, link_wire.VERSION, nonce, me.node, me.incarnation, me.name, me.addresses
        )

    def objection(self, hello: LinkHello) -> Refusal | None:
        """Return why no link may be opened with the sender of `hello`, None if one may."""
        if hello.version != link_wire.VERSION:
            return Refusal.VERSION
        if hello.node == self._node:
            return Refusal.SELF
        link = self._up.get(hello.node)
        if link is not None and link.peer.incarnation > hello.incarnation:
            return Refusal.OLDER
        if link is None and len(self._up) >= limits.MAX_LINKS_PER_NODE:
            return Refusal.FULL
        return None

    async def settle(self, opening: Opening, hello: LinkHello, connections: Connections) -> TcpLink:
        """Agree with the other end that this opening becomes the link, and report it as up.

        Raises `LinkRefused`, `RemoteProtocolError` or `ConnectionError`.
        """
        node, control = opening.node, connections.control
        if self._node < node:
            self._expect(Ready, await control.frame(), hello)
            refusal = self._objection_now(hello)
            if refusal is not None:
                control.send(encode_tagged(Refuse(refusal)))
                self._check(refusal, hello)
            control.send(encode_tagged(Commit()))
            return self._commit(opening, hello, connections)
        async with self._ready.setdefault(node, asyncio.Lock()):
            control.send(encode_tagged(Ready()))
            self._expect(Commit, await control.frame(), hello)
            self._check(self._objection_now(hello), hello)
            return self._commit(opening, hello, connections)

    def drop(self, node: bytes, reason: str) -> None:
        """End every link and opening with `node`."""
        for opening in list(self._openings.get(node, [])):
            opening.end()
        link = self._up.get(node)
        if link is not None:
            link.finish(reason, LinkEnd.CUT)

    async def close_all(self, seconds: float) -> None:
        """End all openings and close all links, cleanly where the peer takes part within
        `seconds`."""
        for openings in list(self._openings.values()):
            for opening in list(openings):
                opening.end()
        closing = [asyncio.create_task(link.close(flush=True)) for link in self.up]
        if closing:
            await asyncio.wait(closing, timeout=seconds)
        for link in self.up:
            link.finish("closed by us", LinkEnd.CUT)
        await asyncio.gather(*closing)

    def _objection_now(self, hello: LinkHello) -> Refusal | None:
        if self._trust.certificate(hello.node) is None:
            raise LinkRefused(f"{hello.name} is not trusted any more")
        return self.objection(hello)

    def _expect(self, kind: type[Ready | Commit], body: bytes, hello: LinkHello) -> None:
        """Raise unless `body` is a message of this kind."""
        said: Ready | Commit | Refuse = decode_tagged(body, kind, Refuse)
        self._check(said.reason if isinstance(said, Refuse) else None, hello)

    def _check(self, refusal: Refusal | None, hello: LinkHello) -> None:
        if refusal is not None:
            raise LinkRefused(f"no link with {hello.name}: {link_wire.REFUSAL_TEXTS[refusal]}")

    def _commit(self, opening: Opening, hello: LinkHello, connections: Connections) -> TcpLink:
        node = opening.node
        self._forget(opening)
        for other in list(self._openings.get(node, [])):
            other.end()
        certificate = self._trust.certificate(node)
        if certificate is None:
            raise LinkRefused(f"{hello.name} is not trusted any more")
        old = self._up.get(node)
        if old is not None:
            if old.peer.incarnation < hello.incarnation:
                old.finish("the peer started anew", LinkEnd.STARTED_ANEW)
            else:
                old.finish("the peer has lost it and opened another", LinkEnd.REPLACED)
            # A node that left is distrusted when its link ends. This one has come back, so trust
            # it again in case `finish` has just ended that link.
            self._trust.add(certificate)
        peer = PeerInfo(node, hello.incarnation, hello.name, hello.addresses, certificate)
        who = (peer, connections, self._listener, self._link_gone, self._log)
        link = TcpLink(*who, self.traffic)
        self._up[node] = link
        self.traffic.add(node, link.flow)
        self._wake(node, link)
        link.start()
        return link

    def _wake(self, node: bytes, link: TcpLink | None) -> None:
        for waiter in list(self._waiters.get(node, [])):
            if not waiter.done():
                waiter.set_result(link)

    def _link_gone(self, link: TcpLink) -> None:
        if self._up.get(link.peer.node) is link:
            del self._up[link.peer.node]
        self.traffic.remove(link.peer.node, link.flow)

    def _forget_waiter(self, node: bytes, future: asyncio.Future[TcpLink | None]) -> None:
        waiters = self._waiters.get(node, [])
        if future in waiters:
            waiters.remove(future)
        if not waiters:
            self._waiters.pop(node, None)
