"""Serves the page of an agent, from the first time that it is asked for.

Browsers of this device use a port of the loopback interface. Browsers elsewhere are served only
once this device's user has asked for that (`edgeagent page --remote`), by TLS and at one address
(`remote.py`). What is served, and to whom, is in `site.py`.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING

from edgeagent.errors import EdgeAgentError
from edgeagent.local.api import PageAddress
from edgeagent.page.entrance import LOOPBACK, Entrance
from edgeagent.page.history import History
from edgeagent.page.site import Site
from edgeagent.page.snapshot import snapshot
from edgeagent.plain_json import json_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp import web

    from edgeagent.local.answers import Handler
    from edgeagent.observer import Observer
    from edgeagent.page.remote import RemotePage

HOST = "127.0.0.1"
MAX_CONNECTIONS = 64  # of all browsers of this device; one page uses a few
BACKLOG = 16  # connections that wait to be accepted


def nowhere() -> str:
    """Return no address, for an agent that has none which others reach."""
    return ""


def _time_with_sleep() -> float:
    """Return a time in seconds that goes on while the device sleeps, where the system has one: what
    lets a browser in is to end although a laptop was closed meanwhile."""
    if hasattr(time, "CLOCK_BOOTTIME"):  # Linux; macOS and others have none
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class PageServer:
    """The page of one agent. All methods are called on the agent's loop."""

    def __init__(
        self,
        handler: Handler,
        observer: Observer,
        folder: str,
        where: Callable[[], str] = nowhere,
    ) -> None:
        """`handler` answers as on the command socket; `observer` tells what happens. The
        certificate for browsers elsewhere is kept in `folder`; `where` returns the host at which
        others reach this device, "" if they do not."""
        clock = asyncio.get_running_loop().time
        self._handler = handler
        self._say = observer.say
        self._folder = folder
        self._where = where
        self._history = History(clock, time.time)
        self._entrance = Entrance(_time_with_sleep)
        self._site: Site | None = None  # for browsers of this device
        self._server: asyncio.Server | None = None
        self._pages: web.Server | None = None
        self._port = 0
        self._remote: RemotePage | None = None
        self._opening = asyncio.Lock()
        observer.subscribe(self._history)
        self._history.on_line = self._hurry

    async def open(self, *, remote: bool = False) -> PageAddress:
        """Return where a browser can open the page once, and soon: of this device, or with `remote`
        of another one.

        Listens, if nobody has asked before. Raises `EdgeAgentError` if that fails.
        """
        async with self._opening:
            if remote:
                page = await self._abroad()
                return PageAddress(f"{page.url}/#{self._entrance.new_code()}", page.fingerprint)
            if self._server is None:
                await self._start()
        return PageAddress(f"http://{HOST}:{self._port}/#{self._entrance.new_code()}")

    async def close(self) -> None:
        """Tell open pages that the agent has ended, and stop listening. Idempotent."""
        server, self._server = self._server, None
        remote, self._remote = self._remote, None
        if remote is not None:
            await remote.close()
        if server is not None:
            server.close()
        if self._site is not None:
            await self._site.close()

    def _look(self) -> str:
        return json_text(snapshot(self._handler.status(), self._history, time.time()))

    def _hurry(self) -> None:
        if self._site is not None:
            self._site.hurry()
        if self._remote is not None:
            self._remote.hurry()

    # --- listening --------------------------------------------------------------------------------

    async def _start(self) -> None:
        site = Site(LOOPBACK, self._handler, self._entrance, self._look, self._say)
        self._pages = await site.start()
        try:
            listener = socket.create_server((HOST, 0), backlog=BACKLOG)
        except OSError as error:
            await site.close()
            raise EdgeAgentError(f"cannot serve the page: {error.strerror or error}") from None
        self._site = site
        self._port = listener.getsockname()[1]
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connected, sock=listener, backlog=BACKLOG)

    def _connected(self) -> asyncio.Protocol:
        if self._pages is None or len(self._pages.connections) >= MAX_CONNECTIONS:
            return _Refused()
        return self._pages()

    async def _abroad(self) -> RemotePage:
        """Return the page for browsers elsewhere, served where others reach this device now."""
        from edgeagent.page.remote import RemotePage

        try:
            host = self._where()
        except OSError as error:
            raise EdgeAgentError(f"cannot serve the page: {error.strerror or error}") from None
        if not host:
            raise EdgeAgentError(
                "this device has no address that others reach: is it connected to a network?"
            )
        if self._remote is not None and self._remote.host != host:
            remote, self._remote = self._remote, None
            await remote.close()
        if self._remote is None:
            page = RemotePage(host, self._folder)
            make = (self._handler, self._entrance, self._look, self._say)
            await page.start(lambda place, let_in: Site(place, *make, let_in))
            self._remote = page
        return self._remote


class _Refused(asyncio.Protocol):
    """A connection beyond `MAX_CONNECTIONS`: it is closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close it."""
        transport.close()
