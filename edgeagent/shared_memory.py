"""The memory that the agent process and the trainer process both map.

There are eight regions, always in this order: state, contribution, reduced[0], reduced[1],
replay, marks, wide, held. All are reserved when they are created, so that a lack of memory shows at
once, except `replay`, `wide` and `held`, of which little is used as a rule, and reduced[1] if the
optimizer's slots are divided. The memory is anonymous: it has no name in any file system and is
freed with the last process that maps it. It starts as zeros.

The trainer creates the memory and passes the descriptors immediately before its `Hello`; both ends
compute the sizes from that `Hello` with `region_sizes`. `handover.py` says who may write where and
when.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import socket
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeagent.errors import AgentLost, EdgeAgentError
from edgeagent.handover import SHARED_REGIONS
from edgeagent.held_memory import HeldLayout
from edgeagent.marks import MARKS
from edgeagent.terminal.text import bytes_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from edgeagent.handover import Hello

ACCUMULATE_DTYPES = ("float32", "float64")
_ODD = 3  # position of reduced[1] among the regions
_UNRESERVED = (4, 6, 7)  # those of `replay`, `wide` and `held`
_MARK = b"EAM1"  # sent with the descriptors, because they cannot be sent without a byte


class SharedRegion:
    """One piece of shared memory with `size` usable bytes, mapped up to a whole page."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor = descriptor
        self.size = size
        self.memory = mmap.mmap(descriptor, mapped_bytes(size))

    def view(self) -> memoryview:
        """Return the usable bytes, writable."""
        return memoryview(self.memory)[: self.size]

    def array(self, dtype: str) -> np.ndarray[Any, Any]:
        """Return the usable bytes as a one-dimensional writable array of `dtype`."""
        return np.frombuffer(self.memory, dtype=dtype, count=self.size // np.dtype(dtype).itemsize)

    def release(self, start: int = 0, end: int | None = None) -> None:
        """Give the memory of these bytes back to the system, as far as it is whole pages; by
        default all. What is read there later is zeros; where the system cannot do that, it is what
        was there, so nobody may count on either."""
        page = mmap.PAGESIZE
        first = -(-start // page) * page
        last = mapped_bytes(self.size) if end is None else end // page * page
        if last > first and hasattr(mmap, "MADV_REMOVE"):
            self.memory.madvise(mmap.MADV_REMOVE, first, last - first)

    def close_descriptor(self) -> None:
        """Close the descriptor; the mapping stays as long as it is used."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """The regions, mapped."""

    state: SharedRegion
    contribution: SharedRegion
    reduced: tuple[SharedRegion, SharedRegion]
    replay: SharedRegion
    marks: SharedRegion
    wide: SharedRegion
    held: SharedRegion

    def regions(self) -> tuple[SharedRegion, ...]:
        """Return the regions in the order in which their descriptors travel."""
        first = (self.state, self.contribution, *self.reduced)
        return (*first, self.replay, self.marks, self.wide, self.held)

    def close_descriptors(self) -> None:
        """Close all descriptors; the mappings stay."""
        for region in self.regions():
            region.close_descriptor()


def mapped_bytes(size: int) -> int:
    """Return `size` rounded up to whole pages, at least one."""
    return max(1, -(-size // mmap.PAGESIZE)) * mmap.PAGESIZE


def region_sizes(
    state_bytes: int, elements: int, accumulate: str, wide_bytes: int = 0, held_bytes: int = 0
) -> tuple[int, ...]:
    """Return the bytes of the regions; raise `EdgeAgentError` if the layout is impossible."""
    if (
        accumulate not in ACCUMULATE_DTYPES
        or min(state_bytes, elements, wide_bytes, held_bytes) < 0
    ):
        raise EdgeAgentError("the trainer announced an impossible layout of shared memory")
    vector = elements * np.dtype(accumulate).itemsize
    return (state_bytes, vector, vector, vector, vector, MARKS * 8, wide_bytes, held_bytes)


def create_shared_memory(
    state_bytes: int, elements: int, accumulate: str, wide_bytes: int = 0, held_bytes: int = 0
) -> SharedMemory:
    """Create the regions, filled with zeros.

    Raises `EdgeAgentError` if the machine has not enough memory.
    """
    seldom = (*_UNRESERVED, _ODD) if held_bytes else _UNRESERVED
    return _memory(
        SharedRegion(_create(size, reserve=number not in seldom), size)
        for number, size in enumerate(
            region_sizes(state_bytes, elements, accumulate, wide_bytes, held_bytes)
        )
    )


def attach_shared_memory(hello: Hello, descriptors: Sequence[int]) -> SharedMemory:
    """Map the regions that `descriptors` name, in the layout that `hello` announces.

    Takes the descriptors over: they are closed with `SharedMemory.close_descriptors`. Raises
    `EdgeAgentError` if their number or a size does not fit.
    """
    held = HeldLayout(hello.slots, hello.elements, hello.chunk_elements)
    held_bytes = held.bytes if hello.slots else 0
    known = (hello.state_bytes, hello.elements, hello.accumulate, hello.wide_bytes)
    sizes = region_sizes(*known, held_bytes)
    if len(descriptors) != len(sizes):
        raise EdgeAgentError("the trainer did not pass its shared memory")
    for descriptor, size in zip(descriptors, sizes, strict=True):
        if os.fstat(descriptor).st_size < mapped_bytes(size):
            raise EdgeAgentError("the trainer's shared memory is smaller than it announced")
    return _memory(
        SharedRegion(descriptor, size) for descriptor, size in zip(descriptors, sizes, strict=True)
    )


def send_descriptors(connection: socket.socket, memory: SharedMemory) -> None:
    """Pass the descriptors over a Unix socket; raise `AgentLost` if nobody is there."""
    descriptors = [region.descriptor for region in memory.regions()]
    try:
        socket.send_fds(connection, [_MARK], descriptors)
    except OSError:
        raise AgentLost("the agent process ended before training began") from None


def receive_descriptors(connection: socket.socket) -> tuple[int, ...]:
    """Receive the descriptors from a Unix socket, on which they come first.

    Blocks if `connection` does; otherwise raises `BlockingIOError` if nothing has arrived. Raises
    `EOFError` if the other end has closed, `EdgeAgentError` if something else has arrived.
    """
    mark, descriptors, flags, _ = socket.recv_fds(connection, len(_MARK), SHARED_REGIONS)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    if not mark and not descriptors:
        raise EOFError("the trainer ended before it said anything")
    if mark != _MARK or len(descriptors) != SHARED_REGIONS or flags & socket.MSG_CTRUNC:
        for descriptor in descriptors:
            os.close(descriptor)
        raise EdgeAgentError("the trainer did not pass its shared memory")
    return tuple(descriptors)


async def wait_for_descriptors(connection: socket.socket) -> tuple[int, ...]:
    """Do what `receive_descriptors` does, on a non-blocking socket without blocking the loop."""
    loop = asyncio.get_running_loop()
    while True:
        readable: asyncio.Future[None] = loop.create_future()
        loop.add_reader(connection.fileno(), _set_once, readable)
        try:
            await readable
        finally:
            loop.remove_reader(connection.fileno())
        try:
            return receive_descriptors(connection)
        except BlockingIOError:
            continue


def _set_once(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _memory(regions: Iterable[SharedRegion]) -> SharedMemory:
    state, contribution, even, odd, replay, marks, wide, held = regions
    return SharedMemory(state, contribution, (even, odd), replay, marks, wide, held)


def _create(size: int, *, reserve: bool) -> int:
    descriptor = _open_anonymous()
    length = mapped_bytes(size)
    try:
        os.ftruncate(descriptor, length)
        if reserve and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, length)
    except OSError as error:
        os.close(descriptor)
        raise EdgeAgentError(
            f"cannot reserve {bytes_text(length)} of shared memory: {error.strerror}; close other "
            "programs (`edgeagent run JOB --dry-run` says what a job needs)"
        ) from None
    return descriptor


def _open_anonymous() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("edgeagent", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile(prefix="edgeagent-") as file:
        return os.dup(file.fileno())
