"""`--log-dir DIR`: steps and reported figures as CSV, and for TensorBoard where that is installed.

The files lie in `DIR/NODE/`, a folder for each node, as TensorBoard shows each folder as a run of
its own. A later run appends to them. Like events they never hold up the training: a thread writes,
and if the disk is full, lines are lost.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from edgeagent.errors import UsageError
from edgeagent.event_file import LineWriter, open_appending

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from edgeagent.event_file import EventWriter

STEP_FIELDS = ("iteration", "loss", "samples", "members", "compute_s", "sync_s", "stall_s")
REPORT_FIELDS = ("iteration", "name", "value")
_FILES = {"step": ("steps.csv", STEP_FIELDS), "evaluated": ("reports.csv", REPORT_FIELDS)}
_SHOWN = ("loss", "members", "compute_s", "sync_s", "stall_s")  # of a step, in TensorBoard
NO_TENSORBOARD = (
    "--log-dir writes CSV only: for TensorBoard, too, install it with `pip install tensorboard`"
)


class LogDir:
    """Writes one node's files below the folder `root`; `say` shows the user a line."""

    def __init__(
        self, root: str, node: str, events: EventWriter, say: Callable[[str], None]
    ) -> None:
        self.folder = os.path.join(root, _folder_name(node))
        self._writers: dict[str, LineWriter] = {}
        self._board: _Board | None = None
        try:
            os.makedirs(self.folder, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--log-dir {root}: {error.strerror or error}") from None
        for event, (name, fields) in _FILES.items():
            path = os.path.join(self.folder, name)
            descriptor = open_appending("--log-dir", path)
            self._writers[event] = writer = LineWriter(descriptor, f"--log-dir {path}", "log lines")
            if not os.fstat(descriptor).st_size:
                writer.put(_row(("t", *fields)))
        try:
            self._board = _Board(self.folder)
        except ImportError:
            say(NO_TENSORBOARD)
        events.listeners.append(self.note)

    def note(self, t: float, event: str, values: Mapping[str, Any]) -> None:
        """Write an event of `t` (Unix seconds) if it is a step or a report."""
        writer = self._writers.get(event)
        if writer is None:
            return
        fields = _FILES[event][1]
        writer.put(_row((t, *(_cell(values[name]) for name in fields))))
        if self._board is None:
            return
        if event == "evaluated":
            shown = {values["name"]: values["value"]}
        else:
            shown = {name: values[name] for name in _SHOWN if values[name] is not None}
        self._board.write(t, values["iteration"], shown)

    def close(self) -> None:
        """Write the last lines. Idempotent."""
        for writer in self._writers.values():
            writer.close()
        if self._board is not None:
            self._board.close()
            self._board = None


def _folder_name(node: str) -> str:
    """Return a name for the folder of `node` that leads nowhere else."""
    name = quote(node, safe=" ")
    return name.replace(".", "%2E") if name in (".", "..") else name


class _Board:
    """TensorBoard's own writer, which brings a thread with it and, unlike others, no torch."""

    def __init__(self, folder: str) -> None:
        """Raises `ImportError` if TensorBoard is not installed."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(folder)

    def write(self, t: float, iteration: int, scalars: Mapping[str, float]) -> None:
        """Append scalars of one iteration; a disk that is full costs them, and no more."""
        value = self._summary.Value
        values = [value(tag=name, simple_value=scalar) for name, scalar in scalars.items()]
        event = self._event(wall_time=t, step=iteration, summary=self._summary(value=values))
        with contextlib.suppress(OSError):
            self._writer.add_event(event)

    def close(self) -> None:
        """Write what is left."""
        with contextlib.suppress(OSError):
            self._writer.close()


def _cell(value: Any) -> Any:
    return "" if value is None else value


def _row(cells: tuple[Any, ...]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()
