"""The optimizer's slots that this device keeps, as they move between devices.

A holder sends the slots of a stripe, chunk by chunk, to the member that learns it
(`protocols/member/learning.py`). They are copied, because the trainer steps them with the next
update: in pieces, between which other events are handled, and that update is not sent to the
trainer before all of them are copied (`lending`).

A chunk that arrives is put in its place once it is whole, and only if it is wanted still. A fence
may have ended the learning meanwhile. Then the member may have got those slots from another holder
and stepped them, and what was on its way would make them old again. While the trainer lacks
updates, in which it may step older slots of the same stripe, a chunk waits beside them until the
update that it belongs to is sent to the trainer. So it does while the trainer has still to step
slots with the last update (`owed_steps.py`), before which none are copied either.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, assert_never

from edgeagent.held_memory import ITEM_BYTES, HeldLayout
from protocols import effects, events
from protocols.errors import RemoteProtocolError
from protocols.wire.bulk import BulkHeader, BulkKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edgeagent import handover
    from edgeagent.shared_memory import SharedMemory
    from edgeagent.shell.hub import Hub
    from edgeagent.shell.owed_steps import OwedSteps
    from edgeagent.shell.owner import Owner
    from edgeagent.shell.peers import Peers
    from edgeagent.transport.api import Link


# So many bytes of slots are copied before other events are handled.
PIECE_BYTES = 4 << 20


class Stripes:
    """Both ends of the transfer of slots. `hello` and `memory` are those of the trainer."""

    def __init__(
        self,
        hub: Hub,
        peers: Peers,
        hello: handover.Hello,
        memory: SharedMemory,
        owner: Owner,
        owed: OwedSteps,
    ) -> None:
        self._owed = owed
        self._hub = hub
        self._peers = peers
        self._spawn = owner.spawn
        self._lending: asyncio.Task[None] | None = None
        self._coming: dict[bytes, tuple[BulkHeader, memoryview]] = {}  # from whom -> a chunk
        self.layout = HeldLayout(hello.slots, hello.elements, hello.chunk_elements)
        self._region = memory.held
        self._memory = memory.held.array("float32")
        self._missing: dict[tuple[int, int], set[tuple[int, int]]] = {}  # (iteration, stripe)
        # Iteration -> (chunk, slot) -> what is to be put there before its update is sent.
        self._later: dict[int, dict[tuple[int, int], memoryview]] = {}
        self._here: set[int] = set(range(self.layout.stripes)) if hello.slots else set()

    @property
    def count(self) -> int:
        """Into how many stripes the slots are divided, 0 if they are not."""
        return self.layout.stripes if self.layout.slots else 0

    @property
    def stripe_bytes(self) -> int:
        """The size of the slots of one stripe."""
        layout = self.layout
        return layout.slots * layout.elements * ITEM_BYTES // max(1, layout.stripes)

    def forget(self) -> None:
        """Drop what is on its way to the node before."""
        self._missing.clear()
        self._coming.clear()
        self._later.clear()

    @property
    def lending(self) -> asyncio.Task[None] | None:
        """What still copies slots for learners, before the trainer may step them."""
        task = self._lending
        return None if task is None or task.done() else task

    def perform(self, effect: effects.StripeEffect) -> None:
        """Perform `effect`."""
        match effect:
            case effects.LendStripes(learner, iteration, stripes):
                chunks = [c for s in stripes for c in self.layout.chunks_of(s)]
                parts = iter([(c, slot) for c in chunks for slot in range(self.layout.slots)])
                before = [x for x in (self.lending, self._owed.wait(decides=False)) if x]
                if before or not self._lend(learner, iteration, parts):
                    work = self._lend_all(self._hub.node, before, learner, iteration, parts)
                    self._lending = self._spawn(work)
            case _:
                assert_never(effect)

    async def _lend_all(
        self,
        node: object,
        before: Iterable[asyncio.Future[None]],
        learner: bytes,
        iteration: int,
        parts: Iterable[tuple[int, int]],
    ) -> None:
        """Send the rest of `parts`, piece by piece, after `before`, while `node` is the one that
        runs."""
        for task in before:
            await task
        while self._hub.node is node:
            if self._lend(learner, iteration, parts):
                return
            await asyncio.sleep(0)

    def _lend(self, learner: bytes, iteration: int, parts: Iterable[tuple[int, int]]) -> bool:
        """Send `parts`, chunks and slots, until a piece is full; return whether none is left."""
        node, layout, left = self._hub.node, self.layout, PIECE_BYTES
        lineage = node.context.lineage if node is not None else b""
        for chunk, slot in parts:
            payload = memoryview(self._memory[layout.slot(slot, chunk)].tobytes())
            at = (0, 0, iteration, 0, chunk, len(payload))
            header = BulkHeader(BulkKind.SLOT, lineage, *at, reference=slot)
            self._peers.send_bulk(learner, header, payload)
            left -= len(payload)
            if left <= 0:
                return False
        return True

    def arriving(self, source: bytes, header: BulkHeader) -> memoryview | None:
        """Return a buffer for a chunk of a slot, None if it is not wanted. Raises
        `RemoteProtocolError` if it cannot be one."""
        layout, chunk = self.layout, header.index
        if not self._expects(source, header):
            return None
        if not 0 < chunk <= layout.chunks or header.reference >= layout.slots:
            raise RemoteProtocolError("a chunk of no slot")
        target = self._memory[layout.slot(header.reference, chunk)]
        if target.nbytes != header.length:
            raise RemoteProtocolError("a chunk of a slot of the wrong length")
        buffer = memoryview(bytearray(header.length))
        self._coming[source] = header, buffer
        return buffer

    def received(self, link: Link, header: BulkHeader) -> None:
        """Put a chunk in its place, if it is wanted still; tell the node once a whole stripe has
        come."""
        known, buffer = self._coming.pop(link.peer.node, (None, memoryview(b"")))
        if known is not header or not self._expects(link.peer.node, header):
            return
        place, node = (header.index, header.reference), self._hub.node
        if node is not None and (node.debt.is_stale or self._owed.step is not None):
            self._later.setdefault(header.iteration, {})[place] = buffer
        else:
            self._put(place, buffer)
        layout, stripe = self.layout, self.layout.stripe_of(header.index)
        key = (header.iteration, stripe)
        if key not in self._missing:
            every = [(c, s) for c in layout.chunks_of(stripe) for s in range(layout.slots)]
            self._missing = {k: v for k, v in self._missing.items() if k[0] == header.iteration}
            self._missing[key] = set(every)
        self._missing[key].discard((header.index, header.reference))
        self._here.add(stripe)
        if not self._missing[key]:
            del self._missing[key]
            self._hub.handle(events.StripeArrived(header.iteration, stripe))

    def _put(self, place: tuple[int, int], buffer: memoryview) -> None:
        chunk, slot = place
        self._memory[self.layout.slot(slot, chunk)].data.cast("B")[:] = buffer

    def place(self, iteration: int, stripes: tuple[int, ...]) -> None:
        """Put the slots in their place that have waited for the update of `iteration`, which is
        about to be sent to the trainer and steps the slots of `stripes`. All updates before it have
        been applied."""
        for place, buffer in self._later.pop(iteration, {}).items():
            if self.layout.stripe_of(place[0]) in stripes:
                self._put(place, buffer)
        self._later = {i: waits for i, waits in self._later.items() if i > iteration}

    def _expects(self, source: bytes, header: BulkHeader) -> bool:
        node = self._hub.node
        if node is None or not self.count:
            return False
        stripe = self.layout.stripe_of(header.index)
        return node.cycle.learning.expects(source, header.iteration, stripe)

    def applied(self, stripes: tuple[int, ...]) -> None:
        """The trainer has stepped the slots of `stripes`: free what it does not keep any more, and
        does not learn either."""
        node = self._hub.node
        if node is None or not self.count or node.debt.is_stale:
            return
        keeps = {*stripes, *node.cycle.learning.known, *node.cycle.learning.coming}
        for stripe in self._here - keeps:
            for chunk in self.layout.chunks_of(stripe):
                layout = self.layout
                parts = [layout.slot(slot, chunk) for slot in range(layout.slots)]
                for part in (*parts, layout.sums(chunk)):
                    self._region.release(ITEM_BYTES * part.start, ITEM_BYTES * part.stop)
        self._here = {*stripes, *(self._here & keeps)}
