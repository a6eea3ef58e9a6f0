"""Shards over one or two hops of plain TCP: nodes with the state serve it, those between forward
it.

Usage: relay.py serve ADDRESS STATE_BYTES SHARD_BYTES
       relay.py pull STATE_BYTES SHARD_BYTES ROUTE...       ROUTE: HOST:PORT[,HOST:PORT]

`serve` prints {"port": N}. `pull` asks every route for equally many consecutive shards, the second
address of a route through the first, and prints {"seconds": S, "bytes": N}.

A relay stores a whole shard before it sends it on, while the next one is already on its way to the
relay. The time is that from the first request to the last shard verified by SHA-256. Nothing is
encrypted.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import struct
import sys
import time

import numpy as np

Address = tuple[str, int]

REQUEST = struct.Struct("<q64s")  # shard (-1: forward all that follows), then an address
WINDOW = 3  # shards that are asked for over a route and have not come
LIMIT = 8 << 20  # bytes that may wait in a reader


def state(size: int) -> memoryview:
    """Return the state that all members have, `size` bytes."""
    return memoryview(np.arange(-(-size // 4), dtype=np.float32).tobytes())[:size]


def shard_of(whole: memoryview, shard: int, size: int) -> memoryview:
    """Return one shard; the last one may be shorter."""
    return whole[shard * size : (shard + 1) * size]


def request(shard: int, onward: Address | None = None) -> bytes:
    """Return the bytes that ask for a shard, or for forwarding to `onward`."""
    return REQUEST.pack(shard, f"{onward[0]}:{onward[1]}".encode() if onward else b"")


def address(text: str) -> Address:
    """Return HOST:PORT as an address."""
    host, _, port = text.partition(":")
    return host, int(port)


class Server:
    """Answers requests on every connection, in order."""

    def __init__(self, whole: memoryview, shard_bytes: int) -> None:
        self._whole = whole
        self._shard_bytes = shard_bytes

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection until it ends."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            shard, text = REQUEST.unpack(await reader.readexactly(REQUEST.size))
            if shard < 0:
                await self._forward(reader, writer, address(text.rstrip(b"\0").decode()))
            while shard >= 0:
                writer.write(shard_of(self._whole, shard, self._shard_bytes))
                await writer.drain()
                shard, _ = REQUEST.unpack(await reader.readexactly(REQUEST.size))
        writer.close()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, onward: Address
    ) -> None:
        """Pass requests on and shards back."""
        up_reader, up_writer = await asyncio.open_connection(*onward, limit=LIMIT)
        stored: asyncio.Queue[bytes] = asyncio.Queue(1)
        sending = asyncio.create_task(_send_all(stored, writer))
        owed: asyncio.Queue[int] = asyncio.Queue()
        storing = asyncio.create_task(_store_all(owed, up_reader, stored))
        try:
            while True:
                head = await reader.readexactly(REQUEST.size)
                size = len(shard_of(self._whole, REQUEST.unpack(head)[0], self._shard_bytes))
                owed.put_nowait(size)
                up_writer.write(head)
        finally:
            storing.cancel()
            sending.cancel()
            up_writer.close()


async def _store_all(
    owed: asyncio.Queue[int], reader: asyncio.StreamReader, stored: asyncio.Queue[bytes]
) -> None:
    while True:
        await stored.put(await reader.readexactly(await owed.get()))


async def _send_all(stored: asyncio.Queue[bytes], writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(await stored.get())
        await writer.drain()


async def serve(host: str, state_bytes: int, shard_bytes: int) -> None:
    """Serve until the process is ended."""
    server = Server(state(state_bytes), shard_bytes)
    listener = await asyncio.start_server(server.serve, host, 0)
    print(json.dumps({"port": listener.sockets[0].getsockname()[1]}), flush=True)
    await listener.serve_forever()


class Fetch:
    """A pull of the whole state over several routes."""

    def __init__(self, state_bytes: int, shard_bytes: int) -> None:
        whole = state(state_bytes)
        self.shards = -(-state_bytes // shard_bytes)
        self._digests = [
            hashlib.sha256(shard_of(whole, k, shard_bytes)).digest() for k in range(self.shards)
        ]
        self._into = memoryview(bytearray(state_bytes))
        self._shard_bytes = shard_bytes

    async def route(self, hops: list[Address], shards: range, start: asyncio.Event) -> None:
        """Pull `shards` over one route, once `start` is set."""
        reader, writer = await asyncio.open_connection(*hops[0], limit=LIMIT)
        if len(hops) > 1:
            writer.write(request(-1, hops[1]))
        await start.wait()
        for shard in shards[:WINDOW]:
            writer.write(request(shard))
        for place, shard in enumerate(shards):
            target = shard_of(self._into, shard, self._shard_bytes)
            target[:] = await reader.readexactly(len(target))
            if place + WINDOW < len(shards):
                writer.write(request(shards[place + WINDOW]))
            if hashlib.sha256(target).digest() != self._digests[shard]:
                raise ValueError(f"shard {shard} is damaged")
        writer.close()


async def pull(state_bytes: int, shard_bytes: int, routes: list[list[Address]]) -> float:
    """Pull the state, evenly over all routes; return the seconds it took."""
    fetch, start = Fetch(state_bytes, shard_bytes), asyncio.Event()
    cuts = [fetch.shards * k // len(routes) for k in range(len(routes) + 1)]
    tasks = [
        asyncio.create_task(fetch.route(hops, range(cuts[k], cuts[k + 1]), start))
        for k, hops in enumerate(routes)
    ]
    await asyncio.sleep(0.5)  # until all are connected
    began = time.monotonic()
    start.set()
    await asyncio.gather(*tasks)
    return time.monotonic() - began


def main() -> None:
    """Do what the command line says."""
    if sys.argv[1] == "serve":
        asyncio.run(serve(sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
        return
    size, shard = int(sys.argv[2]), int(sys.argv[3])
    routes = [[address(hop) for hop in route.split(",")] for route in sys.argv[4:]]
    print(json.dumps({"seconds": asyncio.run(pull(size, shard, routes)), "bytes": size}))


if __name__ == "__main__":
    main()
