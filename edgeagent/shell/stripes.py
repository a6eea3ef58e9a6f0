"""The optimizer's slots that this device keeps, as they move between devices.

A holder sends the slots of a stripe, chunk by chunk, to the member that learns it
(`protocols/member/learning.py`). They arrive where they belong, since the trainer uses those of a
learner only from the update of that iteration on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from edgeagent.held_memory import ITEM_BYTES, HeldLayout
from protocols import effects, events
from protocols.errors import RemoteProtocolError
from protocols.wire.bulk import BulkHeader, BulkKind

if TYPE_CHECKING:
    from edgeagent import handover
    from edgeagent.shared_memory import SharedMemory
    from edgeagent.shell.hub import Hub
    from edgeagent.shell.peers import Peers
    from edgeagent.transport.api import Link


class Stripes:
    """Both ends of the transfer of slots. `hello` and `memory` are those of the trainer."""

    def __init__(self, hub: Hub, peers: Peers, hello: handover.Hello, memory: SharedMemory) -> None:
        self._hub = hub
        self._peers = peers
        self.layout = HeldLayout(hello.slots, hello.elements, hello.chunk_elements)
        self._region = memory.held
        self._memory = memory.held.array("float32")
        self._missing: dict[tuple[int, int], set[tuple[int, int]]] = {}  # (iteration, stripe)
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

    def perform(self, effect: effects.StripeEffect) -> None:
        """Perform `effect`."""
        match effect:
            case effects.LendStripes(learner, iteration, stripes):
                for stripe in stripes:
                    self._lend(learner, iteration, stripe)
            case _:
                assert_never(effect)

    def _lend(self, learner: bytes, iteration: int, stripe: int) -> None:
        node, layout = self._hub.node, self.layout
        lineage = node.context.lineage if node is not None else b""
        for chunk in layout.chunks_of(stripe):
            for slot in range(layout.slots):
                payload = memoryview(self._memory[layout.slot(slot, chunk)].tobytes())
                at = (0, 0, iteration, 0, chunk, len(payload))
                header = BulkHeader(BulkKind.SLOT, lineage, *at, reference=slot)
                self._peers.send_bulk(learner, header, payload)

    def arriving(self, source: bytes, header: BulkHeader) -> memoryview | None:
        """Return where a chunk of a slot belongs, None if it is not wanted. Raises
        `RemoteProtocolError` if it cannot be one."""
        layout, chunk = self.layout, header.index
        if not self._expects(source, header):
            return None
        if not 0 < chunk <= layout.chunks or header.reference >= layout.slots:
            raise RemoteProtocolError("a chunk of no slot")
        target = self._memory[layout.slot(header.reference, chunk)]
        if target.nbytes != header.length:
            raise RemoteProtocolError("a chunk of a slot of the wrong length")
        return target.data.cast("B")

    def received(self, link: Link, header: BulkHeader) -> None:
        """Tell the node once a whole stripe has come."""
        if not self._expects(link.peer.node, header):
            return
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
