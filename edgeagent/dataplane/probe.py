"""A probe: so many bytes at once over a link that its receiver can measure it.

Law: bounded in bytes and in time, and little of it waits at any moment, so that what is sent
meanwhile is not held up for long. The content means nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from protocols import limits
from protocols.bulk import BulkHeader, BulkKind

if TYPE_CHECKING:
    from edgeagent.transport.api import Link

LOOK_SECONDS = 0.002  # how often is looked whether more can be sent
NO_LINEAGE = bytes(limits.LINEAGE_BYTES)

_payload = memoryview(bytes(limits.PROBE_FRAME_BYTES))


async def probe(link: Link) -> None:
    """Send at most `limits.MAX_PROBE_BYTES`, for at most `limits.MAX_PROBE_SECONDS`."""
    loop = asyncio.get_running_loop()
    end = loop.time() + limits.MAX_PROBE_SECONDS
    frames = limits.MAX_PROBE_BYTES // limits.PROBE_FRAME_BYTES
    for index in range(frames):
        while link.bulk_queued > limits.PROBE_FRAME_BYTES:
            await asyncio.sleep(LOOK_SECONDS)
            if loop.time() >= end:
                return
        size = limits.PROBE_FRAME_BYTES
        link.send_bulk(BulkHeader(BulkKind.PROBE, NO_LINEAGE, 0, 0, 0, 0, index, size), _payload)
