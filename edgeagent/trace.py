"""The trace: what the flight recorder has kept, written as text and read back.

    {"trace": 1, "node": "alice", ..., "entries": 2000, "dropped": 731, "replays_from": null}
    {"number": 732, "now": 81.25, "call": {"is": "Tick"}, "effects": [], "error": ""}

Each line is one JSON object. The first line says which agent this is, when the trace was written
(`t` in Unix seconds, `now` on the clock of the entries), how many entries follow, how many older
ones were dropped, and from which entry on a replay is possible (null: the trace can only be read).
If `effects` is null, the call has raised `error`. `"short": true` marks an entry that was too
large; its long parts are given as length and SHA-256.

The JSON is strict and has bytes as hexadecimal (`protocols/member/plain.py`). A trace contains no
token, because the recorder keeps none. Only its user can read the file of a trace (mode 0600).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgeagent import __version__
from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.own_files import refuse_strange_link
from protocols.errors import LocalProtocolError
from protocols.member.plain import from_plain, to_plain
from protocols.member.recorder import Call, Entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from protocols.member.recorder import Recorder

FORMAT = 1
FILE_NAME = "trace.jsonl"  # if there is no event file, it is written to the agent's folder


@dataclass(frozen=True, slots=True)
class Line:
    """One entry as it was read: `effects` are plain, as `to_plain` makes them, and `call` is None
    if the entry was shortened."""

    number: int
    now: float
    call: Call | None
    effects: list[Any] | None
    error: str


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace as it was read; `header` is its first line."""

    header: dict[str, Any]
    lines: tuple[Line, ...]

    @property
    def replays_from(self) -> int | None:
        """See `Recorder.replays_from`."""
        number: int | None = self.header["replays_from"]
        return number


def trace_lines(recorder: Recorder, now: float, about: dict[str, Any]) -> Iterator[str]:
    """Return the lines of a trace of what is recorded up to now; each is made when it is asked for.

    `about` is added to the first line and says who wrote the trace, with which planner.
    """
    entries = recorder.entries()
    header = {
        "trace": FORMAT,
        "version": __version__,
        **about,
        "t": round(time.time(), 6),
        "now": now,
        "entries": len(entries),
        "dropped": recorder.dropped,
        "replays_from": recorder.replays_from,
    }
    return (_text(value) for value in _values(header, entries))


def _values(header: dict[str, Any], entries: tuple[Entry, ...]) -> Iterator[dict[str, Any]]:
    yield header
    for entry in entries:
        value: dict[str, Any] = {"number": entry.number, "now": entry.now}
        value["call"] = to_plain(entry.call)
        value["effects"] = to_plain(entry.effects)
        value["error"] = entry.error
        if entry.is_short:
            value["short"] = True
        yield value


def _text(value: dict[str, Any]) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":")) + "\n"


def write_trace(path: str, lines: Iterable[str]) -> None:
    """Write a trace to a file that only its user can read; raise `UsageError` if that fails."""
    try:
        with open(_opened(path), "w", encoding="utf-8") as file:
            file.writelines(lines)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None


def _opened(path: str) -> int:
    refuse_strange_link(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):  # not a device or a pipe
            os.fchmod(descriptor, 0o600)
            os.ftruncate(descriptor, 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def keep_trace(lines: Iterable[str], events: str, folder: str) -> str:
    """Write a trace beside the event file, or into the agent's folder if there is none.

    Returns the file, "" if it could not be written, since that must not hide the error that the
    trace is to explain.
    """
    path = f"{events}.{FILE_NAME}" if events not in ("", "-") else os.path.join(folder, FILE_NAME)
    with contextlib.suppress(EdgeAgentError, LocalProtocolError, TypeError, ValueError):
        write_trace(path, lines)
        return path
    return ""


def read_trace(lines: Iterable[str]) -> Trace:
    """Read a trace; raise `ValueError` if `lines` are no trace, or not a whole one."""
    values = [_object(line) for line in lines]
    if not values or values[0].get("trace") != FORMAT:
        raise ValueError("this is no trace of a format that is known")
    header, entries = values[0], tuple(_line(value) for value in values[1:])
    if len(entries) != header["entries"]:
        raise ValueError(f"{header['entries']} entries were announced, {len(entries)} are here")
    return Trace(header, entries)


def _object(line: str) -> dict[str, Any]:
    value = json.loads(line, parse_constant=_refuse)
    if not isinstance(value, dict):
        raise ValueError("a line of a trace is a JSON object")
    return value


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")


def _line(value: dict[str, Any]) -> Line:
    names = {"number", "now", "call", "effects", "error"}
    if value.keys() - {"short"} != names or not math.isfinite(value["now"]):
        raise ValueError("an entry has number, now, call, effects and error")
    call = None if value.get("short") else from_plain(Call, value["call"])
    return Line(value["number"], value["now"], call, value["effects"], value["error"])
