"""The local command interface of a running agent: HTTP on a Unix socket that only its user opens.

    GET  /status      -> 200, JSON (local.status_model.Status)
    GET  /trace       -> 200, a line of JSON for each entry (trace.py), in pieces
    POST /leave       -> 202, {"leaving": true}; the agent then leaves in its own time
    POST /link        {"node": "bob", "wanted": true}  -> 202, JSON (local.changes.ChangeStatus)
    POST /expel       {"node": "bob"}                  -> 202, the same
    POST /token       no body                          -> 202, the same
    POST /page        no body, or {"remote": true}  -> 200, {"url": "...", "fingerprint": "..."}:
                      where the page can be opened, once, and the SHA-256 of the certificate that
                      browsers elsewhere see
    GET  /changes/N   -> 200, the same, of change N; a final state is given once
    GET  /token       -> 200, JSON (local.changes.TokenShown)

Errors are answered with {"error": "..."}: 400 for a wrong request, 404 for a member or change that
does not exist, 409 for what is not possible at present.

The socket has file mode 0600 before the first connection can succeed, requests are bounded, and no
answer contains a secret, except a token for the user who asked for it. The client half is
synchronous and imports no aiohttp, so that `edgeagent status` starts fast.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast

from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.local.answers import add_changes, begun, send_trace
from edgeagent.local.changes import NoSuchMember, parse_remote
from edgeagent.plain_json import json_text
from edgeagent.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aiohttp import web

    from edgeagent.local.answers import Handler
    from edgeagent.local.changes import ChangeStatus, TokenShown
    from edgeagent.local.state_dir import RunningAgent
    from edgeagent.local.status_model import Status

MAX_PATH_BYTES = 103  # shortest limit of a Unix socket's path on the supported systems
MAX_REQUEST_BYTES = 4096
MAX_ANSWER_BYTES = 8 << 20
MAX_TRACE_BYTES = 256 << 20  # the flight recorder keeps far less
PIECE_BYTES = 64 << 10  # of a trace, read at once by the client
BACKLOG = 16  # connections that wait to be accepted
CLIENT_TIMEOUT_S = 5.0  # for an answer; the agent answers from memory
KEEPALIVE_S = 1.0  # after which an idle connection is closed
STOP_S = 0.5  # for requests that are being answered when the agent ends
_REFUSALS = {400: UsageError, 404: NoSuchMember, 409: EdgeAgentError}


@dataclass(frozen=True, slots=True)
class PageAddress:
    """Where the page can be opened, once and soon. `fingerprint`: the SHA-256 of the certificate
    that a browser elsewhere sees, "" for browsers of this device."""

    url: str
    fingerprint: str = ""


class OpenPage(Protocol):
    """Returns where a new page can be opened."""

    async def __call__(self, *, remote: bool) -> PageAddress: ...


class NoAgent(EdgeAgentError):
    """No agent listens on this socket, or none any more."""


class LocalApi:
    """The server, one for each agent, on the agent's loop."""

    def __init__(
        self,
        path: str,
        handler: Handler,
        open_page: OpenPage | None = None,
    ) -> None:
        """`open_page(remote=...)` returns where a new page can be opened, by a browser of this
        device or of another one, or raises `EdgeAgentError`."""
        self.path = path
        self._handler = handler
        self._open_page = open_page
        self._runner: web.AppRunner | None = None
        self._inode: tuple[int, int] | None = None

    async def start(self) -> None:
        """Listen, replacing a socket that a dead agent left; raise `EdgeAgentError` if that
        fails."""
        from aiohttp import web

        listener = _listen(self.path)
        app = web.Application(client_max_size=MAX_REQUEST_BYTES)
        app.router.add_get("/status", self._status)
        app.router.add_get("/trace", self._trace)
        add_changes(app, self._handler)
        app.router.add_post("/token", self._token)
        app.router.add_get("/token", self._show_token)
        app.router.add_post("/page", self._page)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            keepalive_timeout=KEEPALIVE_S,
            shutdown_timeout=STOP_S,
        )
        await self._runner.setup()
        await web.SockSite(self._runner, listener, backlog=BACKLOG).start()
        self._inode = _inode(self.path)

    async def close(self) -> None:
        """Stop listening and remove the socket, unless another agent's is there now. Idempotent."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        if _inode(self.path) == self._inode:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
        await runner.cleanup()

    async def _status(self, request: web.Request) -> web.Response:
        from aiohttp import web

        return web.json_response(self._handler.status(), dumps=json_text)

    async def _trace(self, request: web.Request) -> web.StreamResponse:
        return await send_trace(request, self._handler.trace)

    async def _token(self, request: web.Request) -> web.Response:
        return begun(self._handler.rotate_token)

    async def _show_token(self, request: web.Request) -> web.Response:
        from aiohttp import web

        try:
            return web.json_response(self._handler.show_token())
        except EdgeAgentError as error:
            return web.json_response({"error": str(error)}, status=409)

    async def _page(self, request: web.Request) -> web.Response:
        from aiohttp import web

        if self._open_page is None:
            return web.json_response({"error": "this agent has no page"}, status=409)
        try:
            found = await self._open_page(remote=parse_remote(await request.read()))
            return web.json_response({"url": found.url, "fingerprint": found.fingerprint})
        except UsageError as error:
            return web.json_response({"error": str(error)}, status=400)
        except EdgeAgentError as error:
            return web.json_response({"error": str(error)}, status=409)


def fetch_status(path: str) -> Status:
    """Ask the agent at `path` for its status; raise `NoAgent` if none answers there."""
    return cast("Status", _request(path, "GET", "/status"))


def fetch_trace(path: str) -> Iterator[str]:
    """Ask the agent at `path` for a trace and return its text, in pieces.

    Raises `NoAgent` if none answers there or if it ends meanwhile, `EdgeAgentError` with its reason
    if it has nothing to tell.
    """
    connection = _UnixConnection(path)
    size = 0
    with _trouble_told(path), contextlib.closing(connection):
        connection.request("GET", "/trace", headers={"Connection": "close"})
        response = connection.getresponse()
        if response.status != 200:
            _refused(path, response, response.read(MAX_ANSWER_BYTES))
        while piece := response.read1(PIECE_BYTES):
            size += len(piece)
            if size > MAX_TRACE_BYTES:
                raise EdgeAgentError(f"the trace of the agent at {path} is too long")
            yield piece.decode("ascii", "replace")


def ask_to_leave(path: str) -> None:
    """Ask the agent at `path` to leave gracefully; raise `NoAgent` if none answers there."""
    _request(path, "POST", "/leave")


def ask_for_link(path: str, node: str, wanted: bool) -> ChangeStatus:
    """Ask the agent at `path` to add or remove its link to `node`, a name or an id's beginning.

    Raises `NoAgent` if none answers there, `EdgeAgentError` with its reason if it refuses.
    """
    return cast("ChangeStatus", _request(path, "POST", "/link", {"node": node, "wanted": wanted}))


def ask_to_expel(path: str, node: str) -> ChangeStatus:
    """Ask the agent at `path` to expel `node` and change the token; raises as `ask_for_link`."""
    return cast("ChangeStatus", _request(path, "POST", "/expel", {"node": node}))


def ask_for_new_token(path: str) -> ChangeStatus:
    """Ask the agent at `path` to change the cluster's token; raises as `ask_for_link`."""
    return cast("ChangeStatus", _request(path, "POST", "/token"))


