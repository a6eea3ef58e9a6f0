"""The local command interface of a running agent: HTTP on a Unix socket that only its user opens.

    GET  /status  -> 200, JSON (local.status_model.Status)
    POST /leave   -> 202, {"leaving": true}; the agent then leaves in its own time

Law: file mode 0600 before the first connection can succeed; requests have no body worth reading and
are bounded; no answer carries a secret. The client half is synchronous and imports no aiohttp, so
that `edgeagent status` starts fast.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import stat
from typing import TYPE_CHECKING, Any, Protocol, cast

from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.plain_json import json_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiohttp import web

    from edgeagent.local.state_dir import RunningAgent
    from edgeagent.local.status_model import Status

MAX_PATH_BYTES = 103  # shortest limit of a Unix socket's path among the systems we run on
MAX_REQUEST_BYTES = 4096
MAX_ANSWER_BYTES = 8 << 20
BACKLOG = 16
CLIENT_TIMEOUT_S = 5.0
KEEPALIVE_S = 1.0


class Handler(Protocol):
    """The agent as the local interface sees it."""

    def status(self) -> Status:
        """What the agent knows now; called on the agent's loop."""

    async def leave(self) -> None:
        """Start to leave gracefully; returns once that is under way. Idempotent."""


class NoAgent(EdgeAgentError):
    """Nobody listens on a socket (any more)."""


class LocalApi:
    """The server: one per agent, on the agent's loop."""

    def __init__(self, path: str, handler: Handler) -> None:
        self.path = path
        self._handler = handler
        self._runner: web.AppRunner | None = None
        self._inode: tuple[int, int] | None = None

    async def start(self) -> None:
        """Listen. Replace a socket that a dead agent left; raise `EdgeAgentError` otherwise."""
        from aiohttp import web

        listener = _listen(self.path)
        app = web.Application(client_max_size=MAX_REQUEST_BYTES)
        app.router.add_get("/status", self._status)
        app.router.add_post("/leave", self._leave)
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, keepalive_timeout=KEEPALIVE_S
        )
        await self._runner.setup()
        await web.SockSite(self._runner, listener, backlog=BACKLOG).start()
        self._inode = _inode(self.path)

    async def close(self) -> None:
        """Stop listening and remove the socket, unless somebody else's is there now. Idempotent."""
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

    async def _leave(self, request: web.Request) -> web.Response:
        from aiohttp import web

        await self._handler.leave()
        return web.json_response({"leaving": True}, status=202)


def fetch_status(path: str) -> Status:
    """Ask the agent at `path` for its status; raise `NoAgent` if none answers there."""
    return cast("Status", _request(path, "GET", "/status"))


def ask_to_leave(path: str) -> None:
    """Ask the agent at `path` to leave gracefully; raise `NoAgent` if none answers there."""
    _request(path, "POST", "/leave")


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
        raise NoAgent(f"no agent called {name!r} runs on this device; running: {names}")
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


def _request(path: str, method: str, url: str) -> Any:
    connection = _UnixConnection(path)
    try:
        connection.request(method, url, headers={"Connection": "close"})
        response = connection.getresponse()
        body = response.read(MAX_ANSWER_BYTES + 1)
    except TimeoutError:
        raise EdgeAgentError(f"the agent at {path} does not answer") from None
    except PermissionError:
        raise EdgeAgentError(f"the agent at {path} belongs to another user") from None
    except (OSError, http.client.HTTPException):
        raise NoAgent(f"no agent answers at {path}") from None
    finally:
        connection.close()
    if response.status >= 300 or len(body) > MAX_ANSWER_BYTES:
        raise EdgeAgentError(f"the agent at {path} answered {response.status} {response.reason}")
    try:
        return json.loads(body)
    except ValueError:
        raise EdgeAgentError(f"what listens at {path} is no edgeagent agent") from None


def _listen(path: str) -> socket.socket:
    """Return a bound socket of mode 0600 at `path`; it accepts nothing before it listens."""
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
            pass  # full backlog: somebody is there
    raise EdgeAgentError(f"another agent listens at {path}")


def _inode(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
