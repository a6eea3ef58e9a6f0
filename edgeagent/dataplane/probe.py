"""A probe: so many bytes at once over a link that its receiver can measure it.

Law: bounded in bytes and in time, and little of it is on its way at any moment, so that what is
sent meanwhile, or right after it, is not held up for long. The content means nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from protocols import limits
from protocols.bulk import BulkHeader, BulkKind

if TYPE_CHECKING:
    from edgeagent.transport.api import Link

LOOK_SECONDS = 0.001  # how often is looked whether more can be sent
FIRST_BYTES = 2 * limits.PROBE_FRAME_BYTES  # on their way before anything is known of the link,
AHEAD_SECONDS = 0.08  # then what it has shown to carry in this time
UNSEEN_BYTES = 256 << 10  # may be in buffers between our queue and the kernel's
NO_LINEAGE = bytes(limits.LINEAGE_BYTES)

_payload = memoryview(bytes(limits.PROBE_FRAME_BYTES))


def room(sent: int, in_flight: int, seconds: float) -> int:
    """Return how many bytes more may be sent by a probe that has sent so many so far."""
    arrived = max(0, sent - in_flight - UNSEEN_BYTES)
    rate = arrived / seconds if seconds > 0 else 0.0
    return int(max(FIRST_BYTES, rate * AHEAD_SECONDS)) - in_flight


class Prober:
    """Sends one probe at a time: two would share our uplink, and neither show what it carries."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def probe(self, link: Link) -> None:
        """Probe `link` when its turn comes."""
        async with self._turn:
            await probe(link)


async def probe(link: Link) -> None:
    """Send at most `limits.MAX_PROBE_BYTES`, for at most `limits.MAX_PROBE_SECONDS`."""
    loop = asyncio.get_running_loop()
    began, size = loop.time(), limits.PROBE_FRAME_BYTES

    def is_full(sent: int) -> bool:
        waits = link.bulk_queued > size
        return waits or room(sent, link.bulk_in_flight, loop.time() - began) < size

    for index in range(limits.MAX_PROBE_BYTES // size):
        while is_full(index * size):
            await asyncio.sleep(LOOK_SECONDS)
            if loop.time() - began >= limits.MAX_PROBE_SECONDS:
                return
        link.send_bulk(BulkHeader(BulkKind.PROBE, NO_LINEAGE, 0, 0, 0, 0, index, size), _payload)
