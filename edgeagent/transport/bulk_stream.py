"""Bulk frames on one of the two connections of a link, received without avoidable copies.

A frame is a `BulkHeader` (80 bytes) and its payload; a header of zeros announces a clean close.
Which frame is written next is decided by `send_queue.py`; this module writes it.
"""

from __future__ import annotations

import asyncio
from time import monotonic  # finer than the event loop's clock, which may count milliseconds
from typing import TYPE_CHECKING

from edgeagent.transport import bounds
from edgeagent.transport.framing import Connection, scratch
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
        self._paused = False
        self._scheduled = False
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
        """Payload bytes that wait to be written, and what the system has not sent yet."""
        found = outflow_of(self._connection.transport)
        return self.queued + (found[1] if found is not None else 0)

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

    def paused(self) -> None:
        """Stop writing."""
        self._paused = True

    def resumed(self) -> None:
        """Write again."""
        self._paused = False
        if not self._scheduled:
            self._pump()

    def _pump(self) -> None:
        """Write until the kernel is full, the queue is empty, or the loop should do other work."""
        self._scheduled = False
        budget = bounds.BULK_TURN_BYTES
        while not self.idle and not self._paused and not self._stopped:
            if budget <= 0:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self._pump)
                return
            budget -= self._write_piece()
        if self.idle and not self._stopped:
            self._drained()

    def _write_piece(self) -> int:
        first = self._current is None
        if self._current is None:
            self._current, self._offset = self._queue.pop(), 0
        header, payload = self._current
        piece = payload[self._offset : self._offset + bounds.BULK_PIECE_BYTES]
        self._offset += len(piece)
        self.queued -= len(piece)
        self.bytes_sent += len(piece)
        if self._offset == len(payload):
            self._current = None
        if first:
            self._connection.transport.write(header.encode())
        if len(piece):
            self._connection.transport.write(piece)
        return len(piece) + limits.BULK_HEADER_BYTES

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
