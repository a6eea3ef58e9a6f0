"""A probe: enough bytes at once over a link for its receiver to measure the link's rate.

A probe is bounded in bytes and in time. Only little of it waits on this device at any moment, so
that messages sent meanwhile are not delayed for long, and so that a slow link is not busy with the
rest of a probe for seconds. How much may wait begins small and doubles whenever all of it was sent
between two looks, because a fast link would otherwise run dry between them and seem slow. The
receiver ignores the content.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from protocols import limits
from protocols.network.monitor import probe_seconds
from protocols.wire.bulk import BulkHeader, BulkKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeagent.transport.api import Link

LOOK_SECONDS = 0.002  # how often a probe checks whether the link can take more
FIRST_WAITING_BYTES = 32 << 10  # may wait on this device when a probe begins
# May wait at most. It lasts 2 ms at 8 Gbit/s; a receiver counts 1 MiB behind the first 256 KiB of
# what comes without a gap, so with less a link of some Gbit/s would never be measured.
MOST_WAITING_BYTES = 2 << 20
# A probe goes on for so many looks whatever time they take: on a busy machine they are far apart,
# and the receiver would get too little to measure anything.
LEAST_LOOKS = 10
# It goes on until so much of it was handed to the system, too, but no longer than so many seconds.
# A receiver does not count the first 32 KiB, nor the frames in which these end and the rest begins,
# and of the rest it needs `METER_LEAST_BYTES`: less would not show it the rate of a slow link.
LEAST_BYTES = 7 * limits.PROBE_FRAME_BYTES
LEAST_BYTES_SECONDS = 2.0
SENT_SHARE = 4  # all counts as sent if less than this part of what may wait still waits
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
    """Send at most `limits.MAX_PROBE_BYTES`, for `limits.MAX_PROBE_SECONDS` plus some round trips,
    or for `LEAST_LOOKS`, or until `LEAST_BYTES` are sent.

    `delay_s` is the one-way delay in seconds (`monitor.probe_seconds`).
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    end, last = began + probe_seconds(delay_s), began + LEAST_BYTES_SECONDS
    size = limits.PROBE_FRAME_BYTES
    looks, may_wait = 0, FIRST_WAITING_BYTES
    left = deque(range(limits.MAX_PROBE_BYTES // size))
    while True:
        waiting = link.bulk_waiting
        while left and waiting < may_wait:
            header = BulkHeader(BulkKind.PROBE, NO_LINEAGE, 0, 0, 0, 0, left.popleft(), size)
            link.send_bulk(header, _payload)
            waiting += size
        await asyncio.sleep(LOOK_SECONDS)
        looks += 1
        sent = limits.MAX_PROBE_BYTES - len(left) * size
        enough = sent >= LEAST_BYTES or loop.time() >= last
        if not left or (enough and looks >= LEAST_LOOKS and loop.time() >= end):
            return
        if link.bulk_waiting < may_wait // SENT_SHARE:
            may_wait = min(2 * may_wait, MOST_WAITING_BYTES)
