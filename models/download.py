"""Downloads of data sets, into the user's cache.

A file appears in the cache complete and checked, or not at all: it is written under another name
first, so a download that breaks off or brings something else leaves nothing that a later start
would take for the data.
"""

from __future__ import annotations

import os
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import IO

TIMEOUT_S = 30.0
_PIECE = 1 << 18

Report = Callable[[str], None]


class DataError(RuntimeError):
    """The data set cannot be had, or is not what it should be; the message says what to do."""


FAILURES = (OSError, HTTPException, ValueError, DataError)  # all that `download` raises


def say(line: str) -> None:
    """Print a line of progress, on stderr."""
    print(line, file=sys.stderr, flush=True)


def cache_directory(name: str) -> Path:
    """Where downloads of the data set `name` are kept; follows the XDG base directory rules."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "edgeagent" / name


def download(
    address: str, path: Path, check: Callable[[Path], None], *, most_bytes: int, report: Report
) -> None:
    """Copy what is at `address` to `path`, unless `check` raises when it is given the copy.

    One line that begins with the name of the folder goes to `report`. Raises one of `FAILURES`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            _fetch(address, path, stream, most_bytes, report)
        check(Path(temporary))
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _fetch(address: str, path: Path, into: IO[bytes], most_bytes: int, report: Report) -> None:
    with urllib.request.urlopen(address, timeout=TIMEOUT_S) as response:
        length = int(response.headers.get("Content-Length") or 0)
        report(f"{path.parent.name}: downloading {path.name} ({length / 1e6:.1f} MB)")
        received = 0
        while piece := response.read(_PIECE):
            received += len(piece)
            if received > most_bytes:
                raise OSError(f"{address} sends more than {most_bytes} bytes")
            into.write(piece)
    if length and received != length:
        raise OSError(f"{address} sent {received} of {length} bytes")
