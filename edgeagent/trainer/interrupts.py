"""Ctrl+C in a plain script: pressed once it leaves gracefully, pressed twice it ends at once.

The signal handler only sets a flag, wakes the waiting client through a pipe and prints one line. It
never touches the hand-over socket, because the signal may come while a frame is being written
there. Under `edgeagent run` the agent has the terminal and asks the trainer to leave, so the
trainer ignores the signal.
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
    """Handles Ctrl+C between the first `loader()` and the end of training.

    `plain` says that the script was started without `edgeagent run`. `asked` is true once Ctrl+C
    was pressed, and `wake` is a descriptor that becomes readable then, -1 if there is none. Outside
    the main thread nothing is installed, because Python delivers signals to that thread only.
    """

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
        """Empty the pipe, so that it wakes nobody a second time."""
        if self.wake >= 0:
            with contextlib.suppress(BlockingIOError):
                os.read(self.wake, 64)

    def restore(self) -> None:
        """Put the former handler back and close the pipe; idempotent."""
        if not self._installed:
            return
        self._installed = False
        before = signal.default_int_handler if self._before is None else self._before
        signal.signal(signal.SIGINT, before)
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
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b"!")
        # print() may not be called again while it is interrupted; nobody may read, either.
        with contextlib.suppress(OSError):
            os.write(2, _SAID.encode())
