"""The log for trouble: what a node is told and what it reports, one JSON object a line.

    {"t": 1764547200.25, "level": "debug", "node": "alice", "iteration": 7, "event": "Received",
     "from": "bob", "message": "Vote"}

Off unless asked for (`--log-level`). Debug shows every event that enters the node, info what
happens to the cluster, warning what should not happen, error internal errors.

Law: the standard library's logger `edgeagent` and nothing else; it never waits for its reader, as
the event file does not. No token: of an event the log has its name and who sent it, no contents.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any

from edgeagent.errors import UsageError
from edgeagent.event_file import LineWriter
from edgeagent.plain_json import json_text
from protocols.events import Received

if TYPE_CHECKING:
    from protocols.effects import Report
    from protocols.events import Event
    from protocols.member.context import Context

LOGGER = logging.getLogger("edgeagent")
_WARNINGS = ("accused", "diverged", "first_difference", "link_down", "member_late")


class _Lines(logging.Handler):
    """Hands records to a thread that writes them."""

    def __init__(self, writer: LineWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        """Queue one line."""
        told: dict[str, Any] = getattr(record, "values", {"event": record.getMessage()})
        line = {"t": round(record.created, 6), "level": record.levelname.lower(), **told}
        self._writer.put(json_text(line))

    def close(self) -> None:
        """See the last lines out."""
        self._writer.close()
        super().close()


class NodeLog:
    """Logs what one node is told and reports."""

    def __init__(self, name: str) -> None:
        self._name = name

    def event(self, context: Context, event: Event) -> None:
        """An event is about to enter the node."""
        if not LOGGER.isEnabledFor(logging.DEBUG):
            return
        values = {}
        if isinstance(event, Received):
            message = type(event.envelope.message).__name__
            values = {"from": context.name(event.via), "message": message}
        self._log(logging.DEBUG, context, type(event).__name__, values)

    def report(self, context: Context, report: Report) -> None:
        """The node has reported something."""
        level = logging.DEBUG if report.event == "delay" else logging.INFO
        level = logging.WARNING if report.event in _WARNINGS else level
        shown = {k: v.hex() if isinstance(v, bytes) else v for k, v in report.values.items()}
        self._log(level, context, report.event, {"values": shown})

    def _log(self, level: int, context: Context, what: str, more: dict[str, Any]) -> None:
        values = {"node": self._name, "iteration": context.iteration, "event": what, **more}
        LOGGER.log(level, what, extra={"values": values})


def node_log(name: str) -> NodeLog | None:
    """Return what logs the node of this name, None if there is no log."""
    return NodeLog(name) if _ours() else None


def log_error(name: str, message: str) -> None:
    """Log why the part of the node of this name is over."""
    if _ours():
        values = {"node": name, "event": "error", "message": message}
        LOGGER.error(message, extra={"values": values})


def start_logging(level: str, path: str) -> None:
    """Log from `level` on to the file `path` ("": to stderr), until `stop_logging`; "": no log.

    Raises `UsageError` if the file cannot be opened.
    """
    if not level:
        return
    try:
        if path:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(path, flags, 0o600)
        else:
            descriptor = os.dup(sys.stderr.fileno())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"--log-file {path}: {reason}") from None
    stop_logging()
    where = f"--log-file {path}" if path else "stderr"
    LOGGER.addHandler(_Lines(LineWriter(descriptor, where, "log lines")))
    LOGGER.setLevel(level.upper())
    LOGGER.propagate = False


def stop_logging() -> None:
    """See the last lines out and log no more. Idempotent."""
    for handler in _ours():
        LOGGER.removeHandler(handler)
        handler.close()
        LOGGER.propagate = True


def _ours() -> list[logging.Handler]:
    """What writes the log: a handler that somebody else has added does not turn it on."""
    return [handler for handler in LOGGER.handlers if isinstance(handler, _Lines)]
