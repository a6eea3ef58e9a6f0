"""Serves the page to browsers of other devices, by TLS and at one address.

Nobody vouches for the certificate, so a browser warns of it. Its fingerprint is what the user
compares: whoever passes for this device in the network has another one, and would get the code with
which the page is opened.

Strangers can connect, too. They are bounded as at the listeners of the agent itself: a connection
that has shown neither a code nor a bearer is dropped if too many others come.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from typing import TYPE_CHECKING

from aiohttp import web

from edgeagent.config import join_address
from edgeagent.errors import EdgeAgentError
from edgeagent.page.certificate import page_certificate
from edgeagent.page.entrance import Place
from edgeagent.page.site import KEEPALIVE_S
from edgeagent.transport.complaints import Complaints
from edgeagent.transport.doorkeeper import Doorkeeper, Gate, Visitor

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeagent.page.site import Site

    MakeSite = Callable[[Place, Callable[[web.Request], None]], Site]

# The port is the same each time if it is free, so that a firewall can be opened for it, and a
# browser that was told to go on once need not be told again.
PORT = 7440
MAX_UNKNOWN = 32  # connections that have shown nothing; a browser opens up to six for the files
BACKLOG = 16  # connections that wait to be accepted


_NO_LOG = logging.Logger("page", logging.CRITICAL)  # requests are not logged


class _Visit(web.RequestHandler):
    """One connection. `ended` is done when it ends; `visitor` counts it until it is let in."""

    __slots__ = ("ended", "visitor")

    def __init__(self, pages: web.Server, visitor: Visitor) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(pages, loop=loop, access_log=_NO_LOG, keepalive_timeout=KEEPALIVE_S)
        self.ended = loop.create_future()
        self.visitor = visitor

    def connection_lost(self, exc: BaseException | None) -> None:
        """Say that the connection has ended."""
        super().connection_lost(exc)
        if not self.ended.done():
            self.ended.set_result(None)


class RemotePage:
    """The page at one address. All methods are called on the agent's loop."""

    def __init__(self, host: str, folder: str) -> None:
        """`host`: the address of this device. The certificate is kept in `folder`."""
        self.host = host
        self.fingerprint = ""
        self.url = ""
        self._folder = folder
        # A browser ends the connection when it first sees the certificate, so that is no news.
        self._complaints = Complaints(lambda _line: None)
        self._site: Site | None = None
        self._pages: web.Server | None = None
        self._context: ssl.SSLContext | None = None
        self._gate: Gate | None = None

    async def start(self, make_site: MakeSite) -> None:
        """Listen, and serve what `make_site(place, let_in)` returns. Raises `EdgeAgentError`."""
        certificate = page_certificate(self._folder, self.host)
        listener = _listen(self.host)
        where = join_address(self.host, listener.getsockname()[1])
        self.fingerprint = certificate.fingerprint
        self.url = f"https://{where}"
        context = self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(certificate.path)
        self._site = make_site(Place("https", where), _let_in)
        self._pages = await self._site.start()
        self._gate = Gate((listener,), self._serve, Doorkeeper(MAX_UNKNOWN), self._complaints)
        self._gate.start()

    async def close(self) -> None:
        """Tell open pages that the agent has ended, and stop listening."""
        if self._site is not None:
            await self._site.close()
        if self._gate is not None:
            await self._gate.stop()
        self._complaints.close()

    def hurry(self) -> None:
        """Send open pages a snapshot soon."""
        if self._site is not None:
            self._site.hurry()

    async def _serve(self, visitor: Visitor) -> None:
        assert self._pages is not None
        assert self._context is not None
        visit = _Visit(self._pages, visitor)
        await visitor.secure(visit, self._context)
        await visit.ended


def _let_in(request: web.Request) -> None:
    visit = request.protocol
    assert isinstance(visit, _Visit)
    visit.visitor.proven()


def _listen(host: str) -> socket.socket:
    """Return a listening socket at `PORT` of `host`, or at any port if that is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in (PORT, 0):
        try:
            listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except OSError as error:
            trouble = error
        else:
            listener.setblocking(False)
            return listener
    raise EdgeAgentError(f"cannot serve the page at {host}: {trouble.strerror or trouble}")