def fetch_token(path: str) -> TokenShown:
    """Ask the agent at `path` for its cluster's token; raises as `ask_for_link`."""
    return cast("TokenShown", _request(path, "GET", "/token"))


def ask_for_page(path: str, *, remote: bool = False) -> PageAddress:
    """Ask the agent at `path` for its page, for a browser of this device or a `remote` one; return
    where that can be opened, once.

    Raises `NoAgent` if none answers there, `EdgeAgentError` with its reason if it has no page.
    """
    said = _request(path, "POST", "/page", {"remote": True} if remote else None)
    return PageAddress(str(said["url"]), str(said["fingerprint"]))


def fetch_change(path: str, number: int) -> ChangeStatus:
    """Ask the agent at `path` how far a change is; raises as `ask_for_link`."""
    return cast("ChangeStatus", _request(path, "GET", f"/changes/{number}"))


def choose_agent(agents: Sequence[RunningAgent], name: str | None) -> RunningAgent:
    """Return the one running agent, or the one called `name` (or `cluster/name`).

    Raise `NoAgent` if there is none, `UsageError` if there are several and `name` does not tell.
    """
    if not agents:
        raise NoAgent("no agent runs on this device; start one with `edgeagent run JOB`")
    matching = [a for a in agents if name in (None, a.name, f"{a.cluster}/{a.name}")]
    if len(matching) == 1:
        return matching[0]
    if not matching:
        names = ", ".join(agent.name for agent in agents)
        meant = did_you_mean(name or "", [agent.name for agent in agents])
        raise NoAgent(f"no agent called {name!r} runs on this device; running: {names}{meant}")
    same = len({agent.name for agent in matching}) < len(matching)
    names = ", ".join(f"{a.cluster}/{a.name}" if same else a.name for a in matching)
    raise UsageError(f"several agents run on this device, say which with --name: {names}")


