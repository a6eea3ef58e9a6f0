"""Joins beside the training: snapshots and updates that are kept for joiners, and updates that a
joiner receives.

A snapshot is a copy of what changes of the state in memory of this process
(`dataplane/snapshot.py`), made in a thread, so that neither the event loop nor the page cache of
the system is kept busy with it. An update travels as the bytes of R, followed by the sum
of squares of each chunk as float64, because the clipping of gradients needs these sums exactly as
the root has computed them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
from typing import TYPE_CHECKING, Any, assert_never

import numpy as np

from edgeagent.dataplane.snapshot import Snapshot, private_memory, take_snapshot
from edgeagent.memory import room
from edgeagent.shell.update_file import UpdateFile
from protocols import effects, events, limits
from protocols.errors import RemoteProtocolError
from protocols.member.copies import update_part_bytes
from protocols.rounds.control_word import decode_word
from protocols.rounds.word_check import check_word
from protocols.wire.bulk import BulkHeader, BulkKind

if TYPE_CHECKING:
    from edgeagent import handover
    from edgeagent.dataplane.reduce import Vector
    from edgeagent.search import Spawn
    from edgeagent.shell.hub import Hub
    from edgeagent.shell.peers import Peers
    from edgeagent.shell.rounds import Rounds
    from edgeagent.transport.api import Link
    from protocols.wire.messages import UpdateRecord

# An update is kept only if so much memory is free besides, for everything else on the device.
LEAST_FREE_BYTES = 128 << 20


def leaves_of(data: memoryview) -> tuple[bytes, ...]:
    """Return the SHA-256 of each part of an update."""
    size = update_part_bytes(len(data))
    return tuple(hashlib.sha256(data[k : k + size]).digest() for k in range(0, len(data), size))


class Copies:
    """What one agent keeps for joiners, and the updates that it receives as one. `state` is the
    training state in shared memory, and `hello` says how much of it never changes."""

    def __init__(
        self,
        hub: Hub,
        peers: Peers,
        rounds: Rounds,
        hello: handover.Hello,
        state: memoryview,
        spawn: Spawn,
    ) -> None:
        self._hub = hub
        self._peers = peers
        self._reducer = rounds.reducer
        self._shape = rounds.shape
        self._state = state
        self._constant_bytes = hello.constant_bytes
        self._spawn = spawn
        self._dtype = rounds.contribution.dtype
        self._vector_bytes = rounds.contribution.nbytes
        # What a joiner receives of each update.
        self.update_bytes = self._vector_bytes + 8 * (self._reducer.chunks - 1)
        self._snapshots: dict[int, Snapshot] = {}
        self._updates: dict[int, memoryview] = {}  # as a source
        self._logging: dict[int, None] = {}  # iterations of which R is being copied
        self._incoming: dict[int, UpdateFile] = {}  # as a joiner
        # Source -> (iteration, part), and what has come of it so far.
        self._aside: dict[bytes, tuple[tuple[int, int], memoryview]] = {}

    def forget(self) -> None:
        """Free everything: it was kept for the node before, and is of no use to another."""
        self._snapshots.clear()
        self._updates.clear()
        self._logging.clear()
        self._incoming.clear()
        self._aside.clear()

    def perform(self, effect: effects.CopyEffect) -> None:
        """Perform `effect`."""
        match effect:
            case effects.TakeSnapshot(iteration):
                self._spawn(self._take(iteration))
            case effects.DropSnapshot(iteration):
                self._snapshots.pop(iteration, None)
            case effects.LogUpdate(iteration):
                self._logging[iteration] = None
                reducer = self._reducer
                sections, squares = reducer.memory.pin(iteration), reducer.squares(iteration)
                self._spawn(self._log(iteration, sections, squares))
            case effects.DropUpdates(before):
                self._updates = {i: u for i, u in self._updates.items() if i >= before}
                self._incoming = {i: u for i, u in self._incoming.items() if i >= before}
                self._logging = {i: None for i in self._logging if i >= before}
            case effects.SendUpdate():
                self._send(effect)
            case _:
                assert_never(effect)

    def snapshot(self, iteration: int) -> Snapshot | None:
        """Return the snapshot of `iteration`, None if there is none any more."""
        return self._snapshots.get(iteration)

    # --- as a source ------------------------------------------------------------------------------

    async def _take(self, iteration: int) -> None:
        """Copy the state, which does not change before the answer. The node may be another one by
        then, whose snapshots these are not."""
        node = self._hub.node
        # A snapshot is worth nothing to a joiner that does not get the updates after it as well.
        updates = LEAST_FREE_BYTES + limits.LEAST_LOGGED_UPDATES * self.update_bytes
        taken = await asyncio.to_thread(take_snapshot, self._state, self._constant_bytes, updates)
        if self._hub.node is not node:
            return
        if taken is not None:
            self._snapshots[iteration] = taken
        self._hub.handle(events.SnapshotTaken(iteration, taken is not None))

    async def _log(
        self, iteration: int, sections: tuple[Vector, ...], squares: tuple[float, ...]
    ) -> None:
        """Keep R of `iteration`, whose `sections` are pinned. That nothing is kept if memory is
        short costs a joiner its copy, and spares the training."""
        node, free = self._hub.node, room().free
        kept: memoryview | None = None
        if free is None or free >= LEAST_FREE_BYTES + self.update_bytes:
            with contextlib.suppress(OSError, MemoryError):
                kept = await asyncio.to_thread(_update, sections, squares, self._dtype)
        self._reducer.memory.unpin(iteration)
        if self._hub.node is node:  # nobody who trains waits for the digests
            self._hub.handle(events.UpdateCopied(iteration))
        leaves = await asyncio.to_thread(leaves_of, kept) if kept is not None else ()
        if self._hub.node is not node:
            return
        if kept is not None and iteration in self._logging:
            self._updates[iteration] = kept
        self._logging.pop(iteration, None)
        self._hub.handle(events.UpdateLogged(iteration, leaves))

    def _send(self, wanted: effects.SendUpdate) -> None:
        whole, node = self._updates.get(wanted.iteration), self._hub.node
        if whole is None or node is None:
            return
        size, lineage = update_part_bytes(len(whole)), node.context.lineage
        for part in wanted.parts:
            payload = whole[part * size : (part + 1) * size]
            header = BulkHeader(
                BulkKind.UPDATE,
                lineage,
                0,
                0,
                wanted.iteration,
                0,
                part,
                len(payload),
                reference=wanted.join,
            )
            self._peers.send_bulk(wanted.joiner, header, payload)

    # --- as a joiner ------------------------------------------------------------------------------

    def check(self, record: UpdateRecord) -> None:
        """Raise `RemoteProtocolError` unless the control word in `record` fits this job."""
        word = decode_word(record.word)
        check_word(word, self._shape)
        if int.from_bytes(word.done, "little") != (1 << self._shape.micro_batches) - 1:
            raise RemoteProtocolError("an update that lacks micro-batches")

    def arriving(self, source: bytes, header: BulkHeader) -> memoryview | None:
        """Return where a part of an update is received, None if it is not wanted. Raises
        `RemoteProtocolError` if it has the wrong length. It lies aside until all of it has come:
        meanwhile it may be asked for elsewhere, and be verified here."""
        joining = self._hub.node.joining if self._hub.node is not None else None
        if joining is None or header.reference != joining.number:
            return None
        if not joining.expects_update(source, header.iteration, header.index):
            return None
        length = len(self._part(header))
        if length != header.length or not length:
            raise RemoteProtocolError("a part of an update of the wrong length")
        aside = memoryview(bytearray(length))
        self._aside[source] = (header.iteration, header.index), aside
        return aside

    def received(self, link: Link, header: BulkHeader) -> None:
        """Tell the node the digest of the part that has arrived."""
        source = link.peer.node
        key, aside = self._aside.pop(source, ((-1, -1), memoryview(b"")))
        joining = self._hub.node.joining if self._hub.node is not None else None
        if joining is None or key != (header.iteration, header.index):
            return
        if not joining.expects_update(source, header.iteration, header.index):
            return
        self._part(header)[:] = aside
        digest = hashlib.sha256(aside).digest()
        rate = link.incoming_rate
        self._hub.handle(events.UpdateArrived(source, header.iteration, header.index, digest, rate))

    def update(self, iteration: int) -> tuple[Vector, tuple[float, ...]] | None:
        """Return (R of `iteration`, the sum of squares of each of its data chunks) if this device
        has received it as a joiner, and free it afterwards; None if it has not."""
        received = self._incoming.pop(iteration, None)
        if received is None:
            return None
        data = received.whole()
        vector = np.frombuffer(data[: self._vector_bytes], self._dtype)
        squares = np.frombuffer(data[self._vector_bytes :], "<f8")
        # No sum of squares is negative. One that is counts as not finite, so that the update is
        # skipped here, and the state differs from that of others, as after any other wrong update.
        return vector, tuple(float(x) if not x < 0.0 else math.nan for x in squares)

    def _part(self, header: BulkHeader) -> memoryview:
        file = self._incoming.get(header.iteration)
        if file is None:
            size = self.update_bytes
            file = self._incoming[header.iteration] = UpdateFile(size, update_part_bytes(size))
        return file.part(header.index)


def _update(
    sections: tuple[Vector, ...], squares: tuple[float, ...], dtype: np.dtype[Any]
) -> memoryview:
    """Return an update as it travels. `sections`: R, in pieces."""
    size = sum(map(len, sections)) * dtype.itemsize
    copied = private_memory(size + 8 * len(squares))
    np.concatenate(sections, out=np.frombuffer(copied[:size], dtype))
    copied[size:] = np.asarray(squares, "<f8").tobytes()
    return copied
