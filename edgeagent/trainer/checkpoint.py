"""The training state in one file, in the safetensors format.

Replicas with equal states write equal bytes, so files of two devices can be compared. Tensors have
the names of `layout.py`, and the scalars are text in the file's metadata. Reading executes nothing
that is in a file. Before it changes anything it checks names, types, shapes, places and length, and
that all of the file can be read; it names the first mismatch. A file that would be lost is given
another name before one is written.
"""

from __future__ import annotations

import base64
import binascii
import os
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from edgeagent.checkpoint_file import (
    KEYS,
    Entry,
    check_format,
    check_size,
    contents,
    read_header,
    write_checkpoints,
)
from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.own_files import refuse_strange_link
from edgeagent.places import (
    MOST_ASIDE,
    free_name,
    is_replaceable,
    move_aside,
    numbered,
)
from edgeagent.slots_file import keep_slots_with
from edgeagent.terminal.text import shown_path
from edgeagent.trainer import exponents
from edgeagent.trainer.meta import decode_meta

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from edgeagent.dataplane.snapshot import Snapshot
    from edgeagent.places import Contents
    from edgeagent.trainer.layout import StateLayout
    from edgeagent.trainer.state import TrainingState

# In the name of a file that has what was trained here before another cluster's state replaced it.
ASIDE = "before-joining"
# In the name of a file that a later run has found in its place and not overwritten.
EARLIER = "earlier"
# How many bytes are read at a time where only whether they can be read matters.
_PIECE_BYTES = 4 << 20


def save_checkpoint(
    path: str,
    layout: StateLayout,
    state: memoryview | Snapshot,
    meta: bytes,
    notes: Mapping[str, str] = MappingProxyType({}),
    *beside: Contents,
) -> None:
    """Write the state to `path`: the bytes of `state`, laid out as `layout`, and `meta`; with it
    the files `beside`.

    `meta` has the state's scalars, and `notes` are further texts of the file's metadata, as in
    `contents`. Raises `EdgeAgentError` if a file cannot be written; older files then stay
    as they were.
    """
    write_checkpoints(contents(path, entries_of(layout), state, meta, notes), *beside)


def entries_of(layout: StateLayout) -> list[Entry]:
    """Return name, dtype, shape and place in the shared state of each tensor, in the order of
    files."""
    return [
        Entry(spec.name, spec.dtype_name, spec.shape, offset, spec.bytes)
        for spec, offset in layout.by_name()
    ]


def keep_what_is_there(path: str, layout: StateLayout, iteration: int) -> str:
    """Rename the file at `path` if a state after `iteration` steps must not replace it.

    That is so if it holds more training, or is no checkpoint of this job. Returns a line for the
    user that says what was done, "" if nothing was. Raises `EdgeAgentError` if the file could not
    be moved.
    """
    target = os.path.realpath(path)
    try:
        refuse_strange_link(path)
        if not is_replaceable(target) or not os.path.exists(target) or not os.path.getsize(target):
            return ""
        try:
            found = checkpoint_iteration(target, layout)
            if found <= iteration:
                return ""
            why = f"was trained further (to step {found})"
        except UsageError:
            why = "is of another job"
        kept = move_aside(target, EARLIER)
        keep_slots_with(target, kept)
    except OSError as error:
        raise EdgeAgentError(f"cannot save {path}: {error.strerror}") from None
    return f"the file that was at {path} {why}: it is kept as {kept}"


def aside_place(save: str, layout: StateLayout) -> tuple[str, str]:
    """Return the file, beside `save`, for the state that another cluster's will replace.

    At most `MOST_ASIDE` such files are kept. If there are so many, the one with the least training
    is replaced; the second result is the line that tells the user so, "" if no file has to go.
    """
    if free := free_name(save, ASIDE, MOST_ASIDE):
        return free, ""
    taken = [(_iteration_or_none(path, layout), path) for path in numbered(save, ASIDE, MOST_ASIDE)]
    ours = [(count, path) for count, path in taken if count is not None]
    if not ours:
        return free_name(save, ASIDE), ""
    count, path = min(ours)
    line = f"{path} (trained to step {count}, the least of {MOST_ASIDE} such files) is replaced"
    return path, line


def checkpoint_iteration(path: str, layout: StateLayout) -> int:
    """Return how many updates the state in `path` has behind it.

    Raises `UsageError` if the file is not a checkpoint of this job, `OSError` if it is unreadable.
    """
    with open(path, "rb") as file:
        header, _ = read_header(path, file, os.fstat(file.fileno()).st_size)
    return decode_meta(_check_header(path, header, layout)).iteration


