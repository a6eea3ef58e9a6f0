"""A connection of a link, and the frames of its control connection.

Nothing in this module waits or decides. While a link is being opened, a connection returns single
frames on request (`Connection.frame`); afterwards it pushes everything into a sink (`attach`).
While no frame is requested and no sink is attached, nothing is read. Lengths are checked before
memory is allocated.

Control frame: length (4 bytes, big endian) and payload; length 0 announces a clean close. Those of
the bulk connection are in `bulk_stream.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import deque
from typing import TYPE_CHECKING, Protocol, cast

from edgeagent.transport import bounds
from protocols import limits
from protocols.errors import RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

LENGTH_BYTES = 4

scratch = memoryview(bytearray(bounds.BULK_SCRATCH_BYTES))  # receives what is dropped, of all links


class Sink(Protocol):
    """What a connection pushes into once attached."""

    def buffer(self) -> memoryview:
        """Return where the next bytes go: writable, not empty."""

    def filled(self, count: int) -> None:
        """Take note that `count` bytes were put into the buffer returned last."""

    def paused(self) -> None:
        """Stop writing: the kernel takes no more bytes for now."""

    def resumed(self) -> None:
        """Write again: the kernel takes bytes again."""

    def lost(self, error: Exception | None) -> None:
        """The connection has ended. This is called once, and nothing is called after it."""


class Registry:
    """The connections that exist, so that their ends can be waited for."""

    def __init__(self) -> None:
        self._open: dict[Connection, None] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    def add(self, connection: Connection) -> None:
        """Note that a connection was made."""
        self._open[connection] = None
        self._empty.clear()

    def discard(self, connection: Connection) -> None:
        """Note that a connection has ended."""
        self._open.pop(connection, None)
        if not self._open:
            self._empty.set()

    async def wait_empty(self, seconds: float) -> None:
        """Wait until no connection is left; after `seconds` abort those that are."""
        try:
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        except TimeoutError:
            for connection in list(self._open):
                connection.abort()
            await self._empty.wait()


class Connection(asyncio.BufferedProtocol):
    """One TLS connection of a link, before and after the link is up."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._abandoned = False
        self._closing = False
        self._transport: asyncio.Transport | None = None
        self._sink: Sink | None = None
        self._waiter: asyncio.Future[bytes] | None = None
        self._part = memoryview(bytearray(LENGTH_BYTES))
        self._filled = 0
        self._in_body = False
        self._writing_paused = False
        self._lost = False
        self._error: Exception | None = None
        self._offered = 0  # bytes of the buffer that was returned last
        self._read_all = True  # whether everything that has arrived was read

    @property
    def transport(self) -> asyncio.Transport:
        """The TLS transport."""
        assert self._transport is not None
        return self._transport

    async def frame(self) -> bytes:
        """Return the next frame, which has at most `MAX_JOIN_HELLO_BYTES` bytes.

        Raises `RemoteProtocolError` for a wrong length, `ConnectionError` if the connection ends
        before the frame is complete.
        """
        waiter = self._waiter or self.expect()
        try:
            return await waiter
        finally:
            self._waiter = None

    def expect(self) -> asyncio.Future[bytes]:
        """Begin to read the next frame, which `frame` will return.

        The returned future is also done when the connection has ended.
        """
        assert self._sink is None
        assert self._waiter is None
        self._waiter = asyncio.get_running_loop().create_future()
        self._waiter.add_done_callback(_seen)  # whoever asked may have given up meanwhile
        if self._lost:
            self._waiter.set_exception(ConnectionResetError("the connection was closed"))
        else:
            self._part, self._filled, self._in_body = memoryview(bytearray(LENGTH_BYTES)), 0, False
            self.resume_reading()
        return self._waiter

    def send(self, body: bytes) -> None:
        """Write one frame of the opening."""
        if not self._lost:
            self.transport.write(len(body).to_bytes(LENGTH_BYTES, "big") + body)

    def attach(self, sink: Sink) -> None:
        """Push everything into `sink` from now on, and begin to read."""
        self._sink = sink
        if self._lost:
            asyncio.get_running_loop().call_soon(sink.lost, self._error)
            return
        if self._writing_paused:
            sink.paused()
        self.resume_reading()

    def pause_reading(self) -> None:
        """Stop reading. If the connection ends meanwhile, TLS may drop what it has not
        delivered."""
        self._read_all = False
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._read_all = False  # not known before the transport asks for a buffer
        self.transport.resume_reading()

    def close(self) -> None:
        """Close after everything written has been sent; deliver nothing any more."""
        self._closing = True
        if self._transport is not None and not self._lost:
            # A TLS transport whose reading is paused may miss the peer's end and never close.
            self._transport.resume_reading()
            self._transport.close()

    def abort(self) -> None:
        """Close at once, also if the connection is still being made.

        The other end sees a reset and never an orderly end, because an orderly end without a
        goodbye is taken as proof that the process has ended (`protocols.network.link_end`).
        """
        self._abandoned = True
        if self._transport is not None:
            reset_on_close(self._transport)
            self._transport.abort()

    # The event loop's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin without reading."""
        made = cast("asyncio.Transport", transport)  # uvloop's class does not derive from it
        self._transport = made
        self._registry.add(self)
        if self._abandoned:
            made.abort()
            return
        made.set_write_buffer_limits(bounds.WRITE_HIGH_WATER_BYTES)
        made.pause_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Say where received bytes go."""
        if self._closing:
            buffer = scratch
        elif self._sink is not None:
            buffer = self._sink.buffer()
        else:
            buffer = self._part[self._filled :]
        self._offered, self._read_all = len(buffer), True  # true unless more bytes follow
        return buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take received bytes."""
        self._read_all = nbytes < self._offered
        if self._closing:
            return
        if self._sink is not None:
            self._sink.filled(nbytes)
            return
        self._filled += nbytes
        if self._filled == len(self._part):
            self._part_complete()

    def pause_writing(self) -> None:
        """Pass on that the kernel takes no more."""
        self._writing_paused = True
        if self._sink is not None:
            self._sink.paused()

    def resume_writing(self) -> None:
        """Pass on that the kernel takes bytes again."""
        self._writing_paused = False
        if self._sink is not None:
            self._sink.resumed()

    def eof_received(self) -> bool:
        """Close when the other end does."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever waits or listens that the connection has ended.

        When the other end closes in order, a TLS transport reads at most one more buffer and drops
        what follows, perhaps a goodbye. An end before everything was read therefore counts as an
        error, not as an orderly end.
        """
        if exc is None and self._abandoned:
            exc = ConnectionAbortedError("closed here")
        elif exc is None and not self._read_all:
            exc = ConnectionAbortedError("not read to its end")
        self._lost, self._error = True, exc
        self._registry.discard(self)
        if self._sink is not None:
            self._sink.lost(self._error)
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(ConnectionResetError("the connection was closed"))

    def _part_complete(self) -> None:
        if not self._in_body:
            length = int.from_bytes(self._part, "big")
            if 0 < length <= limits.MAX_JOIN_HELLO_BYTES:
                self._part, self._filled, self._in_body = memoryview(bytearray(length)), 0, True
                return
        self.transport.pause_reading()
        if self._waiter is None or self._waiter.done():
            return
        if self._in_body:
            self._waiter.set_result(bytes(self._part))
        else:
            self._waiter.set_exception(RemoteProtocolError("opening frame of a forbidden length"))


