"""The machine-readable record of what happened: one JSON object a line.

Law: names, fields and units are those of the README's table of events; tests and users rely on
them. Every object has `t` (unix seconds) and `event`.
"""

from __future__ import annotations

import json
import sys
import time
from typing import IO, TYPE_CHECKING, Any

from edgeagent.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable


class EventWriter:
    """Writes events to a file, to standard output (`-`) or to nobody (""), line by line."""

    def __init__(self, path: str, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._file: IO[str] | None = None
        if path == "-":
            self._file = sys.stdout
        elif path:
            try:
                self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115
            except OSError as error:
                raise UsageError(f"--events {path}: {error.strerror}") from None

    def write(self, event: str, **values: Any) -> None:
        """Append one event."""
        if self._file is not None:
            line = json.dumps({"t": round(self._clock(), 6), "event": event, **values})
            self._file.write(line + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file, unless it is standard output."""
        if self._file is not None and self._file is not sys.stdout:
            self._file.close()
        self._file = None
