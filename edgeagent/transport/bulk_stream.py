"""Bulk frames on one of the two connections of a link, received without avoidable copies.

A frame is a `BulkHeader` (80 bytes) and its payload; a header of zeros announces a clean close.
Which frame is written next is decided by `send_queue.py`, and how far ahead of the system by
`pacing.py`; this module performs that.
"""

from __future__ import annotations

import asyncio
from time import monotonic  # finer than the event loop's clock, which may count milliseconds
from typing import TYPE_CHECKING

from edgeagent.transport import bounds
from edgeagent.transport.framing import Connection, scratch
from edgeagent.transport.pacing import WINDOW_SECONDS, Pacing
from edgeagent.transport.send_queue import SendQueue
from edgeagent.transport.tcp_info import outflow_of
from protocols import limits
from protocols.errors import LocalProtocolError, RemoteProtocolError
from protocols.network.meter import Meter
from protocols.wire.bulk import BulkHeader, decode_header

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeagent.transport.urgency import Urgency

BULK_GOODBYE = bytes(limits.BULK_HEADER_BYTES)


class BulkStream:
    """The bulk connection of a link that is up, as a `Sink`.

    `arriving` returns the buffer for a payload, `received` is called when it is complete, and
    `goodbye` when the peer has sent its last frame. If one of them raises `RemoteProtocolError`,
    `failed` is called with the reason.
    """

    def __init__(
        self,
        connection: Connection,
        arriving: Callable[[BulkHeader], memoryview | None],
        received: Callable[[BulkHeader], None],
        goodbye: Callable[[], None],
        drained: Callable[[], None],
        failed: Callable[[str], None],
        lost: Callable[[Exception | None], None],
    ) -> None:
        self._connection = connection
        self._arriving = arriving
        self._received = received
        self._goodbye = goodbye
        self._drained = drained
        self._failed = failed
        self.lost = lost
        self.bytes_sent = 0
        self.bytes_received = 0
        self.meter = Meter()
        self.queued = 0
        self._queue = SendQueue()
        self._current: tuple[BulkHeader, memoryview] | None = None  # the frame being written
        self._offset = 0  # payload bytes written of it
        self._pacing = Pacing()
        self._ahead = 0  # bytes that wait below the link, as far as is known
        self._written_at = -1.0  # when something was written last, by the loop's clock
        self._looked_at = 0.0  # when the system was asked last what waits there
        self._look_at: asyncio.TimerHandle | None = None
        self._paused = False
        self._scheduled = False  # `_pump` will be called, now or after a look
        self._stopped = False
        self._head = memoryview(bytearray(limits.BULK_HEADER_BYTES))
        self._head_end = 0
        self._header: BulkHeader | None = None
        self._target: memoryview | None = None
        self._payload_end = 0

    # Sending.

    @property
    def idle(self) -> bool:
        """Whether every queued frame was written to the connection."""
        return self._current is None and not self._queue

    @property
    def waiting(self) -> int:
        """Payload bytes that wait to be written, and all bytes that wait below."""
        self._look_if_new(stopped=False)
        return self.queued + self._ahead

    def queued_of(self, urgency: Urgency) -> int:
        """Return how many payload bytes of a class wait, the frame being written left aside."""
        return self._queue.bytes_of(urgency)

    def discard(self) -> None:
        """Drop the rest of the payload that is being received; `received` is not called for it."""
        self._target = None

    def send(self, header: BulkHeader, payload: memoryview, urgency: Urgency) -> None:
        """Queue one frame; `payload` is a flat byte view of `header.length` bytes."""
        self._queue.push(header, payload, urgency)
        self.queued += len(payload)
        if not self._paused and not self._scheduled:
            self._pump()

    def drop_queue(self) -> None:
        """Drop the frames of which nothing was written yet."""
        self._queue.clear()
        self.queued = len(self._current[1]) - self._offset if self._current is not None else 0

    def say_goodbye(self) -> None:
        """Tell the peer that no frame follows; call it only when `idle`."""
        self._connection.transport.write(BULK_GOODBYE)

    def mute(self) -> None:
        """Send nothing more, and drop the payload that is being received."""
        self._queue.clear()
        self._current = None
        self._target = None
        self.queued = 0

    def stop(self) -> None:
        """Deliver and send nothing more."""
        self._stopped = True
        self.mute()
        if self._look_at is not None:
            self._look_at.cancel()

    def paused(self) -> None:
        """Stop writing."""
        self._paused = True

    def resumed(self) -> None:
        """Write again."""
        self._paused = False
        if not self._scheduled:
            self._pump()

    def _pump(self) -> None:
        """Write until enough waits below, the queue is empty, or the loop should do other work."""
        self._scheduled = False
        loop = asyncio.get_running_loop()
        budget = bounds.BULK_TURN_BYTES
        if self._pacing.looks or monotonic() - self._looked_at >= WINDOW_SECONDS:
            self._look_if_new(stopped=False)  # what was written before has left by now, perhaps
        while not self.idle and not self._paused and not self._stopped:
            if self._room <= 0:
                self._scheduled = True
                seconds = self._pacing.look_after(self._ahead)
                self._look_at = loop.call_later(seconds, self._look_again)
                return
            if budget <= 0:
                self._scheduled = True
                loop.call_soon(self._pump)
                return
            budget -= self._write_piece()
            self._written_at = loop.time()
        if self.idle and not self._stopped:
            self._pacing.idle()
            self._drained()

    def _look_again(self) -> None:
        self._look_at = None
        if not self._stopped:
            self._look_if_new(stopped=True)
            self._pump()

    @property
    def _room(self) -> int:
        """How many bytes may be written before the next look."""
        pacing = self._pacing
        return pacing.allowance - self._ahead if pacing.looks else bounds.BULK_PIECE_BYTES

    def _look_if_new(self, *, stopped: bool) -> None:
        """See what waits below the link, unless something was written in this turn of the loop,
        since an event loop may pass that to the system at the turn's end."""
        if self._stopped or asyncio.get_running_loop().time() <= self._written_at:
            return
        transport = self._connection.transport
        found = outflow_of(transport)
        self._looked_at = monotonic()
        if found is None:
            self._pacing.nothing_known()
            self._ahead = 0
        else:
            acknowledged, unsent = found
            self._ahead = unsent + transport.get_write_buffer_size()
            self._pacing.looked(self._looked_at, acknowledged, self._ahead, stopped=stopped)

    def _write_piece(self) -> int:
        """Write a header, or more of a payload, or both if they are short; return the bytes."""
        first = self._current is None
        if self._current is None:
            self._current, self._offset = self._queue.pop(), 0
        header, payload = self._current
        size = min(bounds.BULK_PIECE_BYTES, max(self._room, bounds.LEAST_PIECE_BYTES))
        piece = payload[self._offset : self._offset + size]
        self._offset += len(piece)
        self.queued -= len(piece)
        self.bytes_sent += len(piece)
        if self._offset == len(payload):
            self._current = None
        write = self._connection.transport.write
        if first and len(piece) <= bounds.JOINED_BYTES:
            write(header.encode() + piece)
        else:
            if first:
                write(header.encode())
            write(piece)
        written = len(piece) + limits.BULK_HEADER_BYTES * first
        self._ahead += written
        return written

    # Receiving.

    def buffer(self) -> memoryview:
        """Return where the next bytes go; those of a payload go straight into its own buffer."""
        if self._stopped:
            return scratch
        if self._header is None:
            return self._head[self._head_end :]
        if self._target is not None:
            return self._target[self._payload_end :]
        return scratch[: self._header.length - self._payload_end]

    def filled(self, count: int) -> None:
        """Account for received bytes."""
        if self._stopped:
            return
        try:
            if self._header is None:
                self._head_end += count
                if self._head_end == len(self._head):
                    self._head_complete()
                return
            self._payload_end += count
            self.bytes_received += count
            self.meter.arrived(monotonic(), count)
            if self._payload_end == self._header.length:
                self._payload_complete(self._header)
        except RemoteProtocolError as error:
            self._failed(str(error))

    def _head_complete(self) -> None:
        self._head_end = 0
        if self._head == BULK_GOODBYE:
            self._goodbye()
            return
        header = decode_header(self._head)
        target = self._arriving(header)
        if self._stopped:
            return
        if target is not None:
            target = target.cast("B") if target.format != "B" or target.ndim != 1 else target
            if len(target) != header.length or target.readonly:
                raise LocalProtocolError("bulk_arriving returned an unusable buffer")
        self._header, self._target, self._payload_end = header, target, 0
        self.meter.begins(monotonic())
        if header.length == 0:
            self._payload_complete(header)

    def _payload_complete(self, header: BulkHeader) -> None:
        self.meter.ends(monotonic())
        wanted = self._target is not None
        self._header = self._target = None
        if wanted:
            self._received(header)
