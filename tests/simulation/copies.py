"""What a simulated device keeps and receives for joins beside the training.

A snapshot is taken over some time, and must not change meanwhile. An update travels as bytes that
repeat the sum of an iteration, in several parts, together with the attempts that have made it.
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING

from protocols import effects, events
from protocols.member.copies import update_part_bytes, update_parts
from tests.simulation.narrow import LARGE_FRAME

if TYPE_CHECKING:
    from tests.simulation.host import Host

# How many bytes a joiner receives of one update: so many that it has several parts.
UPDATE_BYTES = 64 << 10
NUMBER_BYTES = 16  # of one element of a sum
# How probable it is that a device has no memory for snapshots, and that it has none for an update.
SELDOM, VERY_SELDOM = 0.1, 0.01

Made = tuple[tuple[int, tuple[object, ...]], ...]


def encoded(total: list[int]) -> bytes:
    """Return the bytes of an update whose sum is `total`."""
    whole = b"".join(x.to_bytes(NUMBER_BYTES, "little") for x in total)
    return whole * (UPDATE_BYTES // len(whole))


def decoded(data: bytes, elements: int) -> list[int]:
    """Return the sum that `data` repeats; it must repeat nothing else."""
    ends = range(0, elements * NUMBER_BYTES, NUMBER_BYTES)
    total = [int.from_bytes(data[k : k + NUMBER_BYTES], "little") for k in ends]
    assert data == encoded(total), "a torn update"
    return total


class CopyStore:
    """What `host` keeps for joiners, and what it receives as one."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.snapshots: dict[int, bytes] = {}
        self.updates: dict[int, bytes] = {}  # as a source
        self._logging: dict[int, None] = {}  # iterations of which R is being copied
        self._parts: dict[int, dict[int, bytes]] = {}  # as a joiner: iteration -> part -> bytes
        self._made: dict[int, Made] = {}
        # Whether there is too little memory for a snapshot.
        self.is_full = self._is_unlucky(SELDOM)

    def _is_unlucky(self, chance: float) -> bool:
        world = self._host.world
        return world.memory_is_short and world.random.random() < chance

    def forget(self) -> None:
        """Free everything, since another node begins in this process."""
        self.__init__(self._host)  # type: ignore[misc]

    def perform(self, effect: effects.CopyEffect) -> None:
        """Perform `effect`."""
        host = self._host
        match effect:
            case effects.TakeSnapshot(iteration):
                before = host.flat
                host.soon(host.world.compute(), partial(self._take, iteration, before))
            case effects.DropSnapshot(iteration):
                del self.snapshots[iteration]
            case effects.LogUpdate(iteration):
                self._logging[iteration] = None
                host.soon(host.world.compute(), partial(self._log, iteration))
            case effects.DropUpdates(before):
                self.updates = {i: u for i, u in self.updates.items() if i >= before}
                self._logging = {i: None for i in self._logging if i >= before}
                self._parts = {i: p for i, p in self._parts.items() if i >= before}
            case effects.SendUpdate():
                self._send(effect)

    def _take(self, iteration: int, before: bytes) -> None:
        assert self._host.flat == before, "the state changed while a snapshot was taken"
        if not self.is_full:
            self.snapshots[iteration] = before
        self._host.handle(events.SnapshotTaken(iteration, not self.is_full))

    def _log(self, iteration: int) -> None:
        """Copy an update, the memory of which is used again when the next one has been applied, and
        say so; later say what its digests are. Memory may be short."""
        host = self._host
        leaves: tuple[bytes, ...] = ()
        if iteration in self._logging and not self._is_unlucky(VERY_SELDOM):
            assert host.node is not None
            assert host.node.context.iteration <= iteration + 1, "R was overwritten while copied"
            data = self.updates[iteration] = encoded(host.sums[iteration])
            size = update_part_bytes(UPDATE_BYTES)
            pieces = [data[k : k + size] for k in range(0, len(data), size)]
            leaves = tuple(hashlib.sha256(p).digest() for p in pieces)
        self._logging.pop(iteration, None)
        host.handle(events.UpdateCopied(iteration))
        logged = partial(host.handle, events.UpdateLogged(iteration, leaves))
        host.soon(host.world.compute(), logged)

    def _send(self, wanted: effects.SendUpdate) -> None:
        host, size, at = self._host, update_part_bytes(UPDATE_BYTES), wanted.iteration
        me, made = host.me.node, host.made.get(at, ())
        for part in wanted.parts:
            piece = self.updates[at][part * size : (part + 1) * size]
            piece = host.world.tamper(host, part, piece)
            host.world.stream(
                host,
                wanted.joiner,
                lambda other, part=part, piece=piece: other.copies.arrived(  # type: ignore[misc]
                    me, at, part, piece, made
                ),
                LARGE_FRAME,
            )

    def arrived(self, source: bytes, iteration: int, part: int, piece: bytes, made: Made) -> None:
        """Take in a part of an update."""
        host = self._host
        if host.asleep:
            host.waiting.append(partial(self.arrived, source, iteration, part, piece, made))
            return
        joining = host.node.joining if host.gone is None and host.node is not None else None
        if joining is None or not joining.expects_update(source, iteration, part):
            return
        self._parts.setdefault(iteration, {})[part] = piece
        self._made[iteration] = made
        digest = hashlib.sha256(piece).digest()
        host.handle(events.UpdateArrived(source, iteration, part, digest))

    def use(self, iteration: int) -> None:
        """Make the parts of an update that have come in the sum of `iteration`."""
        host, parts = self._host, self._parts.pop(iteration, None)
        if parts is None:
            return
        assert len(parts) == update_parts(UPDATE_BYTES), "an update that is not here whole"
        data = b"".join(parts[k] for k in sorted(parts))
        host.sums[iteration] = decoded(data, len(host.state))
        host.made[iteration] = self._made.pop(iteration)
