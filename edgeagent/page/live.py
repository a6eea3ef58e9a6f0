"""The pages that are open: each is sent a snapshot every second, and at once after a line.

A snapshot is made once for all of them. A page that does not read is dropped once `MAX_QUEUE`
snapshots wait for it; it may connect again. Nothing is done while no page is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp import web

MAX_VIEWERS = 8  # WebSockets, those included that have not said their bearer yet
MAX_QUEUE = 4  # snapshots that wait for one page
MAX_MESSAGE_BYTES = 512  # from a page; its only message is its bearer
EVERY_S = 1.0  # between two snapshots
LEAST_S = 0.25  # between two snapshots when many lines come
HELLO_S = 5.0  # for the bearer
SEND_S = 10.0  # for one snapshot to leave
CLOSE_S = 0.5  # for a page to hear that this agent has ended
# Codes of the WebSocket protocol, the last one of our own choice.
ENDED, UNEXPECTED, NOT_LET_IN = 1001, 1008, 4401


class Viewer:
    """One open page. `bearer` is "" until it has said it."""

    def __init__(self, socket: web.WebSocketResponse, transport: asyncio.BaseTransport) -> None:
        self._socket = socket
        self._transport = transport
        self._queue: asyncio.Queue[str] = asyncio.Queue(MAX_QUEUE)
        self.bearer = ""

    def put(self, text: str) -> None:
        """Send `text` soon; drop a page that has not taken the last ones."""
        try:
            self._queue.put_nowait(text)
        except asyncio.QueueFull:
            self.drop()

    def drop(self) -> None:
        """End the connection at once."""
        if isinstance(self._transport, asyncio.WriteTransport):
            self._transport.abort()

    async def close(self, code: int) -> None:
        """End the connection and tell the page why; at once if that takes too long."""
        try:
            await asyncio.wait_for(self._socket.close(code=code), CLOSE_S)
        except (TimeoutError, OSError, RuntimeError):
            self.drop()

    async def write(self) -> None:
        """Send what is put, until the connection ends."""
        try:
            while True:
                text = await self._queue.get()
                await asyncio.wait_for(self._socket.send_str(text), SEND_S)
        except (TimeoutError, OSError, RuntimeError):
            self.drop()


class Live:
    """All open pages of one agent."""

    def __init__(
        self,
        look: Callable[[], str],
        knows: Callable[[str], bool],
        say: Callable[[str], None],
        let_in: Callable[[web.Request], None],
    ) -> None:
        """`look` returns a snapshot as text, `knows` whether a bearer is valid; `say` tells the
        user of an error; `let_in` is called with a request that has shown its bearer."""
        self._let_in = let_in
        self._look = look
        self._knows = knows
        self._say = say
        self._viewers: list[Viewer] = []
        self._wake = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None

    def hurry(self) -> None:
        """Send a snapshot soon, since something has happened."""
        self._wake.set()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Serve one WebSocket to its end."""
        from aiohttp import WSMsgType, web

        transport = request.transport
        if len(self._viewers) >= MAX_VIEWERS or transport is None:
            return web.json_response({"error": "too many pages are open"}, status=503)
        socket = web.WebSocketResponse(
            max_msg_size=MAX_MESSAGE_BYTES, heartbeat=SEND_S, compress=False, timeout=CLOSE_S / 2
        )
        viewer = Viewer(socket, transport)
        self._viewers.append(viewer)
        writing: asyncio.Task[None] | None = None
        try:
            await socket.prepare(request)
            if not await self._is_let_in(viewer, socket):
                await viewer.close(NOT_LET_IN)
                return socket
            self._let_in(request)
            writing = asyncio.create_task(viewer.write())
            self._begin()
            viewer.put(self._look())
            if (await socket.receive()).type in (WSMsgType.TEXT, WSMsgType.BINARY):
                await viewer.close(UNEXPECTED)  # a page says no more than its bearer
        finally:
            self._viewers.remove(viewer)
            if writing is not None:
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)
        return socket

    async def _is_let_in(self, viewer: Viewer, socket: web.WebSocketResponse) -> bool:
        """Read the first message, `{"bearer": "..."}`; return whether it is right."""
        from aiohttp import WSMsgType

        try:
            message = await asyncio.wait_for(socket.receive(), HELLO_S)
        except TimeoutError:
            return False
        if message.type is not WSMsgType.TEXT:
            return False
        try:
            said = json.loads(message.data)
        except (ValueError, RecursionError):
            return False
        bearer = said.get("bearer") if isinstance(said, dict) else None
        if not isinstance(bearer, str) or not self._knows(bearer):
            return False
        viewer.bearer = bearer
        return True

    def _begin(self) -> None:
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._send())
            self._sending.add_done_callback(self._sent)

    async def _send(self) -> None:
        """Send snapshots as long as a page is open."""
        while any(viewer.bearer for viewer in self._viewers):
            await asyncio.sleep(LEAST_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), EVERY_S - LEAST_S)
            self._wake.clear()
            text = self._look()
            for viewer in [v for v in self._viewers if v.bearer]:
                if self._knows(viewer.bearer):
                    viewer.put(text)
                else:
                    await viewer.close(NOT_LET_IN)

    def _sent(self, task: asyncio.Task[None]) -> None:
        """Tell of an error in a snapshot, which is a bug of ours: the page ends, the training must
        not."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._say(f"the page has failed: {type(error).__name__}: {error}")
            for viewer in self._viewers:
                viewer.drop()

    async def close(self) -> None:
        """Tell all pages that the agent has ended. Idempotent; takes `CLOSE_S` at most."""
        if self._sending is not None:
            self._sending.cancel()
        await asyncio.gather(*[viewer.close(ENDED) for viewer in self._viewers])
