"""A snapshot of a training state, without a copy of the part that never changes.

Who reads a state for seconds, to send it to a joiner or to write it to a file, would have to hold
the training up meanwhile. So what changes of the state is copied first, which takes less. A frozen
base may be nearly all of the state: a copy of it would take as much memory again, although the
state itself always has the same bytes there.
"""

from __future__ import annotations

import contextlib
import mmap
from typing import TYPE_CHECKING

import numpy as np

from edgeagent.memory import room

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCK_BYTES = 16 << 20  # copied at a time
# A copy is made only if this many times its size is free, because everything else on the device
# needs memory, too.
SPARE = 1.5


class Snapshot:
    """The state as it was when its changing part was copied.

    It is read like the state's own memory, by its length and by slices without a step, so that
    shards of it are cut and hashed in the same way.
    """

    def __init__(self, constant: memoryview, changing: memoryview) -> None:
        """`constant`: the beginning of the state itself; `changing`: a copy of the rest."""
        self._constant = constant
        self._changing = changing

    def __len__(self) -> int:
        """Return how many bytes the state has."""
        return len(self._constant) + len(self._changing)

    def __getitem__(self, part: slice) -> memoryview:
        """Return these bytes; they are copied only where they lie on both sides."""
        first, end, _ = part.indices(len(self))
        border = len(self._constant)
        if end <= border:
            return self._constant[first:end]
        if first >= border:
            return self._changing[first - border : end - border]
        return memoryview(bytes(self._constant[first:]) + bytes(self._changing[: end - border]))


def take_snapshot(state: memoryview, constant_bytes: int, besides: int = 0) -> Snapshot | None:
    """Return a snapshot of `state`, which must not change meanwhile, and of which the first
    `constant_bytes` never do; None if there is too little memory for it and for the `besides` bytes
    that will be needed while it is kept."""
    constant, changing = state[:constant_bytes], state[constant_bytes:]
    free, size = room().free, len(changing)
    if free is not None and free < max(int(SPARE * size), size + besides):
        return None
    with contextlib.suppress(OSError, MemoryError):
        copied = private_memory(len(changing))
        copy_in_blocks(copied, changing)
        return Snapshot(constant, copied)
    return None


class Parts:
    """Parts of a memory as they were when they were copied; nothing else can be read."""

    def __init__(self, parts: dict[int, memoryview]) -> None:
        """`parts`: where each begins in the memory -> a copy of it."""
        self._parts = parts

    def __getitem__(self, part: slice) -> memoryview:
        """Return these bytes, which begin where a part begins and end within it. Raises `KeyError`
        for other ones."""
        return self._parts[part.start][: part.stop - part.start]


def take_parts(memory: memoryview, parts: Sequence[slice]) -> Parts | None:
    """Return a copy of some bytes of `memory`, which must not change meanwhile; None if there is
    too little memory for it. What is not copied is not read either: pages of it that have never
    been written would come into being."""
    free, size = room().free, sum(part.stop - part.start for part in parts)
    if free is not None and free < int(SPARE * size):
        return None
    with contextlib.suppress(OSError, MemoryError):
        copied, end = private_memory(size), 0
        found = {}
        for part in parts:
            start, end = end, end + part.stop - part.start
            copy_in_blocks(copied[start:end], memory[part])
            found[part.start] = copied[start:end]
        return Parts(found)
    return None


def copy_in_blocks(target: memoryview, source: memoryview) -> None:
    """Copy `source`, bytes, to `target`, so that a thread that does this keeps no other one from
    running for long."""
    for start in range(0, len(source), BLOCK_BYTES):
        part = slice(start, start + BLOCK_BYTES)
        np.copyto(np.frombuffer(target[part], "u1"), np.frombuffer(source[part], "u1"))


def private_memory(size: int) -> memoryview:
    """Return `size` bytes of memory that is given back to the system as soon as nobody uses it.
    Raises `OSError` if there is none."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return memoryview(mmap.mmap(-1, max(1, size), flags))[:size]
