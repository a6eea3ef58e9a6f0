"""The machine-readable record of what happened: one JSON object per line.

Names, fields and units are those of the README's table of events, since users' programs rely on
them. Every object has `t` (Unix seconds) and `event`. If the reader is slow or gone, or the disk is
full, events are lost but training goes on: a thread does the writing, and stops at the first error.
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
from edgeagent.own_files import refuse_strange_link
from edgeagent.plain_json import json_text

if TYPE_CHECKING:
    from collections.abc import Callable

QUEUE_LINES = 10_000  # waiting lines; if there are more, they are dropped and counted
CLOSE_S = 2.0  # at most, for writing the last lines


class LineWriter:
    """Writes lines to a descriptor in a thread of its own, and closes the descriptor at the end.

    Descriptor -1 means that nothing is written. In messages about trouble `what` names the option
    with its file, and `lines` what is written there.
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
        """Whether nothing can be written any more."""
        return self._broken

    def put(self, line: str) -> None:
        """Append one line. This never waits; a line is dropped if too many wait already."""
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
        """Write the last lines and return within `CLOSE_S`. Idempotent."""
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
                self._write(line)
        except (OSError, ValueError) as error:
            self._broken = True
            reason = getattr(error, "strerror", None) or str(error)
            _complain(f"no more {self._lines} are written to {self._what}: {reason}")
            while self._queue.get() is not None:
                pass

    def _write(self, line: bytes) -> None:
        """Write one line, in the thread."""
        _write_all(self._descriptor, line)


class EventWriter(LineWriter):
    """Writes events, one per line, to a file, to standard output (`-`), or nowhere ("")."""

    def __init__(self, path: str, clock: Callable[[], float] = time.time) -> None:
        super().__init__(_open(path), f"--events {path}", "events")
        self._clock = clock
        # Called with (t, event, fields) for each event, also where no file is written.
        self.listeners: list[Callable[[float, str, dict[str, Any]], None]] = []

    def write(self, event: str, **values: Any) -> None:
        """Append one event. This never waits."""
        t = round(self._clock(), 6)
        for listener in self.listeners:
            listener(t, event, values)
        if not self.is_broken:
            self.put(json_text({"t": t, "event": event, **values}))


def _open(path: str) -> int:
    """Return a descriptor of our own, so that nothing else buffers or closes it; -1 for ""."""
    if not path:
        return -1
    try:
        if path == "-":
            return os.dup(sys.stdout.fileno())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"--events {path}: {reason}") from None
    return open_appending("--events", path)


def open_appending(option: str, path: str) -> int:
    """Return a descriptor that appends to the file at `path`; raise `UsageError` that names
    `option` if there can be none."""
    try:
        refuse_strange_link(path)
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{option} {path}: {reason}") from None


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # another process has made this pipe non-blocking
            time.sleep(0.01)


def _complain(text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(f"edgeagent: {text}", file=sys.stderr, flush=True)
