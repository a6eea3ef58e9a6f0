"""How a training state looks in a file, in the safetensors format; writing one.

Law: replicas with equal states write equal bytes, whoever writes: the trainer, or its agent where
the trainer does not answer any more. The file appears whole or not at all (`places.py`).
"""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from edgeagent.errors import EdgeAgentError
from edgeagent.places import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FORMAT = "edgeagent/1"
LENGTH = struct.Struct("<Q")  # of the header that follows
KEYS = ("edgeagent", "meta")  # of the header's metadata: the format, the scalars
MODEL_KEYS = "model keys"  # a note: how the model itself calls its tensors, as JSON
_HEADER_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor: its name, dtype as safetensors calls it, shape, and place in the flat state."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int


def write_checkpoint(
    path: str,
    entries: Sequence[Entry],
    state: memoryview,
    scalars: bytes,
    notes: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write the tensors in `state` and the state's `scalars` to `path`. `notes`: what else the
    header's metadata says, the same on all replicas.

    Raises `EdgeAgentError` if the file cannot be written; an older file then stays as it was.
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
