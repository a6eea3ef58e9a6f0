"""The interpreter that the agent runs in: its event loop, and how it frees memory.

Law: nothing here knows what the agent does.
"""

from __future__ import annotations

import asyncio
import gc

from edgeagent.transport.malloc import tune_malloc


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