def _iteration_or_none(path: str, layout: StateLayout) -> int | None:
    """Return `checkpoint_iteration`, or None if the file is no checkpoint of this job."""
    try:
        return checkpoint_iteration(path, layout)
    except (OSError, UsageError):
        return None


def load_checkpoint(
    path: str,
    layout: StateLayout,
    state: memoryview,
    fits: Callable[[int, bytes], object] = lambda iteration, meta: None,
) -> tuple[int, bytes]:
    """Read `path` into the shared memory `state`; return its iteration and its scalars as bytes.

    `fits` is called with these two and raises `EdgeAgentError` if the job cannot use them. Nothing
    is written to `state` before all of this is checked, and before the whole file was read once: a
    disk that cannot read a part of it, or a file that was cut short, is noticed then. The tensors
    are read a second time into `state`, because a copy of them might not fit into memory beside it.

    Raises `UsageError`, with `state` unchanged, if the file is not a checkpoint of this job or
    cannot be read. Only if the second reading fails, although the first did not, `state` is partly
    overwritten; the error says so then.
    """
    overwriting = False
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            header, start = read_header(path, file, size)
            meta = _check_header(path, header, layout)
            tensors = [(offset, spec.bytes) for spec, offset in layout.by_name()]
            check_size(path, size, start + sum(length for _, length in tensors))
            iteration = decode_meta(meta).iteration
            fits(iteration, meta)
            _try_to_read(file, size - start)
            file.seek(start)
            overwriting = True
            for offset, length in tensors:
                _fill(file, state[offset : offset + length])
    except (OSError, EOFError) as error:
        why = getattr(error, "strerror", None) or str(error)
        spoilt = "; the state in memory is of no use any more" if overwriting else ""
        raise UsageError(f"cannot read {path}: {why}{spoilt}") from None
    return iteration, meta


def resume(path: str, state: TrainingState, memory: memoryview) -> None:
    """Have `state`, whose shared memory is `memory`, go on from the checkpoint in `path`.

    Raises `UsageError` if the file is not a checkpoint of this job or cannot be read; the state is
    then as it was, with the exception that `load_checkpoint` names.
    """
    try:
        state.adopt(*load_checkpoint(path, state.layout, memory, state.check_fits))
    except UsageError:
        raise
    except EdgeAgentError as error:
        raise UsageError(f"cannot resume from {path}: {error}") from None


def resumed_text(path: str, iteration: int, steps: int, *, rounds: bool = False) -> str:
    """Return the line that says from where training goes on, and whether anything of `steps` (0 for
    no end) is left to do. `rounds`: each of them is a round of local steps."""
    word = "round" if rounds else "step"
    said = f"going on from {shown_path(path)}, trained to {word} {iteration}"
    if not steps:
        return said
    if iteration < steps:
        return f"{said} of {steps}"
    return (
        f"{said}; training ends at {word} {steps}, so nothing is left to do: a larger --steps N"
        " trains more"
    )


def _check_header(path: str, header: dict[str, Any], layout: StateLayout) -> bytes:
    """Return the scalars; raise `UsageError` naming the first tensor that does not fit."""
    notes = header.pop("__metadata__", None)
    notes = notes if isinstance(notes, dict) else {}
    check_format(path, notes)
    has_exponents = any(spec.name == exponents.NAME for spec, _ in layout.by_name())
    if has_exponents != (exponents.NAME in header):
        made, do = ("without", "leave --exact away") if has_exponents else ("with", "add --exact")
        raise UsageError(f"{path} was written {made} --exact: {do} to go on from it")
    at = 0
    for spec, _ in layout.by_name():
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
        meta = base64.b64decode(notes.get(KEYS[1], ""), validate=True)
        decode_meta(meta)
    except (binascii.Error, TypeError, ValueError, EdgeAgentError) as error:
        raise UsageError(f"{path} is damaged: {error}") from None
    return meta


def _try_to_read(file: Any, size: int) -> None:
    """Read `size` bytes and drop them; raise `EOFError` if the file ends before."""
    room = memoryview(bytearray(min(size, _PIECE_BYTES)))
    for start in range(0, size, _PIECE_BYTES):
        _fill(file, room[: size - start])


def _fill(file: Any, target: memoryview) -> None:
    """Fill `target` from the file; raise `EOFError` if the file ends before."""
    at = 0
    while at < len(target):
        count = file.readinto(target[at:])
        if not count:
            raise EOFError("it ends too early")
        at += count
