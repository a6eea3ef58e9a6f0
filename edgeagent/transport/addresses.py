"""Noticing that this device's addresses have changed: Wi-Fi came up, a cable went, another network.

Law: the list of addresses is looked at every few seconds, which costs a fraction of a millisecond
and works on every system; nothing depends on a system's own notices. Trouble with the list is no
change.
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
    """Call `changed` with what `look` returns whenever that is something else; until cancelled."""
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
