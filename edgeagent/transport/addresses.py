"""Notices that this device's addresses have changed: Wi-Fi came up, a cable was pulled, or the
device is in another network.

The list of addresses is read every few seconds. This costs a fraction of a millisecond and works on
every system, whereas notifications differ from system to system. If the list cannot be read, it
counts as unchanged.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from edgeagent.transport import bounds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


async def watch_addresses(
    look: Callable[[], tuple[str, ...]],
    changed: Callable[[tuple[str, ...]], Awaitable[None]],
    seconds: float = bounds.ADDRESS_SECONDS,
) -> None:
    """Call `changed` with the result of `look` whenever it has changed, until cancelled.

    `seconds` lie between two looks.
    """
    known = look()
    while True:
        await asyncio.sleep(seconds)
        try:
            found = look()
        except OSError:
            continue
        if found != known:
            known = found
            await changed(found)
