"""Accepts connections from anybody without letting anybody exhaust this device.

At most `MAX_UNPROVEN_CONNECTIONS` connections exist whose other end has not proven anything, over
all listeners that share a `Doorkeeper`. If one more comes, the oldest is dropped, so that peers
that only wait cannot keep out those that prove themselves. Every accepted socket and every task
ends before `stop` returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import ssl
from typing import TYPE_CHECKING

from edgeagent.transport import bounds
from protocols import limits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from edgeagent.transport.complaints import Complaints

_GREETING = "no TLS greeting of an agent"
_LATE = f"no whole TLS greeting within {limits.HANDSHAKE_SECONDS:.0f} s"
_CROWDED = "too many at once; an agent asks again"
_MANY = 16  # late or surplus connections worth a line; fewer are normal where devices are busy
_UNTRUSTED = "its certificate is not one this cluster has let in"


class Visitor:
    """An accepted connection, unproven until `proven` is called."""

    def __init__(self, doorkeeper: Doorkeeper, number: int, sock: socket.socket, host: str) -> None:
        self.host = host
        self.is_surplus = False  # it was dropped because too many others came
        self._doorkeeper = doorkeeper
        self._number = number
        self._sock = sock

    def proven(self) -> None:
        """Count this connection no longer, because its other end has proven that it belongs
        here."""
        self._doorkeeper.forget(self._number)

    def drop(self) -> None:
        """Shut the connection down, so that whoever reads from it sees its end."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    async def secure(
        self, protocol: asyncio.BaseProtocol, context: ssl.SSLContext
    ) -> asyncio.Transport:
        """Do the server's side of TLS within `HANDSHAKE_SECONDS` and pass the connection to
        `protocol`; raise `OSError` if the handshake fails."""
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol,
            self._sock,
            ssl=context,
            ssl_handshake_timeout=limits.HANDSHAKE_SECONDS,
            ssl_shutdown_timeout=bounds.TLS_CLOSE_SECONDS,
        )
        return transport


class Doorkeeper:
    """Counts the unproven connections of all listeners, oldest first."""

    def __init__(self, limit: int = limits.MAX_UNPROVEN_CONNECTIONS) -> None:
        self._limit = limit
        self._numbers = itertools.count()
        self._unproven: dict[int, Visitor] = {}

    def enter(self, sock: socket.socket, host: str) -> Visitor:
        """Count a new connection, dropping the oldest unproven one if there are too many."""
        while len(self._unproven) >= self._limit:
            oldest = self._unproven.pop(next(iter(self._unproven)))
            oldest.is_surplus = True
            oldest.drop()
        number = next(self._numbers)
        visitor = Visitor(self, number, sock, host)
        self._unproven[number] = visitor
        return visitor

    def forget(self, number: int) -> None:
        """Count this connection no longer."""
        self._unproven.pop(number, None)


class Gate:
    """Accepts on listening sockets and runs `serve` for each connection.

    `serve` is called with a `Visitor` and ends when the connection does. It may let the `OSError`
    of a failed TLS handshake pass, which is then counted in `complaints`.
    """

    def __init__(
        self,
        sockets: tuple[socket.socket, ...],
        serve: Callable[[Visitor], Awaitable[None]],
        doorkeeper: Doorkeeper,
        complaints: Complaints,
    ) -> None:
        self._sockets = sockets
        self._serve = serve
        self._doorkeeper = doorkeeper
        self._complaints = complaints
        self._accepting: list[asyncio.Task[None]] = []
        self._serving: dict[asyncio.Task[None], Visitor] = {}

    def start(self) -> None:
        """Begin to accept; the sockets are listening already."""
        self._accepting = [asyncio.create_task(self._accept(sock)) for sock in self._sockets]

    async def stop(self) -> None:
        """Close the listening sockets and end every connection that is still served."""
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for sock in self._sockets:
            sock.close()
        serving = dict(self._serving)
        if not serving:
            return
        for visitor in serving.values():
            visitor.drop()
        _ended, pending = await asyncio.wait(serving, timeout=bounds.CLOSE_SECONDS)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(listening)
            except OSError as error:
                host = f"port {listening.getsockname()[1]}"
                self._complaints.refused(host, "accept", f"cannot accept ({error.strerror})")
                await asyncio.sleep(bounds.ACCEPT_RETRY_SECONDS)
                continue
            sock.setblocking(False)
            visitor = self._doorkeeper.enter(sock, str(address[0]))
            task = asyncio.create_task(self._serve_one(visitor))
            self._serving[task] = visitor
            task.add_done_callback(lambda done: self._serving.pop(done, None))

    async def _serve_one(self, visitor: Visitor) -> None:
        try:
            await self._serve(visitor)
        except (OSError, EOFError) as error:
            kind, reason, least = _why(error, visitor)
            self._complaints.refused(visitor.host, kind, reason, least)
        except BaseException:
            visitor.drop()  # cancelled, or an internal error, which the task reports
            raise
        finally:
            visitor.proven()


def _why(error: Exception, visitor: Visitor) -> tuple[str, str, int]:
    """Return (the kind of trouble, a reason for people, how many of them are worth a line)."""
    if visitor.is_surplus:
        return "crowded", _CROWDED, _MANY
    refused = getattr(error, "reason", None) == "PEER_DID_NOT_RETURN_A_CERTIFICATE"
    if refused or isinstance(error, ssl.SSLCertVerificationError):
        return "untrusted", _UNTRUSTED, 1
    if isinstance(error, ssl.SSLError):
        return "greeting", _GREETING, 1
    return "late", _LATE, _MANY
