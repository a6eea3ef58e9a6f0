"""The interpreter that the agent runs in: its event loop, and how it frees memory."""

from __future__ import annotations

import asyncio
import gc

from edgeagent.transport.malloc import tune_malloc

SWEEP_SECONDS = 1.0  # after the end of a link, by when its tasks have ended


class Sweeper:
    """Frees the memory that a link leaves behind when it ends.

    This is half a megabyte of buffers in reference cycles, made of too few objects for the garbage
    collector to start by itself.
    """

    def __init__(self) -> None:
        self._due = False

    def soon(self) -> None:
        """Free memory in a moment, once for all links that end until then."""
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        self._due = False
        gc.collect()


def agent_runner() -> asyncio.Runner:
    """Return the runner for the agent's event loop, which is uvloop's if that is installed.

    Everything imported so far stays in use, so the garbage collector need not look at it. If it
    were counted, full collections would be so rare that the buffers of ended links, which lie in
    reference cycles, would pile up for minutes.
    """
    tune_malloc()
    gc.freeze()
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)
