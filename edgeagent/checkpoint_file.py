"""The file format of a training state (safetensors): writing such a file, and which can be read.

What a file says of itself is read without torch, so that a command can refuse one at once.
Replicas with equal states write equal bytes, whichever process writes: the trainer, or its agent if
the trainer does not answer any more. The file appears as a whole or not at all (`places.py`).
"""

from __future__ import annotations

import base64
import json
import os
import struct
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.places import Contents, write_together
from edgeagent.terminal.text import bytes_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edgeagent.dataplane.snapshot import Parts, Snapshot

_FAMILY = "edgeagent/"
NEWEST = 1  # grows whenever an older reader could not read what is written, scalars included
FORMAT = f"{_FAMILY}{NEWEST}"
LENGTH = struct.Struct("<Q")  # the file's first 8 bytes: the length of the header that follows
KEYS = ("edgeagent", "meta")  # metadata of the header: the format, the state's scalars
MODEL_KEYS = "model keys"  # metadata: how the model itself calls its tensors, as JSON
_HEADER_ALIGNMENT = 8  # bytes
# The longest header, in bytes, that is read: a damaged length must not take all memory.
_MAX_HEADER_BYTES = 64 << 20
_HEADER_BEGINS = b'{"__metadata__"'  # in files that edgeagent has written


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor: its name, dtype as safetensors calls it, shape, and place in the flat state."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int


def check_format(path: str, notes: Mapping[str, Any]) -> int:
    """Return the number of the format in which the file at `path`, whose header's metadata is
    `notes`, was written; raise `UsageError` if this version cannot read it."""
    text = notes.get(KEYS[0])
    number = text.removeprefix(_FAMILY) if isinstance(text, str) else ""
    known = number.isascii() and number.isdecimal() and len(number) < 10
    if not known or text != f"{_FAMILY}{int(number)}" or int(number) < 1:
        raise UsageError(f"{path} is no training state that edgeagent has saved")
    if int(number) > NEWEST:
        raise UsageError(
            f"{path} was saved by a later version of edgeagent: its format is {int(number)} and"
            f" this version reads up to {NEWEST}; install that version or a newer one here"
        )
    return int(number)


def contents(
    path: str,
    entries: Sequence[Entry],
    state: memoryview | Snapshot | Parts,
    scalars: bytes,
    notes: Mapping[str, str] = MappingProxyType({}),
) -> Contents:
    """Return the checkpoint with the tensors in `state` and the state's `scalars`, which is to be
    at `path`. `notes` are added to the header's metadata and must be the same on all replicas."""
    header = _header(entries, scalars, notes)

    def write(file: Any) -> None:
        file.write(LENGTH.pack(len(header)) + header)
        for entry in entries:
            file.write(state[entry.offset : entry.offset + entry.size])

    return path, write


def write_checkpoints(*files: Contents) -> None:
    """Write checkpoints that belong together. Raises `EdgeAgentError` if one cannot be written;
    older files then stay as they were."""
    try:
        write_together(*files)
    except OSError as error:
        raise EdgeAgentError(f"cannot save {files[0][0]}: {error.strerror}") from None


def _header(entries: Sequence[Entry], scalars: bytes, notes: Mapping[str, str]) -> bytes:
    text = base64.b64encode(scalars).decode()
    header: dict[str, Any] = {"__metadata__": {KEYS[0]: FORMAT, KEYS[1]: text, **notes}}
    at = 0
    for entry in entries:
        header[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [at, at + entry.size],
        }
        at += entry.size
    data = json.dumps(header, separators=(",", ":")).encode()
    return data + b" " * (-len(data) % _HEADER_ALIGNMENT)


def read_header(path: str, file: Any, size: int) -> tuple[dict[str, Any], int]:
    """Return the header of a file of `size` bytes, and where in the file the tensors begin."""
    lead = file.read(LENGTH.size)
    length = LENGTH.unpack(lead)[0] if len(lead) == LENGTH.size else 0
    if not 0 < length <= _MAX_HEADER_BYTES:
        raise UsageError(f"{path} is not a checkpoint")
    text = file.read(length)
    if len(text) < length and text.startswith(_HEADER_BEGINS):
        check_size(path, size, LENGTH.size + length)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError(f"{path} is not a checkpoint") from None
    if not isinstance(header, dict):
        raise UsageError(f"{path} is not a checkpoint")
    return header, LENGTH.size + length


def check_size(path: str, size: int, least: int) -> None:
    """Raise `UsageError` if a file of `size` bytes has another size than it says itself."""
    if size < least:
        raise UsageError(
            f"{path} is not a whole checkpoint: it has {bytes_text(size)} of at least"
            f" {bytes_text(least)}, so it was cut off or is still being copied; use another file"
        )
    if size > least:
        raise UsageError(f"{path} is damaged: it has {size - least} bytes too many")


def check_whole(path: str) -> None:
    """Raise `UsageError` if the file at `path` was cut off, `OSError` if it is unreadable."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        header, start = read_header(path, file, size)
    ends = [0]
    for name, entry in header.items():
        found = entry.get("data_offsets") if isinstance(entry, dict) else None
        if name != "__metadata__" and isinstance(found, list) and len(found) == 2:
            ends.append(found[1] if isinstance(found[1], int) else 0)
    check_size(path, size, start + max(ends))


def check_readable(path: str) -> None:
    """Raise `UsageError` if nobody could go on from the file at `path`: it is no training state,
    was cut off, or was saved by a later version. Whether it is of this job is not known here."""
    try:
        check_whole(path)
        with open(path, "rb") as file:
            header, _ = read_header(path, file, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    notes = header.get("__metadata__")
    check_format(path, notes if isinstance(notes, dict) else {})
