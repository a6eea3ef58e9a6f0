"""The bulk frames of one link that wait to be written, and which of them is next.

Chunks of one round go in ascending order, whenever they were queued. A node queues its own sums as
soon as its trainer has answered. The sums that it passes on, and reduced chunks, come later and
would have to wait behind all of those, although others wait for them and could pass them on
meanwhile. Everything else keeps its order: the frames of another round, shards and probes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from protocols.wire.bulk import BulkKind

if TYPE_CHECKING:
    from protocols.wire.bulk import BulkHeader

Frame = tuple["BulkHeader", memoryview]
_CHUNKS = (BulkKind.UP, BulkKind.DOWN)


@dataclass(slots=True)
class _Group:
    """Frames that follow each other: all of one round, or a single other one."""

    key: tuple[bytes, int, int, int, int, int] | None
    frames: list[tuple[int, int, Frame]] = field(default_factory=list)  # a heap


class SendQueue:
    """Frames in the order in which they are to be written. `len()` is their number."""

    def __init__(self) -> None:
        self._groups: deque[_Group] = deque()
        self._length = 0
        self._count = 0  # frames ever queued: chunks of one number keep their order

    def __len__(self) -> int:
        return self._length

    def push(self, header: BulkHeader, payload: memoryview) -> None:
        """Queue a frame."""
        tags = (header.lineage, header.view, header.policy, header.iteration, header.attempt)
        key = (*tags, header.term) if header.kind in _CHUNKS else None
        if not self._groups or key is None or self._groups[-1].key != key:
            self._groups.append(_Group(key))
        heappush(self._groups[-1].frames, (header.index, self._count, (header, payload)))
        self._count += 1
        self._length += 1

    def pop(self) -> Frame:
        """Return the next frame, which is queued no longer; raise `IndexError` if there is none."""
        first = self._groups[0].frames
        frame = heappop(first)[2]
        if not first:
            self._groups.popleft()
        self._length -= 1
        return frame

    def drop(self, kind: BulkKind) -> int:
        """Drop all frames of this kind; return the size of their payloads in bytes."""
        size = 0
        for group in self._groups:
            gone = [entry for entry in group.frames if entry[2][0].kind is kind]
            group.frames = [entry for entry in group.frames if entry[2][0].kind is not kind]
            heapify(group.frames)
            self._length -= len(gone)
            size += sum(len(payload) for _, _, (_, payload) in gone)
        self._groups = deque(group for group in self._groups if group.frames)
        return size

    def clear(self) -> None:
        """Drop all frames."""
        self._groups.clear()
        self._length = 0
