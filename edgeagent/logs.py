"""The log for trouble: what a node is told and what it reports, one JSON object a line.

    {"t": 1764547200.25, "level": "debug", "node": "alice", "iteration": 7, "event": "Received",
     "from": "bob", "message": "Vote"}

The log is off unless `--log-level` asks for it. Level debug has every event that enters the node,
info what happens to the cluster, warning what should not happen, error internal errors.

Only the standard library's logger `edgeagent` is used, so that a user's own logging settings stay
as they are. Like the event file, the log never waits for its reader. It contains no token: of an
event it has the name and the sender, but not the contents.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any

from edgeagent.errors import UsageError
from edgeagent.event_file import LineWriter
from edgeagent.log_file import LogFile, open_log
from edgeagent.plain_json import json_text
from protocols.events import Received

if TYPE_CHECKING:
    from protocols.effects import Report
    from protocols.events import Event
    from protocols.member.context import Context

LOGGER = logging.getLogger("edgeagent")
# Reports of the node about something that should not happen.
_WARNINGS = ("accused", "diverged", "first_difference", "link_down", "member_late")


class _Lines(logging.Handler):
    """Passes log records to the thread that writes them."""

    def __init__(self, writer: LineWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        """Queue one line."""
        told: dict[str, Any] = getattr(record, "values", {"event": record.getMessage()})
        line = {"t": round(record.created, 6), "level": record.levelname.lower(), **told}
        self._writer.put(json_text(line))

    def close(self) -> None:
        """Write the last lines."""
        self._writer.close()
        super().close()


class NodeLog:
    """Logs the events that one node gets and its reports."""

    def __init__(self, name: str) -> None:
        self._name = name

    def event(self, context: Context, event: Event) -> None:
        """Log an event that is about to enter the node."""
        if not LOGGER.isEnabledFor(logging.DEBUG):
            return
        values = {}
        if isinstance(event, Received):
            message = type(event.envelope.message).__name__
            values = {"from": context.name(event.via), "message": message}
        self._log(logging.DEBUG, context, type(event).__name__, values)

    def report(self, context: Context, report: Report) -> None:
        """Log a report of the node."""
        level = logging.DEBUG if report.event == "delay" else logging.INFO
        level = logging.WARNING if report.event in _WARNINGS else level
        shown = {k: v.hex() if isinstance(v, bytes) else v for k, v in report.values.items()}
        self._log(level, context, report.event, {"values": shown})

    def _log(self, level: int, context: Context, what: str, more: dict[str, Any]) -> None:
        values = {"node": self._name, "iteration": context.iteration, "event": what, **more}
        LOGGER.log(level, what, extra={"values": values})


def node_log(name: str) -> NodeLog | None:
    """Return the log of the node called `name`, None if logging is off."""
    return NodeLog(name) if _ours() else None


def log_error(name: str, message: str, iteration: int | None) -> None:
    """Log the error that has ended the part of the node called `name`. `iteration`: its last step,
    None before the first."""
    if _ours():
        values = {"node": name, "iteration": iteration, "event": "error", "message": message}
        LOGGER.error(message, extra={"values": values})


def start_logging(level: str, path: str) -> None:
    """Log from `level` on to the file `path` ("" for stderr) until `stop_logging`.

    With `level` "" there is no log. Raises `UsageError` if the file cannot be opened.
    """
    if not level:
        return
    try:
        if path:
            descriptor = open_log(path)
        else:
            descriptor = os.dup(sys.stderr.fileno())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"--log-file {path}: {reason}") from None
    stop_logging()
    writer = LogFile(path, descriptor) if path else LineWriter(descriptor, "stderr", "log lines")
    LOGGER.addHandler(_Lines(writer))
    LOGGER.setLevel(level.upper())
    LOGGER.propagate = False


def stop_logging() -> None:
    """Write the last lines and stop logging. Idempotent."""
    for handler in _ours():
        LOGGER.removeHandler(handler)
        handler.close()
        LOGGER.propagate = True


def _ours() -> list[logging.Handler]:
    """Return our own handlers; a handler that a script has added does not turn the log on."""
    return [handler for handler in LOGGER.handlers if isinstance(handler, _Lines)]
