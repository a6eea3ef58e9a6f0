"""A probe: enough bytes at once over a link for its receiver to measure the link's rate.

A probe is bounded in bytes and in time. Only little of it is queued on the link at any moment, so
that messages sent meanwhile are not delayed for long. The receiver ignores its content.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from protocols import limits
from protocols.network.monitor import probe_seconds
from protocols.wire.bulk import BulkHeader, BulkKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeagent.transport.api import Link

LOOK_SECONDS = 0.002  # how often a probe checks whether the link can take another frame
NO_LINEAGE = bytes(limits.LINEAGE_BYTES)  # a probe belongs to no round of any cluster

_payload = memoryview(bytes(limits.PROBE_FRAME_BYTES))


class Prober:
    """Sends one probe at a time: two at once would share this device's uplink, so that neither
    would show what its own link can carry."""

    def __init__(self, delay: Callable[[bytes], float | None]) -> None:
        """`delay` returns the one-way delay to a node in seconds, None while it is not known."""
        self._delay = delay
        self._turn = asyncio.Lock()

    async def probe(self, link: Link) -> None:
        """Probe `link` as soon as no other probe is being sent."""
        async with self._turn:
            await probe(link, self._delay(link.peer.node) or 0.0)


async def probe(link: Link, delay_s: float) -> None:
    """Send at most `limits.MAX_PROBE_BYTES`, for at most `limits.MAX_PROBE_SECONDS` plus some round
    trips.

    `delay_s` is the one-way delay in seconds (`monitor.probe_seconds`).
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + probe_seconds(delay_s)
    size = limits.PROBE_FRAME_BYTES
    for index in range(limits.MAX_PROBE_BYTES // size):
        while link.bulk_queued > size:
            await asyncio.sleep(LOOK_SECONDS)
            if loop.time() >= end:
                return
        link.send_bulk(BulkHeader(BulkKind.PROBE, NO_LINEAGE, 0, 0, 0, 0, index, size), _payload)
