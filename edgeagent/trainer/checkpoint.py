"""The training state in one file, in the safetensors format.

Law: replicas with equal states write equal bytes. The file appears whole or not at all (temporary
file, fsync, rename). Reading checks everything before it changes anything; the first mismatch is
named. Tensors are called as in `layout.py`; the scalars are text in the file's metadata. Nothing is
ever executed to read a file.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import os
import struct
import tempfile
from typing import TYPE_CHECKING, Any

from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.trainer.meta import decode_meta

if TYPE_CHECKING:
    from edgeagent.trainer.layout import StateLayout

FORMAT = "edgeagent/1"
_LENGTH = struct.Struct("<Q")
_MAX_HEADER_BYTES = 64 << 20
_HEADER_ALIGNMENT = 8
_KEYS = ("edgeagent", "meta")


def save_checkpoint(path: str, layout: StateLayout, state: memoryview, meta: bytes) -> None:
    """Write the state to `path`; `state` is the shared state, `meta` its scalars.

    Raises `EdgeAgentError` if the file cannot be written; an older file then stays as it was.
    """
    header = _header(layout, meta)
    folder = os.path.dirname(os.path.abspath(path))
    temporary = ""
    try:
        descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=".edgeagent-")
        with open(descriptor, "wb") as file:
            file.write(_LENGTH.pack(len(header)) + header)
            for _, offset, size in layout.tensors():
                file.write(state[offset : offset + size])
            file.flush()
            os.fchmod(file.fileno(), 0o666 & ~_umask())
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(folder)
    except OSError as error:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise EdgeAgentError(f"cannot save {path}: {error.strerror}") from None


def aside_path(save: str) -> str:
    """Return where to keep the state that another cluster's will replace, beside `save`."""
    stem, extension = os.path.splitext(save)
    return f"{stem}-before-joining{extension or '.safetensors'}"


def check_save_path(path: str) -> None:
    """Raise `UsageError` if a checkpoint could not be written to `path`."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise UsageError(f"cannot save {path}: there is no folder {folder}")
    if os.path.isdir(path):
        raise UsageError(f"cannot save {path}: it is a folder")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"cannot save {path}: the folder {folder} is not writable")


def load_checkpoint(path: str, layout: StateLayout, state: memoryview) -> tuple[int, bytes]:
    """Read `path` into the shared state; return its iteration and scalars.

    Raises `UsageError`, with `state` unchanged, if the file is not a checkpoint of this job.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            header, start = _read_header(path, file, size)
            meta = _check_header(path, header, layout)
            tensors = layout.tensors()
            if size != start + sum(length for _, _, length in tensors):
                raise UsageError(f"{path} is not a whole checkpoint: its length is wrong")
            for _, offset, length in tensors:
                _fill(path, file, state[offset : offset + length])
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    return decode_meta(meta).iteration, meta


def _header(layout: StateLayout, meta: bytes) -> bytes:
    text = base64.b64encode(meta).decode()
    header: dict[str, Any] = {"__metadata__": {_KEYS[0]: FORMAT, _KEYS[1]: text}}
    at = 0
    for spec in layout.specs:
        header[spec.name] = {
            "dtype": spec.dtype_name,
            "shape": list(spec.shape),
            "data_offsets": [at, at + spec.bytes],
        }
        at += spec.bytes
    data = json.dumps(header, separators=(",", ":")).encode()
    return data + b" " * (-len(data) % _HEADER_ALIGNMENT)


def _read_header(path: str, file: Any, size: int) -> tuple[dict[str, Any], int]:
    lead = file.read(_LENGTH.size)
    length = _LENGTH.unpack(lead)[0] if len(lead) == _LENGTH.size else 0
    if not 0 < length <= min(_MAX_HEADER_BYTES, size - _LENGTH.size):
        raise UsageError(f"{path} is not a checkpoint")
    try:
        header = json.loads(file.read(length))
    except (ValueError, RecursionError):
        raise UsageError(f"{path} is not a checkpoint") from None
    if not isinstance(header, dict):
        raise UsageError(f"{path} is not a checkpoint")
    return header, _LENGTH.size + length


def _check_header(path: str, header: dict[str, Any], layout: StateLayout) -> bytes:
    """Return the scalars; raise `UsageError` naming the first tensor that does not fit."""
    notes = header.pop("__metadata__", None)
    if not isinstance(notes, dict) or notes.get(_KEYS[0]) != FORMAT:
        raise UsageError(f"{path} was not saved by this version of edgeagent")
    at = 0
    for spec in layout.specs:
        entry = header.pop(spec.name, None)
        if not isinstance(entry, dict):
            raise UsageError(f"{path} is of another job: it has no {spec.name}")
        found = (entry.get("dtype"), entry.get("shape"))
        if found != (spec.dtype_name, list(spec.shape)):
            raise UsageError(
                f"{path} is of another job: {spec.name} is {found[0]} {found[1]} there and"
                f" {spec.dtype_name} {list(spec.shape)} here"
            )
        if entry.get("data_offsets") != [at, at + spec.bytes]:
            raise UsageError(f"{path} is damaged: {spec.name} is in the wrong place")
        at += spec.bytes
    if header:
        raise UsageError(f"{path} is of another job: it also has {sorted(header)[0]}")
    try:
        meta = base64.b64decode(notes.get(_KEYS[1], ""), validate=True)
        decode_meta(meta)
    except (binascii.Error, TypeError, ValueError, EdgeAgentError) as error:
        raise UsageError(f"{path} is damaged: {error}") from None
    return meta


def _fill(path: str, file: Any, target: memoryview) -> None:
    at = 0
    while at < len(target):
        count = file.readinto(target[at:])
        if not count:
            raise UsageError(f"{path} is not a whole checkpoint: it ends too early")
        at += count


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
