"""The file of `--log-file`: it never grows without bound, so that an agent can log for months.

When it is full it becomes `FILE.1`, what was `FILE.1` becomes `FILE.2`, and so on; the oldest is
removed. Several agents may log to one file: whoever finds that another has moved it on goes on in
the new one. What is no regular file (a pipe, a terminal) is written as it is.
"""

from __future__ import annotations

import contextlib
import os
import stat

from edgeagent.event_file import LineWriter
from edgeagent.own_files import refuse_strange_link

# Small enough to open in an editor; with the older ones a log takes 64 MiB at most.
FILE_BYTES = 16 << 20
OLDER_FILES = 3
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


def open_log(path: str) -> int:
    """Return a descriptor that appends to `path`, which only this user can read; raise
    `OSError`."""
    refuse_strange_link(path)
    return os.open(path, _FLAGS, 0o600)


class LogFile(LineWriter):
    """Writes lines to a file in a thread of its own, and begins a new one when that is full."""

    def __init__(
        self, path: str, descriptor: int, most: int = FILE_BYTES, older: int = OLDER_FILES
    ) -> None:
        """`descriptor` is open for `path`; a file has at most `most` bytes, unless one line is
        longer, and `older` files are kept beside it."""
        super().__init__(descriptor, f"--log-file {path}", "log lines")
        self._path, self._most, self._older = os.path.abspath(path), most, older

    def _write(self, line: bytes) -> None:
        with contextlib.suppress(OSError):  # a log that grows is better than none
            self._make_room(len(line))
        super()._write(line)

    def _make_room(self, size: int) -> None:
        ours = os.fstat(self._descriptor)
        if not stat.S_ISREG(ours.st_mode):
            return
        if not self._is_there(ours):
            self._reopen()  # another agent, or the user, has moved it away
            ours = os.fstat(self._descriptor)
        if ours.st_size == 0 or ours.st_size + size <= self._most:
            return
        for number in range(self._older, 0, -1):
            older = self._path if number == 1 else f"{self._path}.{number - 1}"
            with contextlib.suppress(FileNotFoundError):
                os.replace(older, f"{self._path}.{number}")
        self._reopen()

    def _is_there(self, ours: os.stat_result) -> bool:
        try:
            return os.path.samestat(ours, os.stat(self._path))
        except FileNotFoundError:
            return False

    def _reopen(self) -> None:
        """Go on in the file that is at the path now, under the same descriptor."""
        new = open_log(self._path)
        try:
            os.dup2(new, self._descriptor, inheritable=False)
        finally:
            os.close(new)
