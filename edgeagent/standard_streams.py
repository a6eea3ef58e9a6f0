"""Standard output and standard error that are closed, or that take nothing more.

A program may be started without them (`>&-`), their reader may go away (`| head`), and the disk to
which they are redirected may be full. A command then ends with one line, or quietly if its reader
has gone. A training must not end for that reason, since it is worth more than what it prints.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import TextIO

_STDIN, _STDOUT, _STDERR = range(3)
# What `write` reports of a place that takes nothing more. EBADF: it was closed from the beginning.
_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def open_closed_streams() -> None:
    """Open those standard streams with which this process was started closed.

    Otherwise the next file or socket would take their place, and what is printed would go there.
    What is written to standard output fails as before; what is written to standard error is lost.
    """
    for descriptor, mode in ((_STDIN, os.O_RDONLY), (_STDOUT, os.O_RDONLY), (_STDERR, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:  # the lowest free number is the one that was closed
            os.set_inheritable(os.open(os.devnull, mode), True)
    # Python has None for a stream whose descriptor was closed when it started. A program that has
    # Python in it may have taken one away altogether.
    streams: dict[str, Any] = vars(sys)
    for name, descriptor, mode_text in (
        ("stdin", _STDIN, "r"),
        ("stdout", _STDOUT, "w"),
        ("stderr", _STDERR, "w"),
    ):
        if streams.get(name) is None:
            streams[name] = open(descriptor, mode_text, closefd=False)  # noqa: SIM115 - it stays


def complain(text: str) -> None:
    """Print one line `edgeagent: ...` to standard error, if that can be written."""
    with contextlib.suppress(OSError, ValueError):
        print(f"edgeagent: {text}", file=sys.stderr, flush=True)


def is_about_output(error: OSError) -> bool:
    """Return whether `error` is that of a stream that takes nothing more, and not of a file."""
    return error.filename is None and error.errno in _OUTPUT_ERRORS


def settle_streams() -> None:
    """Let what is buffered and cannot be written go nowhere, or Python would complain at its end,
    and change the exit status."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def outlive_output(who: str) -> None:
    """From now on, nothing that this process prints fails: what cannot be written is dropped.

    If that is not because a reader has gone, one line on standard error says so; `who` says there
    whose output it is. Streams that somebody has replaced by others stay as they are.
    """
    sys.stdout = _patient(sys.stdout, _STDOUT, who)
    sys.stderr = _patient(sys.stderr, _STDERR, who)


def _patient(stream: TextIO, descriptor: int, who: str) -> TextIO:
    """Return a stream to the same place as `stream`, to which everything can be written."""
    if not isinstance(stream, io.TextIOWrapper) or isinstance(stream.buffer, _Patient):
        return stream
    try:
        if stream.fileno() != descriptor:
            return stream
    except (OSError, ValueError):
        return stream
    with contextlib.suppress(OSError):
        stream.flush()
    raw = _Patient(descriptor, who)
    # Without buffering (`python -u`) there must be none here either.
    below: Any = raw if stream.write_through else io.BufferedWriter(raw)
    return io.TextIOWrapper(
        below,
        stream.encoding,
        stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class _Patient(io.FileIO):
    """A descriptor to which everything can be written: what cannot is dropped."""

    def __init__(self, descriptor: int, who: str) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self._who = who
        self._has_failed = False

    def write(self, data: Any) -> int:
        """Write `data`, or drop it; return its size."""
        try:
            return super().write(data)
        except OSError as error:
            if not self._has_failed and self.fileno() != _STDERR and error.errno != errno.EPIPE:
                why = f"cannot be written any more ({error.strerror})"
                text = f"what {self._who} prints {why}; {self._who} goes on"
                with contextlib.suppress(OSError):
                    os.write(_STDERR, f"edgeagent: warning: {text}\n".encode())
            self._has_failed = True
            return memoryview(data).nbytes
