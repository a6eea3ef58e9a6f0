"""The event loop that an agent runs on: uvloop, or asyncio's own where that does not exist."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


def run(work: Coroutine[None, None, T]) -> T:
    """Run `work` to its end on a loop of its own; return what it returns."""
    with _runner() as runner:
        return runner.run(work)


def _runner() -> asyncio.Runner:
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)
