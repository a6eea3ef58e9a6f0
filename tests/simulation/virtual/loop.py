"""An asyncio loop that never waits: its clock jumps to the next timer.

The loop looks at nothing outside of the process and starts no thread. So everything that runs on it
happens in the same order and at the same times in every run.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

THREAD_S = 0.002  # virtual seconds that work handed to a thread takes


class Stuck(Exception):
    """Raised when no timer is left, so that nothing can happen any more."""


class _Jump(selectors.SelectSelector):
    """Lets time pass instead of waiting; files are never ready."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck("nothing is left that could ever happen")
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Use as `asyncio.Runner(loop_factory=VirtualLoop)`."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._jump.now

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Call `func` a moment later, in the loop instead of a thread."""
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except BaseException as error:
                future.set_exception(error)

        self.call_later(THREAD_S, work)
        return future
