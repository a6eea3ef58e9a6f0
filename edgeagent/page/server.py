"""Serves the page on a port of the loopback interface, from the first time that it is asked for.

    GET  /, /page.css, /*.js, /icon.svg   the files of the page, which hold nothing secret
    POST /session    {"code": "..."}  -> 200, {"bearer": "..."}, once for each code; else 403
    GET  /live       WebSocket: the page says {"bearer": "..."}, then snapshots come (snapshot.py)
    GET  /trace      as on the command socket (local/api.py), and likewise
    POST /leave, /link, /expel; GET /changes/N

All but the files need the bearer (`Authorization: Bearer ...`). Requests are refused whose `Host`
is no name of this device, and requests that change something or open a WebSocket also if their
`Origin` is not this page. Connections, pages, codes and the size of requests are bounded. The
page's own scripts and styles are the only ones that the browser runs, and no request leaves this
device (`Content-Security-Policy`).
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import TYPE_CHECKING

from edgeagent.errors import EdgeAgentError
from edgeagent.local.answers import begun, far, send_trace
from edgeagent.local.changes import parse_link, parse_node
from edgeagent.page.entrance import Entrance, NotLetIn, is_own_name, is_own_origin
from edgeagent.page.history import History
from edgeagent.page.live import Live
from edgeagent.page.snapshot import snapshot
from edgeagent.plain_json import json_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiohttp import web

    from edgeagent.local.api import Handler
    from edgeagent.observer import Observer

    Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]

HOST = "127.0.0.1"
MAX_CONNECTIONS = 64  # of all browsers; one page uses a few
MAX_REQUEST_BYTES = 4096
BACKLOG = 16  # connections that wait to be accepted
KEEPALIVE_S = 5.0  # after which an idle connection is closed
STOP_S = 0.5  # for requests that are being answered when the agent ends
FILES = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    **{
        f"/{name}.js": (f"{name}.js", "text/javascript")
        for name in ("page", "session", "elements", "words", "picture", "charts", "panels", "acts")
    },
}
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
# `trusted-types` lets the browser itself refuse to read text as HTML (innerHTML and the like).
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self' ws://{host}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


class PageServer:
    """The page of one agent. All methods are called on the agent's loop."""

    def __init__(self, handler: Handler, observer: Observer) -> None:
        """`handler` answers as on the command socket; `observer` tells what happens."""
        clock = asyncio.get_running_loop().time
        self._handler = handler
        self._history = History(clock, time.time)
        self._entrance = Entrance(clock)
        self._live = Live(self._look, self._entrance.knows, observer.say)
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._port = 0
        self._opening = asyncio.Lock()
        observer.subscribe(self._history)

    async def open(self) -> str:
        """Return an address at which a browser can open the page once, and soon.

        Listens, if nobody has asked before. Raises `EdgeAgentError` if that fails.
        """
        async with self._opening:
            if self._server is None:
                await self._start()
        return f"http://{HOST}:{self._port}/#{self._entrance.new_code()}"

    async def close(self) -> None:
        """Tell open pages that the agent has ended, and stop listening. Idempotent."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        await self._live.close()
        if self._runner is not None:
            await self._runner.cleanup()

    # --- listening --------------------------------------------------------------------------------

    async def _start(self) -> None:
        from aiohttp import web

        app = web.Application(
            client_max_size=MAX_REQUEST_BYTES,
            middlewares=[web.middleware(lambda request, handler: self._guarded(request, handler))],
        )
        for path in FILES:
            app.router.add_get(path, self._file)
        app.router.add_post("/session", self._session)
        app.router.add_get("/live", self._live.serve)
        app.router.add_get("/trace", self._trace)
        app.router.add_post("/leave", self._leave)
        app.router.add_post("/link", self._link)
        app.router.add_post("/expel", self._expel)
        app.router.add_get(r"/changes/{number:[0-9]{1,9}}", self._change)
        runner = self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            keepalive_timeout=KEEPALIVE_S,
            shutdown_timeout=STOP_S,
        )
        await runner.setup()
        try:
            listener = socket.create_server((HOST, 0), backlog=BACKLOG)
        except OSError as error:
            await runner.cleanup()
            raise EdgeAgentError(f"cannot serve the page: {error.strerror or error}") from None
        self._port = listener.getsockname()[1]
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connected, sock=listener, backlog=BACKLOG)
        self._history.on_line = self._live.hurry

    def _connected(self) -> asyncio.Protocol:
        server = self._runner.server if self._runner is not None else None
        if server is None or len(server.connections) >= MAX_CONNECTIONS:
            return _Refused()
        return server()

    # --- who may ask ------------------------------------------------------------------------------

    async def _guarded(self, request: web.Request, answer: Answer) -> web.StreamResponse:
        """Answer a request if it comes from the page of this agent."""
        from aiohttp import web

        host = request.headers.get("Host", "")
        if not is_own_name(host):
            return _refused(403, "this page is served to this device only, under its own address")
        acts = request.method != "GET" or request.path == "/live"
        if acts and not is_own_origin(request.headers.get("Origin", ""), host):
            return _refused(403, "this request does not come from the agent's own page")
        kind, _, bearer = request.headers.get("Authorization", "").partition(" ")
        open_to_all = (*FILES, "/session", "/live")  # /live asks for the bearer itself
        known = kind == "Bearer" and self._entrance.knows(bearer)
        if request.path not in open_to_all and not known:
            return _refused(401, "this page is not let in: run `edgeagent page` again")
        try:
            response = await answer(request)
        except web.HTTPException as error:  # no such path, a body that is too long, ...
            response = _refused(error.status, error.reason)
        if not response.prepared:
            response.headers.update(_headers(host))
        return response

    # --- answers ----------------------------------------------------------------------------------

    async def _file(self, request: web.Request) -> web.Response:
        from importlib import resources

        from aiohttp import web

        name, kind = FILES[request.path]
        text = (resources.files(__package__) / "static" / name).read_text(encoding="utf-8")
        return web.Response(text=text, content_type=kind, charset="utf-8")

    async def _session(self, request: web.Request) -> web.Response:
        from aiohttp import web

        try:
            said = json.loads(await request.read())
        except (ValueError, RecursionError):
            said = None
        code = said.get("code") if isinstance(said, dict) else None
        if not isinstance(code, str):
            return _refused(400, "the request's body must be an object with code")
        try:
            return web.json_response({"bearer": self._entrance.enter(code)})
        except NotLetIn as error:
            return _refused(403, str(error))

    def _look(self) -> str:
        return json_text(snapshot(self._handler.status(), self._history, time.time()))

    async def _trace(self, request: web.Request) -> web.StreamResponse:
        headers = _headers(request.headers.get("Host", ""))
        return await send_trace(request, self._handler.trace, headers)

    async def _leave(self, request: web.Request) -> web.Response:
        from aiohttp import web

        await self._handler.leave()
        return web.json_response({"leaving": True}, status=202)

    async def _link(self, request: web.Request) -> web.Response:
        body = await request.read()
        return begun(lambda: self._handler.change_link(*parse_link(body)))

    async def _expel(self, request: web.Request) -> web.Response:
        body = await request.read()
        return begun(lambda: self._handler.expel(parse_node(body)))

    async def _change(self, request: web.Request) -> web.Response:
        return far(self._handler.change(int(request.match_info["number"])))


class _Refused(asyncio.Protocol):
    """A connection beyond `MAX_CONNECTIONS`: it is closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close it."""
        transport.close()


def _refused(status: int, why: str) -> web.Response:
    from aiohttp import web

    return web.json_response({"error": why}, status=status)


def _headers(host: str) -> dict[str, str]:
    """Return the headers of every answer; `host` was checked."""
    return {**_HEADERS, "Content-Security-Policy": _POLICY.format(host=host)}
