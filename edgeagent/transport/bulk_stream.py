"""The frames of a link's bulk connection, sent and received with few copies and few system calls.

A frame is a `BulkHeader` (80 bytes) and its payload; a header of zeros announces a clean close.

Where chunks are small, each read and each write costs more than the bytes that it moves. So a small
frame is written at once, frames that have waited together are, too, and what arrives is read into a
buffer from which as many frames are taken as it holds. Only a payload of which much is missing is
read straight into its place. A frame that could be written is never kept back for the next one: the
other end would begin to work on it later.
"""

from __future__ import annotations

import asyncio
from time import monotonic  # finer than the event loop's clock, which may count milliseconds
from typing import TYPE_CHECKING

from edgeagent.transport import bounds
from edgeagent.transport.framing import scratch
from edgeagent.transport.send_queue import SendQueue
from edgeagent.transport.traffic import Flow
from protocols import limits
from protocols.errors import LocalProtocolError, RemoteProtocolError
from protocols.network.meter import Meter
from protocols.wire.bulk import BulkHeader, BulkKind, decode_header, is_shared

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeagent.transport.framing import Connection
    from edgeagent.transport.traffic import Traffic

GOODBYE = bytes(limits.BULK_HEADER_BYTES)


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
        traffic: Traffic,
    ) -> None:
        self._connection = connection
        self._arriving = arriving
        self._received = received
        self._goodbye = goodbye
        self._drained = drained
        self._failed = failed
        self.lost = lost
        self.bytes_sent = 0
        self.meter = Meter()
        self.flow = Flow(self.meter, lambda: connection.transport)
        self._traffic = traffic
        self.queued = 0
        self._queue = SendQueue()
        self._current: tuple[BulkHeader, memoryview] | None = None  # the frame being written
        self._offset = 0  # payload bytes written of it
        self._paused = False
        self._scheduled = False
        self._stopped = False
        self._held = False  # no further frame is to be delivered for now
        self._arrived = memoryview(bytearray(bounds.BULK_BUFFER_BYTES))
        self._start = 0  # of what has arrived and is not delivered
        self._end = 0
        self._direct = False  # whether the buffer returned last is a part of a payload's own
        self._header: BulkHeader | None = None
        self._target: memoryview | None = None
        self._payload_end = 0

    # Sending.

    @property
    def idle(self) -> bool:
        """Whether every queued frame was written to the connection."""
        return self._current is None and not self._queue

    def discard(self) -> None:
        """Drop the rest of the payload that is being received; `received` is not called for it."""
        self._target = None

    def send(self, header: BulkHeader, payload: memoryview) -> None:
        """Queue one frame; `payload` is a flat byte view of `header.length` bytes."""
        self._queue.push(header, payload)
        self.queued += len(payload)
        if not self._paused and not self._scheduled:
            self._pump()

    def drop_queue(self) -> None:
        """Drop the frames of which nothing was written yet."""
        self._queue.clear()
        self.queued = len(self._current[1]) - self._offset if self._current is not None else 0

    def drop_sums(self) -> None:
        """Drop the partial sums of which nothing was written yet, and copy the rest of one that is
        being written, because their memory is used again."""
        self.queued -= self._queue.drop(BulkKind.UP)
        if self._current is not None and self._current[0].kind is BulkKind.UP:
            header, payload = self._current
            self._current = (header, memoryview(bytes(payload)))

    def say_goodbye(self) -> None:
        """Tell the peer that no frame follows; call it only when `idle`."""
        self._connection.transport.write(GOODBYE)

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
        now = monotonic()
        shared = self._traffic.others_send(self.flow, now)
        self._traffic.wrote(self.flow, now)
        while not self.idle and not self._paused and not self._stopped:
            if budget <= 0:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self._pump)
                return
            budget -= self._write_pieces(shared)
        if self.idle and not self._stopped:
            self._drained()

    def _write_pieces(self, shared: bool) -> int:
        """Write the next `BULK_PIECE_BYTES`, of as many frames as they are; return their number.
        `shared`: other links send, too."""
        parts: list[bytes | memoryview] = []
        size = 0
        while size < bounds.BULK_PIECE_BYTES and not self.idle:
            if self._current is None:
                self._current, self._offset = self._queue.pop(), 0
                parts.append(self._current[0].encode(shared=shared))
                size += limits.BULK_HEADER_BYTES
            payload = self._current[1]
            piece = payload[self._offset : self._offset + bounds.BULK_PIECE_BYTES - size]
            parts.append(piece)
            size += len(piece)
            self._offset += len(piece)
            self.queued -= len(piece)
            self.bytes_sent += len(piece)
            if self._offset == len(payload):
                self._current = None
        write = self._connection.transport.write
        if size <= bounds.JOINED_BYTES or len(parts) > 2:
            write(b"".join(parts))
        else:
            for part in filter(len, parts):
                write(part)
        return size

    # Receiving.

    def hold(self) -> None:
        """Deliver no further frame, and read no more."""
        self._held = True
        self._connection.pause_reading()

    def go_on(self) -> None:
        """Deliver frames again, those first that have arrived."""
        if self._held:
            self._held = False
            asyncio.get_running_loop().call_soon(self._catch_up)
        else:
            self._connection.resume_reading()

    def _catch_up(self) -> None:
        """Deliver what had arrived when `hold` was called, then read again."""
        self._deliver()
        if not self._held and not self._stopped:
            self._connection.resume_reading()

    def buffer(self) -> memoryview:
        """Return where the next bytes go."""
        if self._stopped:
            return scratch
        missing = self._header.length - self._payload_end if self._header is not None else 0
        self._direct = missing >= len(self._arrived)
        if self._direct:
            target = self._target
            return target[self._payload_end :] if target is not None else scratch[:missing]
        rest = self._end - self._start  # at most a part of a header, since all else is delivered
        self._arrived[:rest] = bytes(self._arrived[self._start : self._end])
        self._start, self._end = 0, rest
        return self._arrived[rest:]

    def filled(self, count: int) -> None:
        """Account for received bytes."""
        if self._stopped:
            return
        if self._direct:
            self._deliver(count)
        else:
            self._end += count
            self._deliver()

    def _deliver(self, count: int = 0) -> None:
        """Deliver all that is complete: `count` bytes that are in their place, or what is in the
        buffer."""
        try:
            if count:
                self._payload_arrived(count)
                return
            while self._start < self._end and not self._stopped and not self._held:
                if not self._take():
                    break
        except RemoteProtocolError as error:
            self._failed(str(error))

    def _take(self) -> bool:
        """Take a header or a part of a payload from the buffer; return whether there was one."""
        there = self._end - self._start
        if self._header is None:
            if there < limits.BULK_HEADER_BYTES:
                return False
            head = self._arrived[self._start : self._start + limits.BULK_HEADER_BYTES]
            self._start += limits.BULK_HEADER_BYTES
            self._head_complete(head)
            return True
        size = min(there, self._header.length - self._payload_end)
        if self._target is not None:
            part = self._arrived[self._start : self._start + size]
            self._target[self._payload_end : self._payload_end + size] = part
        self._start += size
        self._payload_arrived(size)
        return True

    def _head_complete(self, head: memoryview) -> None:
        if head == GOODBYE:
            self._goodbye()
            return
        header = decode_header(head)
        target = self._arriving(header)
        if self._stopped:
            return
        if target is not None:
            target = target.cast("B") if target.format != "B" or target.ndim != 1 else target
            if len(target) != header.length or target.readonly:
                raise LocalProtocolError("bulk_arriving returned an unusable buffer")
        self._header, self._target, self._payload_end = header, target, 0
        now = monotonic()
        shared = is_shared(head) or self._traffic.others_arrive(self.flow, now)
        self.meter.begins(now, shared=shared)
        if header.length == 0:
            self._payload_complete(header)

    def _payload_arrived(self, count: int) -> None:
        assert self._header is not None
        self._payload_end += count
        now = monotonic()
        self.meter.arrived(now, count)
        self.flow.received_bytes += count
        self._traffic.arrived(now)
        if self._payload_end == self._header.length:
            self._payload_complete(self._header)

    def _payload_complete(self, header: BulkHeader) -> None:
        self.meter.ends(monotonic())
        wanted = self._target is not None
        self._header = self._target = None
        if wanted:
            self._received(header)
