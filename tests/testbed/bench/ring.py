"""One member of a ring all-reduce: reduce-scatter, then all-gather, n - 1 steps each.

Usage: ring.py --rank R --addresses A,B,... --port P --mb N --rounds N --out FILE

It uses plain TCP on an event loop, and not our links, which connect parents and children of a tree.
Otherwise it is as good as we can make it: float32 values are added in place and received into
memory that exists already, and blocks are cut into pieces that are sent on as soon as they are
complete, so that after the first piece the delay of a hop costs nothing.

What is sent in a step was received and added in the step before. Every round is checked, and its
times are written to FILE as JSON lines.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

import numpy as np

MB = 1_000_000
PIECE = 16384  # elements
CONNECT_S = 30.0
Vector = np.ndarray[Any, np.dtype[np.float32]]


def cuts(count: int, parts: int) -> list[slice]:
    """Return `parts` slices that divide `count` elements as evenly as can be."""
    at = [k * count // parts for k in range(parts + 1)]
    return [slice(a, b) for a, b in pairwise(at)]


def pieces(block: slice) -> list[slice]:
    """Return a block in pieces of `PIECE` elements."""
    starts = range(block.start, block.stop, PIECE)
    return [slice(k, min(k + PIECE, block.stop)) for k in starts]


class Member:
    """Node number `rank` of `count`, with the connections to the next and from the one before."""

    def __init__(self, rank: int, count: int, to: socket.socket, back: socket.socket) -> None:
        self._rank = rank
        self._count = count
        self._to = to
        self._back = back
        self._spare = np.empty(PIECE, np.float32)
        self._ready = asyncio.Semaphore(0)  # number of pieces that may be sent

    async def reduce(self, data: Vector) -> None:
        """Replace `data` by the sum of all members' data."""
        blocks = [pieces(cut) for cut in cuts(len(data), self._count)]
        for _ in blocks[self._rank]:
            self._ready.release()
        await asyncio.gather(self._send(data, blocks), self._receive(data, blocks))

    def close(self) -> None:
        """Close both connections."""
        self._to.close()
        self._back.close()

    async def _send(self, data: Vector, blocks: Sequence[Sequence[slice]]) -> None:
        loop = asyncio.get_running_loop()
        for step in range(2 * (self._count - 1)):
            for piece in blocks[(self._rank - step) % self._count]:
                await self._ready.acquire()
                await loop.sock_sendall(self._to, data[piece].data.cast("B"))

    async def _receive(self, data: Vector, blocks: Sequence[Sequence[slice]]) -> None:
        steps = 2 * (self._count - 1)
        for step in range(steps):
            adds = step < self._count - 1
            for piece in blocks[(self._rank - step - 1) % self._count]:
                target = self._spare[: piece.stop - piece.start] if adds else data[piece]
                await self._fill(target.data.cast("B"))
                if adds:
                    data[piece] += target
                if step < steps - 1:
                    self._ready.release()

    async def _fill(self, room: memoryview) -> None:
        loop = asyncio.get_running_loop()
        while room:
            count = await loop.sock_recv_into(self._back, room)
            if not count:
                raise ConnectionError("the member before has gone")
            room = room[count:]


async def connect(rank: int, addresses: Sequence[tuple[str, int]]) -> Member:
    """Return this member, once its neighbours in the ring are there."""
    loop = asyncio.get_running_loop()
    after = addresses[(rank + 1) % len(addresses)]
    async with asyncio.timeout(CONNECT_S):
        with socket.create_server(addresses[rank]) as listener:
            listener.setblocking(False)
            to = await _dial(after)
            back, _ = await loop.sock_accept(listener)
    back.setblocking(False)
    to.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Member(rank, len(addresses), to, back)


async def _dial(address: tuple[str, int]) -> socket.socket:
    loop = asyncio.get_running_loop()
    while True:
        to = socket.socket()
        to.setblocking(False)
        try:
            await loop.sock_connect(to, address)
            return to
        except OSError:
            to.close()
            await asyncio.sleep(0.05)


async def work(args: argparse.Namespace, out: TextIO) -> None:
    """Do all rounds; write a line for each."""
    count = len(args.addresses.split(","))
    addresses = [(address, args.port) for address in args.addresses.split(",")]
    member = await connect(args.rank, addresses)
    data = np.empty(int(args.mb * MB) // 4, np.float32)
    for _ in range(args.rounds):
        data.fill(args.rank + 1)
        began = time.time()
        await member.reduce(data)
        ended = time.time()
        right = bool((data == count * (count + 1) / 2).all())
        line = {"began": began, "ended": ended, "right": right}
        print(json.dumps(line), file=out, flush=True)


def main() -> int:
    """Run one member."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--addresses", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--mb", type=float, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    with Path(args.out).open("w") as out:
        asyncio.run(work(args, out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
