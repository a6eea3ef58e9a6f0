"""Ctrl+C in a plain script: once leaves gracefully, twice ends at once.

Law: the signal handler only sets a flag, wakes the waiting client through a pipe and prints one
line; it never touches the hand-over socket. Under `edgeagent run` the agent has the terminal and
asks the trainer to leave, so the trainer ignores the signal.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from typing import Any

_SAID = "edgeagent: leaving after this iteration; press Ctrl+C again to end at once\n"


class Interrupts:
    """Installed between the first `loader()` and the end of training, in the main thread only."""

    def __init__(self, plain: bool) -> None:
        self.asked = False
        self.wake = -1
        self._write = -1
        self._before: Any = None
        self._installed = threading.current_thread() is threading.main_thread()
        if not self._installed:
            return
        if plain:
            self.wake, self._write = os.pipe()
            os.set_blocking(self.wake, False)
            os.set_blocking(self._write, False)
            self._before = signal.signal(signal.SIGINT, self._on_interrupt)
        else:
            self._before = signal.signal(signal.SIGINT, signal.SIG_IGN)

    def drain(self) -> None:
        """Empty the pipe."""
        if self.wake >= 0:
            with contextlib.suppress(BlockingIOError):
                os.read(self.wake, 64)

    def restore(self) -> None:
        """Put the former handler back; idempotent."""
        if not self._installed:
            return
        self._installed = False
        signal.signal(signal.SIGINT, self._before or signal.default_int_handler)
        for descriptor in (self.wake, self._write):
            if descriptor >= 0:
                os.close(descriptor)
        self.wake = self._write = -1

    def _on_interrupt(self, _number: int, _frame: object) -> None:
        if self.asked:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            os._exit(1)
        self.asked = True
        os.write(2, _SAID.encode())
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b"!")
