"""Answers of an agent to its user's requests, as HTTP: on the command socket and for the page.

A change that is not possible is answered with {"error": "..."} and 400 for a wrong request, 404 for
a member that does not exist, 409 for what is not possible at present.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.local.changes import NoSuchMember, parse_link, parse_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from aiohttp import web

    from edgeagent.local.changes import ChangeStatus, TokenShown
    from edgeagent.local.status_model import Status

TRACE_LINES = 16  # lines of a trace that are made before the agent does other work


class Handler(Protocol):
    """What an agent offers to those that answer its user: the command socket and the page."""

    def status(self) -> Status:
        """Return the agent's status; called on the agent's loop."""

    def trace(self) -> Iterator[str]:
        """Return the lines of a trace up to now; raise `EdgeAgentError` if nothing is recorded."""

    async def leave(self) -> None:
        """Start to leave gracefully and return once that is under way. Idempotent."""

    def change_link(self, asked: str, wanted: bool) -> ChangeStatus:
        """Begin to add or remove the link to a member; raise `EdgeAgentError` if that is not
        possible."""

    def expel(self, asked: str) -> ChangeStatus:
        """Begin to expel a member; raise `EdgeAgentError` if that is not possible."""

    def rotate_token(self) -> ChangeStatus:
        """Begin to change the token; raise `EdgeAgentError` if that is not possible."""

    def show_token(self) -> TokenShown:
        """Return the present token; raise `EdgeAgentError` if there is none."""

    def change(self, number: int) -> ChangeStatus | None:
        """Return how far a change is, None if there is no such change."""


def begun(begin: Callable[[], ChangeStatus]) -> web.Response:
    """Begin a change; return 202 with how far it is, or why it is not possible."""
    from aiohttp import web

    try:
        return web.json_response(begin(), status=202)
    except EdgeAgentError as error:
        status = 409
        if isinstance(error, UsageError):
            status = 400
        elif isinstance(error, NoSuchMember):
            status = 404
        return web.json_response({"error": str(error)}, status=status)


def far(change: ChangeStatus | None) -> web.Response:
    """Return how far a change is, 404 if there is no such change."""
    from aiohttp import web

    if change is None:
        return web.json_response({"error": "the agent knows of no such change"}, status=404)
    return web.json_response(change)


def add_changes(app: web.Application, handler: Handler) -> None:
    """Have `app` answer POST /leave, /link, /expel and GET /changes/N."""
    from aiohttp import web

    async def leave(_request: web.Request) -> web.Response:
        await handler.leave()
        return web.json_response({"leaving": True}, status=202)

    async def link(request: web.Request) -> web.Response:
        body = await request.read()
        return begun(lambda: handler.change_link(*parse_link(body)))

    async def expel(request: web.Request) -> web.Response:
        body = await request.read()
        return begun(lambda: handler.expel(parse_node(body)))

    async def change(request: web.Request) -> web.Response:
        return far(handler.change(int(request.match_info["number"])))

    app.router.add_post("/leave", leave)
    app.router.add_post("/link", link)
    app.router.add_post("/expel", expel)
    app.router.add_get(r"/changes/{number:[0-9]{1,9}}", change)


async def send_trace(
    request: web.Request,
    trace: Callable[[], Iterator[str]],
    headers: Mapping[str, str] | None = None,
) -> web.StreamResponse:
    """Send a trace in pieces, so that the agent does other work between them; 409 if there is
    none."""
    from aiohttp import web

    try:
        lines = trace()
    except EdgeAgentError as error:
        return web.json_response({"error": str(error)}, status=409)
    response = web.StreamResponse(headers=headers)
    response.content_type = "application/x-ndjson"
    await response.prepare(request)
    while piece := "".join(islice(lines, TRACE_LINES)):
        await response.write(piece.encode())
        await asyncio.sleep(0)
    await response.write_eof()
    return response