def reset_on_close(transport: asyncio.BaseTransport) -> None:
    """Have the kernel reset the connection when it is closed (SO_LINGER of 0 s)."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):  # it is closed already
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _seen(waiter: asyncio.Future[bytes]) -> None:
    if not waiter.cancelled():
        waiter.exception()


class ControlStream:
    """The control connection of a link that is up, as a `Sink`.

    `received` is called with each frame, b"" standing for the peer's goodbye, and `lost` when the
    connection ends. `drained` is called whenever all queued frames were written. If `received`
    raises `RemoteProtocolError`, or the input is malformed, `failed` is called with the reason.
    """

    def __init__(
        self,
        connection: Connection,
        received: Callable[[bytes], None],
        drained: Callable[[], None],
        failed: Callable[[str], None],
        lost: Callable[[Exception | None], None],
    ) -> None:
        self._connection = connection
        self._received = received
        self._drained = drained
        self._failed = failed
        self.lost = lost
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._paused = False
        self._stopped = False
        self._small = memoryview(bytearray(bounds.CONTROL_BUFFER_BYTES))
        self._start = 0
        self._end = 0
        self._large: memoryview | None = None
        self._large_end = 0

    @property
    def idle(self) -> bool:
        """Whether every queued frame was written to the connection, and the next would be, too."""
        return not self._queue and not self._paused

    def send(self, frame: bytes) -> None:
        """Queue one frame; if more than `MAX_CONTROL_QUEUE_BYTES` wait, the link fails."""
        message = len(frame).to_bytes(LENGTH_BYTES, "big") + frame
        if not self._paused and not self._queue:
            self._connection.transport.write(message)
            return
        self._queue.append(message)
        self._queued += len(message)
        if self._queued > bounds.MAX_CONTROL_QUEUE_BYTES:
            self._failed("it does not read its control connection")

    def mute(self) -> None:
        """Send nothing more."""
        self._queue.clear()
        self._queued = 0

    def stop(self) -> None:
        """Deliver and send nothing more."""
        self._stopped = True
        self.mute()

    def buffer(self) -> memoryview:
        """Return where the next bytes go."""
        if self._stopped:
            return scratch
        if self._large is not None:
            return self._large[self._large_end :]
        return self._small[self._end :]

    def filled(self, count: int) -> None:
        """Deliver all frames that are complete now."""
        if self._stopped:
            return
        try:
            if self._large is None:
                self._end += count
                self._parse()
            else:
                self._large_end += count
                if self._large_end == len(self._large):
                    frame, self._large = bytes(self._large), None
                    self._received(frame)
        except RemoteProtocolError as error:
            self._failed(str(error))

    def paused(self) -> None:
        """Queue frames from now on."""
        self._paused = True

    def resumed(self) -> None:
        """Write queued frames."""
        self._paused = False
        while self._queue and not self._paused:
            message = self._queue.popleft()
            self._queued -= len(message)
            self._connection.transport.write(message)
        if not self._queue:
            self._drained()

    def _parse(self) -> None:
        while self._end - self._start >= LENGTH_BYTES and not self._stopped:
            body = self._start + LENGTH_BYTES
            length = int.from_bytes(self._small[self._start : body], "big")
            if length > limits.MAX_CONTROL_BYTES:
                raise RemoteProtocolError(f"control frame of {length} bytes is over the limit")
            if body + length > self._end:
                if length + LENGTH_BYTES > len(self._small):
                    self._begin_large(body, length)
                break
            frame = bytes(self._small[body : body + length])
            self._start = body + length
            self._received(frame)
        rest = self._end - self._start
        if self._start:
            self._small[:rest] = bytes(self._small[self._start : self._end])
            self._start, self._end = 0, rest

    def _begin_large(self, body: int, length: int) -> None:
        self._large = memoryview(bytearray(length))
        self._large_end = self._end - body
        self._large[: self._large_end] = self._small[body : self._end]
        self._start = self._end = 0