class _UnixConnection(http.client.HTTPConnection):
    """An HTTP connection over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=CLIENT_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        """Open the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _request(path: str, method: str, url: str, values: dict[str, Any] | None = None) -> Any:
    connection = _UnixConnection(path)
    body = None if values is None else json.dumps(values)
    with _trouble_told(path), contextlib.closing(connection):
        connection.request(method, url, body, headers={"Connection": "close"})
        response = connection.getresponse()
        answer = response.read(MAX_ANSWER_BYTES + 1)
    if response.status >= 300 or len(answer) > MAX_ANSWER_BYTES:
        _refused(path, response, answer)
    try:
        return json.loads(answer)
    except ValueError:
        raise EdgeAgentError(f"what listens at {path} is no edgeagent agent") from None


@contextlib.contextmanager
def _trouble_told(path: str) -> Iterator[None]:
    """Turn errors of a connection into ones that a user can read."""
    try:
        yield
    except TimeoutError:
        raise EdgeAgentError(f"the agent at {path} does not answer") from None
    except PermissionError:
        raise EdgeAgentError(f"the agent at {path} belongs to another user") from None
    except (OSError, http.client.HTTPException):
        raise NoAgent(f"no agent answers at {path}") from None


def _refused(path: str, response: http.client.HTTPResponse, answer: bytes) -> NoReturn:
    """Raise the error for an answer that is not the expected one."""
    if response.status in _REFUSALS and (reason := _reason_in(answer)):
        raise _REFUSALS[response.status](reason)
    raise EdgeAgentError(f"the agent at {path} answered {response.status} {response.reason}")


def _reason_in(answer: bytes) -> str:
    """Return the reason in a refusal, "" if it has none."""
    try:
        return str(json.loads(answer)["error"])
    except (ValueError, KeyError, TypeError):
        return ""


def _listen(path: str) -> socket.socket:
    """Return a bound socket of mode 0600 at `path`, which accepts nothing before it listens."""
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise UsageError(
            f"{path} is too long for a Unix socket: set EDGEAGENT_HOME to a shorter folder"
        )
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        listener.bind(path)
        os.chmod(path, 0o600)
    except OSError as error:
        listener.close()
        raise EdgeAgentError(f"cannot listen at {path}: {error.strerror or error}") from None
    except EdgeAgentError:
        listener.close()
        raise
    return listener


def _remove_stale(path: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise EdgeAgentError(f"{path} is in the way: it is no socket; remove it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return
        except OSError:
            pass  # the backlog is full, so somebody listens
    raise EdgeAgentError(f"another agent listens at {path}")


def _inode(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
