"""The machine-readable record of what happened: one JSON object a line.

Law: names, fields and units are those of the README's table of events; tests and users rely on
them. Every object has `t` (unix seconds) and `event`. A reader that is slow, gone or out of space
costs events, never the training: a thread does the writing, and the first error ends it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from edgeagent.errors import UsageError
from edgeagent.plain_json import json_text

if TYPE_CHECKING:
    from collections.abc import Callable

QUEUE_LINES = 10_000  # waiting lines; more are dropped
CLOSE_S = 2.0  # time the last lines have to get out


class LineWriter:
    """Writes lines to a descriptor, which it closes, in a thread of its own; -1: to nobody.

    `what` names the option and its file in what is said of trouble, `lines` what they hold.
    """

    def __init__(self, descriptor: int, what: str, lines: str) -> None:
        self._descriptor = descriptor
        self._what = what
        self._lines = lines
        self._queue: queue.Queue[bytes | None] = queue.Queue(QUEUE_LINES)
        self._thread: threading.Thread | None = None
        self._broken = self._descriptor < 0
        self.dropped = 0

    @property
    def is_broken(self) -> bool:
        """Whether nothing is written any more."""
        return self._broken

    def put(self, line: str) -> None:
        """Append one line; never waits."""
        if self._broken:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._lines, daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait(line.encode(errors="replace") + b"\n")
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """See the last lines out; return within `CLOSE_S`. Idempotent."""
        thread, self._thread = self._thread, None
        end = time.monotonic() + CLOSE_S
        if thread is not None:
            with contextlib.suppress(queue.Full):
                self._queue.put(None, timeout=CLOSE_S)
            thread.join(max(0.0, end - time.monotonic()))
        self._broken = True
        if self._descriptor >= 0 and not (thread is not None and thread.is_alive()):
            os.close(self._descriptor)
            self._descriptor = -1
        if self.dropped:
            _complain(f"{self.dropped} {self._lines} were not written: {self._what} was too slow")
            self.dropped = 0

    def _work(self) -> None:
        try:
            while (line := self._queue.get()) is not None:
                _write_all(self._descriptor, line)
        except (OSError, ValueError) as error:
            self._broken = True
            reason = getattr(error, "strerror", None) or str(error)
            _complain(f"no more {self._lines} are written to {self._what}: {reason}")
            while self._queue.get() is not None:
                pass


class EventWriter(LineWriter):
    """Writes events to a file, to standard output (`-`) or to nobody (""), line by line."""

    def __init__(self, path: str, clock: Callable[[], float] = time.time) -> None:
        super().__init__(_open(path), f"--events {path}", "events")
        self._clock = clock

    def write(self, event: str, **values: Any) -> None:
        """Append one event; never waits."""
        if not self.is_broken:
            self.put(json_text({"t": round(self._clock(), 6), "event": event, **values}))


def _open(path: str) -> int:
    """Return a descriptor of our own: nobody else's buffers and errors at exit, -1 for nobody."""
    if not path:
        return -1
    try:
        if path == "-":
            return os.dup(sys.stdout.fileno())
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"--events {path}: {reason}") from None


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # somebody else made this pipe non-blocking
            time.sleep(0.01)


def _complain(text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(f"edgeagent: {text}", file=sys.stderr, flush=True)
