"""Memory of links is freed a moment after they have ended."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import TYPE_CHECKING

from edgeagent import runtime

if TYPE_CHECKING:
    import pytest


class Knot:
    """Refers to itself, so that counting references never frees it."""

    def __init__(self) -> None:
        self.me = self


def test_knots_are_freed_once_for_all_links_that_end_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sweeps: list[int] = []
    collect = gc.collect
    monkeypatch.setattr(runtime, "SWEEP_SECONDS", 0.0)
    monkeypatch.setattr(gc, "collect", lambda: sweeps.append(collect()))

    async def body() -> None:
        freed = asyncio.Event()
        knot = Knot()
        weakref.finalize(knot, freed.set)
        del knot
        sweeper = runtime.Sweeper()
        for _ in range(5):
            sweeper.soon()
        async with asyncio.timeout(20.0):
            await freed.wait()
        assert len(sweeps) == 1
        sweeper.soon()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(sweeps) == 2

    gc.disable()
    try:
        asyncio.run(body())
    finally:
        gc.enable()
