"""A probe: enough bytes at once over a link for its receiver to measure it.

A probe is bounded in bytes and in time. Only little of it waits on the link at any moment, so that
what is sent meanwhile is not held up for long. Its content means nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from protocols import limits
from protocols.wire.bulk import BulkHeader, BulkKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeagent.transport.api import Link

LOOK_SECONDS = 0.002  # how often is looked whether more can be sent
NO_LINEAGE = bytes(limits.LINEAGE_BYTES)

_payload = memoryview(bytes(limits.PROBE_FRAME_BYTES))


class Prober:
    """Sends one probe at a time: two would share our uplink, and neither show what it carries."""

    def __init__(self, delay: Callable[[bytes], float | None]) -> None:
        """`delay` tells the one-way delay to a node in seconds, None while it is not known."""
        self._delay = delay
        self._turn = asyncio.Lock()

    async def probe(self, link: Link) -> None:
        """Probe `link` when its turn comes."""
        async with self._turn:
            await probe(link, self._delay(link.peer.node) or 0.0)


async def probe(link: Link, delay_s: float) -> None:
    """Send at most `limits.MAX_PROBE_BYTES`, for at most `limits.MAX_PROBE_SECONDS` and some round
    trips of twice `delay_s`."""
    loop = asyncio.get_running_loop()
    seconds = limits.MAX_PROBE_SECONDS + limits.PROBE_ROUND_TRIPS * 2 * delay_s
    end = loop.time() + min(seconds, limits.MOST_PROBE_SECONDS)
    size = limits.PROBE_FRAME_BYTES
    for index in range(limits.MAX_PROBE_BYTES // size):
        while link.bulk_queued > size:
            await asyncio.sleep(LOOK_SECONDS)
            if loop.time() >= end:
                return
        link.send_bulk(BulkHeader(BulkKind.PROBE, NO_LINEAGE, 0, 0, 0, 0, index, size), _payload)
