"""The page as it is served at one place: its files, its requests, and who may send these.

    GET  /, /page.css, /*.js, /icon.svg   the files of the page, which hold nothing secret
    POST /session    {"code": "..."}  -> 200, {"bearer": "..."}, once for each code; else 403
    GET  /live       WebSocket: the page says {"bearer": "..."}, then snapshots come (snapshot.py)
    GET  /trace      as on the command socket (local/api.py), and likewise
    POST /leave, /link, /expel; GET /changes/N

All but the files need the bearer (`Authorization: Bearer ...`). Requests are refused whose `Host`
is not that of the place, and requests that change something or open a WebSocket also if their
`Origin` is not this page. Pages, codes and the size of requests are bounded. The page's own scripts
and styles are the only ones that the browser runs, and no request leaves for another machine
(`Content-Security-Policy`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from edgeagent.local.answers import add_changes, send_trace
from edgeagent.page.entrance import NotLetIn
from edgeagent.page.live import Live

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiohttp import web

    from edgeagent.local.answers import Handler
    from edgeagent.page.entrance import Entrance, Place

    Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]

MAX_REQUEST_BYTES = 4096
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
    "connect-src 'self' {sockets}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


class Site:
    """The page at one place. All methods are called on the agent's loop."""

    def __init__(
        self,
        place: Place,
        handler: Handler,
        entrance: Entrance,
        look: Callable[[], str],
        say: Callable[[str], None],
        let_in: Callable[[web.Request], None] = lambda _request: None,
    ) -> None:
        """`handler` answers as on the command socket; `look` returns a snapshot as text; `say`
        tells the user of an error; `let_in` is called with each request that has shown a code or a
        bearer."""
        self._place = place
        self._handler = handler
        self._entrance = entrance
        self._let_in = let_in
        self._live = Live(look, entrance.knows, say, let_in)
        self._runner: web.AppRunner | None = None

    async def start(self) -> web.Server:
        """Return what makes a protocol for each connection."""
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
        add_changes(app, self._handler)
        runner = self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            keepalive_timeout=KEEPALIVE_S,
            shutdown_timeout=STOP_S,
        )
        await runner.setup()
        assert runner.server is not None
        return runner.server

    async def close(self) -> None:
        """Tell open pages that the agent has ended, and end all requests. Idempotent."""
        await self._live.close()
        if self._runner is not None:
            await self._runner.cleanup()

    def hurry(self) -> None:
        """Send open pages a snapshot soon, since something has happened."""
        self._live.hurry()

    # --- who may ask ------------------------------------------------------------------------------

    async def _guarded(self, request: web.Request, answer: Answer) -> web.StreamResponse:
        """Answer a request if it comes from the page of this agent."""
        from aiohttp import web

        host, place = request.headers.get("Host", ""), self._place
        if not place.is_own_name(host):
            return _refused(403, place.other_name)
        acts = request.method != "GET" or request.path == "/live"
        if acts and not place.is_own_origin(request.headers.get("Origin", ""), host):
            return _refused(403, "this request does not come from the agent's own page")
        kind, _, bearer = request.headers.get("Authorization", "").partition(" ")
        open_to_all = (*FILES, "/session", "/live")  # /live asks for the bearer itself
        known = kind == "Bearer" and self._entrance.knows(bearer)
        if request.path not in open_to_all and not known:
            return _refused(401, "this page is not let in: run `edgeagent page` again")
        if known:
            self._let_in(request)
        try:
            response = await answer(request)
        except web.HTTPException as error:  # no such path, a body that is too long, ...
            response = _refused(error.status, error.reason)
        if not response.prepared:
            response.headers.update(self._headers(host))
        return response

    def _headers(self, host: str) -> dict[str, str]:
        """Return the headers of every answer; `host` was checked."""
        sockets = f"{self._place.socket_scheme}://{host}"
        return {**_HEADERS, "Content-Security-Policy": _POLICY.format(sockets=sockets)}

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
            bearer = self._entrance.enter(code)
        except NotLetIn as error:
            return _refused(403, str(error))
        self._let_in(request)
        return web.json_response({"bearer": bearer})

    async def _trace(self, request: web.Request) -> web.StreamResponse:
        headers = self._headers(request.headers.get("Host", ""))
        return await send_trace(request, self._handler.trace, headers)


def _refused(status: int, why: str) -> web.Response:
    from aiohttp import web

    return web.json_response({"error": why}, status=status)
