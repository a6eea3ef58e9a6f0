"""Serves `/metrics` to Prometheus, on loopback unless the user names another address.

What is told has no secret, but it has names, so a page in a browser must not reach it under a name
of its own (DNS rebinding): on loopback only requests for a loopback host are answered. Whoever
reaches the port cannot take this device's sockets or its time: there are few connections at a time,
of which the oldest makes room for a new one, and the text is made once a second at most.
"""

from __future__ import annotations

import ipaddress
import re
import time
from typing import TYPE_CHECKING

from edgeagent.config import join_address, split_address
from edgeagent.errors import UsageError
from edgeagent.metrics import CONTENT_TYPE, Metrics

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from aiohttp import web

    from edgeagent.event_file import EventWriter
    from edgeagent.local.status_model import Status

LOOPBACK = "127.0.0.1"
_WITH_PORT = re.compile(r"([^:]+|\[[^]]+\]):[0-9]{1,5}")
CLOSE_S = 1.0  # for requests that are still being answered when the agent ends
MAX_CONNECTIONS = 16
KEEPALIVE_S = 75.0  # for the next request on a connection; Prometheus asks every 15 to 60 s
FRESH_S = 1.0  # for which an answer is given again


def metrics_address(text: str, option: str = "--metrics") -> tuple[str, int]:
    """Return (host, port) of `--metrics [HOST:]PORT`; without HOST it is loopback.

    Raises `UsageError`, which names the `option` or variable, if it is neither.
    """
    if text.isascii() and text.isdecimal():
        text = f"{LOOPBACK}:{text}"
    elif not _WITH_PORT.fullmatch(text):
        raise UsageError(f"{option} {text}: write PORT (on loopback) or HOST:PORT")
    try:
        return split_address(text)
    except UsageError as error:
        raise UsageError(f"{option} {text}: {error}") from None


def is_loopback(host: str) -> bool:
    """Return whether `host`, an address or a name, stands for this device alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class MetricsServer:
    """One agent's `/metrics`. `status` is called on the agent's loop for every request."""

    def __init__(self, address: str, events: EventWriter, status: Callable[[], Status]) -> None:
        self._host, self._port = metrics_address(address)
        self._status = status
        self._metrics = Metrics()
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._text, self._text_until = "", 0.0
        events.listeners.append(lambda _, event, values: self._metrics.note(event, values))

    async def start(self) -> str:
        """Listen; return the URL. Raises `UsageError` if the port cannot be had."""
        import asyncio

        from aiohttp import web

        app = web.Application(client_max_size=0)
        app.router.add_get("/metrics", self._answer)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=CLOSE_S,
            keepalive_timeout=KEEPALIVE_S,
        )
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(self._connected, self._host, self._port)
        except OSError as error:
            await self.close()
            where = join_address(self._host, self._port)
            raise UsageError(f"--metrics {where}: {error.strerror or error}") from None
        port = self._listener.sockets[0].getsockname()[1]
        return f"http://{join_address(self._host, port)}/metrics"

    async def close(self) -> None:
        """Stop listening. Idempotent."""
        runner, self._runner = self._runner, None
        if self._listener is not None:
            self._listener.close()
        if runner is not None:
            await runner.cleanup()

    def _connected(self) -> asyncio.Protocol:
        server = self._runner.server if self._runner is not None else None
        if server is None:
            raise ConnectionAbortedError("the agent ends")
        if len(server.connections) >= MAX_CONNECTIONS:
            server.connections[0].force_close()
        return server()

    async def _answer(self, request: web.Request) -> web.Response:
        from aiohttp import web

        if is_loopback(self._host) and not is_loopback(request.url.host or ""):
            raise web.HTTPForbidden(text="ask for a loopback address\n")
        now = time.monotonic()
        if now >= self._text_until:
            self._text, self._text_until = self._metrics.text(self._status()), now + FRESH_S
        return web.Response(
            body=self._text.encode(errors="replace"), headers={"Content-Type": CONTENT_TYPE}
        )
