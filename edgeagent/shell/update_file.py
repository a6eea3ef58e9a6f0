"""Where the parts of an update lie that a joiner has received.

A joiner may have to keep many updates until the snapshot is here. They lie in files without names,
so that the system can write them to the disk when memory is short. The space is reserved before it
is written to, because a write to a mapped file that cannot grow would end the process; but only for
a part at a time, since on some file systems that takes as long as to write zeros, and it is done on
the event loop. What finds no space on the disks lies in memory.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import weakref

from edgeagent.dataplane.snapshot import private_memory

# Where these files are, unless the user has chosen another folder with one of these variables: the
# folder for temporary files is memory on many systems, this one is not.
LARGE_TEMPORARY = "/var/tmp"
TEMPORARY_VARIABLES = ("TMPDIR", "TEMP", "TMP")  # those of the standard library


class UpdateFile:
    """An update of `size` bytes, which comes in parts of `part_bytes`, the last of them shorter."""

    def __init__(self, size: int, part_bytes: int) -> None:
        self._size, self._part_bytes = size, part_bytes
        self._file = -1
        self._reserved: set[int] = set()
        self._elsewhere: dict[int, memoryview] = {}  # parts that the disk had no space for
        self._mapped = self._map()
        self._close_if_reserved()

    def part(self, index: int) -> memoryview:
        """Return the bytes of a part, which can be written to; none if there is no such part."""
        start, end = self._span(index)
        if start < end and self._file >= 0 and index not in self._reserved:
            self._reserved.add(index)
            try:
                _reserve(self._file, start, end - start)
            except OSError:
                self._elsewhere[index] = private_memory(end - start)
            self._close_if_reserved()
        found = self._elsewhere.get(index)
        return found if found is not None else self._mapped[start:end]

    def _close_if_reserved(self) -> None:
        """Close the file once all of it is reserved: there may be a thousand updates, and a process
        may have about as many open files. The mapping keeps one of its own open."""
        if self._file >= 0 and len(self._reserved) == -(-self._size // self._part_bytes):
            self._file = -1
            self._closing()

    def whole(self) -> memoryview:
        """Return the update, of which every part was asked for."""
        if not self._elsewhere:
            return self._mapped
        copied = private_memory(self._size)
        for index in range(-(-self._size // self._part_bytes)):
            start, end = self._span(index)
            copied[start:end] = self.part(index)
        return copied

    def _span(self, index: int) -> tuple[int, int]:
        start = index * self._part_bytes
        return start, min(start + self._part_bytes, self._size)

    def _map(self) -> memoryview:
        """Return memory for all of it: in the first folder that has space for one part."""
        chosen = any(name in os.environ for name in TEMPORARY_VARIABLES)
        for folder in (None,) if chosen else (LARGE_TEMPORARY, None):
            with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=folder) as file:
                os.ftruncate(file.fileno(), self._size)
                _reserve(file.fileno(), *self._span(0))
                mapped = memoryview(mmap.mmap(file.fileno(), self._size))
                self._file = os.dup(file.fileno())
                self._closing = weakref.finalize(self, os.close, self._file)
                self._reserved.add(0)
                return mapped
        return private_memory(self._size)


def _reserve(file: int, start: int, length: int) -> None:
    if hasattr(os, "posix_fallocate"):  # macOS has none
        os.posix_fallocate(file, start, length)
    elif os.pwrite(file, bytes(length), start) < length:
        raise OSError(28, "No space left on device")
