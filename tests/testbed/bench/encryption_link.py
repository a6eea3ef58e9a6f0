"""One end of a bulk connection on loopback, which says what it took of a processor.

Usage: encryption_link.py receive|send PORT TOTAL_BYTES FRAME_BYTES FOLDER [--plain]

The receiver prints {"listens": true} when it listens. Both print {"seconds": S, "processor_s": P}
at their ends: the time from the first frame to the last one, and how much of a processor the
process used meanwhile. With `--plain` the connection has no TLS, which agents never do.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from edgeagent.runtime import agent_runner
from edgeagent.transport.bulk_stream import BulkStream
from edgeagent.transport.framing import Connection, Registry
from edgeagent.transport.identity import load_identity
from edgeagent.transport.tls import Trust
from edgeagent.transport.traffic import Traffic
from protocols.wire.bulk import BulkHeader, BulkKind

HOST = "127.0.0.1"
QUEUED_FRAMES = 8  # that are given to the connection at a time, as a round does


class Noted(Connection):
    """A connection of which one can wait for the moment when it is made."""

    def __init__(self) -> None:
        super().__init__(Registry())
        self.made = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin without reading."""
        super().connection_made(transport)
        self.made.set()


class End:
    """An end of the connection; `done` when all frames are through."""

    def __init__(self, total: int, frame: int) -> None:
        self.done: asyncio.Future[dict[str, float]] = asyncio.get_running_loop().create_future()
        self.connection = Noted()
        self._frame, self._left = frame, total // frame
        self._buffer, self._payload = memoryview(bytearray(frame)), memoryview(bytes(frame))
        self._began: tuple[float, float] | None = None
        self._stream: BulkStream | None = None
        self._goes_on = False  # whether `send` will be called again

    def attach(self) -> BulkStream:
        """Begin to read; return the stream."""
        self._stream = BulkStream(
            self.connection,
            self._arriving,
            self._received,
            lambda: None,
            self._drained,
            self._failed,
            lambda error: self._failed(str(error)) if self._left else None,
            Traffic(),
        )
        self.connection.attach(self._stream)
        return self._stream

    def send(self) -> None:
        """Send the next frames."""
        self._goes_on = False
        self._begin()
        assert self._stream is not None
        header = BulkHeader(BulkKind.UP, bytes(8), 1, 1, 1, 1, 1, self._frame)
        count = min(QUEUED_FRAMES, self._left)
        self._left -= count
        for _ in range(count):
            self._stream.send(header, self._payload)

    def _begin(self) -> None:
        if self._began is None:
            self._began = (time.monotonic(), time.process_time())

    def _arriving(self, header: BulkHeader) -> memoryview:
        self._begin()
        return self._buffer[: header.length]

    def _received(self, _: BulkHeader) -> None:
        self._left -= 1
        if not self._left:
            self._end()

    def _drained(self) -> None:
        if self._began is None or self.done.done():
            return
        if not self._left:
            self._end()
        elif not self._goes_on:
            self._goes_on = True
            asyncio.get_running_loop().call_soon(self.send)

    def _end(self) -> None:
        assert self._began is not None
        began, worked = self._began
        seconds, processor_s = time.monotonic() - began, time.process_time() - worked
        self.done.set_result({"seconds": seconds, "processor_s": processor_s})

    def _failed(self, reason: str) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError(reason))


async def run(role: str, port: int, total: int, frame: int, trust: Trust | None) -> None:
    """Send or receive everything; print what it took."""
    loop, end = asyncio.get_running_loop(), End(total, frame)
    if role == "send":
        tls, name = (trust.client, "") if trust is not None else (None, None)
        await loop.create_connection(
            lambda: end.connection, HOST, port, ssl=tls, server_hostname=name
        )
        end.attach()
        end.send()
        print(json.dumps(await end.done), flush=True)
        # What the kernel holds still has to be sent, and the receiver closes.
        await asyncio.sleep(1.0)
        return
    context = trust.server if trust is not None else None
    server = await loop.create_server(lambda: end.connection, HOST, port, ssl=context)
    print(json.dumps({"listens": True}), flush=True)
    await end.connection.made.wait()
    end.attach()
    print(json.dumps(await end.done), flush=True)
    server.close()


def main() -> None:
    """Do what the command line says."""
    role, port, total, frame, folder = sys.argv[1:6]
    trust = None
    if "--plain" not in sys.argv:
        identity = load_identity(folder)
        trust = Trust(identity)
        trust.add(identity.certificate)
    with agent_runner() as loop:
        loop.run(run(role, int(port), int(total), int(frame), trust))


if __name__ == "__main__":
    main()
