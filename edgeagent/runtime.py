"""The interpreter that the agent runs in: its event loop, and how it frees memory.

Law: nothing here knows what the agent does.
"""

from __future__ import annotations

import asyncio
import gc

from edgeagent.transport.malloc import tune_malloc

SWEEP_SECONDS = 1.0  # after the end of a link: by then its tasks are over


class Sweeper:
    """Frees what a link leaves behind when it ends: half a megabyte of buffers that lie in
    reference cycles, too few objects to make the interpreter look for them by itself."""

    def __init__(self) -> None:
        self._due = False

    def soon(self) -> None:
        """Sweep in a moment, once for all links that end until then."""
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        self._due = False
        gc.collect()


def agent_runner() -> asyncio.Runner:
    """Return the runner for the agent's loop, uvloop's where there is one.

    What was imported until now is there for good, and counting it would make full collections so
    rare that the buffers of links that have ended, which lie in cycles, pile up for minutes.
    """
    tune_malloc()
    gc.freeze()
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)
