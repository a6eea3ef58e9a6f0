"""The file format of a training state (safetensors): writing such a file, and which can be read.

Replicas with equal states write equal bytes, whichever process writes: the trainer, or its agent if
the trainer does not answer any more. The file appears as a whole or not at all (`places.py`).
"""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.places import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edgeagent.dataplane.snapshot import Snapshot

_FAMILY = "edgeagent/"
NEWEST = 1  # grows whenever an older reader could not read what is written, scalars included
FORMAT = f"{_FAMILY}{NEWEST}"
LENGTH = struct.Struct("<Q")  # the file's first 8 bytes: the length of the header that follows
KEYS = ("edgeagent", "meta")  # metadata of the header: the format, the state's scalars
MODEL_KEYS = "model keys"  # metadata: how the model itself calls its tensors, as JSON
_HEADER_ALIGNMENT = 8  # bytes


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


def write_checkpoint(
    path: str,
    entries: Sequence[Entry],
    state: memoryview | Snapshot,
    scalars: bytes,
    notes: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write the tensors in `state` and the state's `scalars` to `path`.

    `notes` are added to the header's metadata and must be the same on all replicas. Raises
    `EdgeAgentError` if the file cannot be written; an older file then stays as it was.
    """
    header = _header(entries, scalars, notes)

    def write(file: Any) -> None:
        file.write(LENGTH.pack(len(header)) + header)
        for entry in entries:
            file.write(state[entry.offset : entry.offset + entry.size])

    try:
        write_whole(path, write)
    except OSError as error:
        raise EdgeAgentError(f"cannot save {path}: {error.strerror}") from None


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
