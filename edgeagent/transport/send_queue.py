"""The bulk frames of one link that wait to be written, and which of them is next.

Frames of a more urgent class go first (`urgency.py`). Within a class, rounds, shards and probes
keep the order in which they were queued.

Chunks of one round go in ascending order, whenever they were queued. A node queues its own sums as
soon as its trainer has answered. The sums that it passes on, and reduced chunks, come later and
would have to wait behind all of those, although others wait for them and could pass them on
meanwhile.

A chunk never passes one of an earlier round, whatever their classes are, since the other end takes
that for a broken protocol (`protocols.rounds.frame_order`). The chunks that a joiner follows are
therefore as urgent as those of a round as soon as the first of these is queued for it: it has
become a member then, and all members wait for it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from edgeagent.transport.urgency import Urgency
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
        self._classes: tuple[deque[_Group], ...] = tuple(deque() for _ in Urgency)
        self._bytes = [0] * len(Urgency)
        self._length = 0
        self._count = 0  # frames ever queued: chunks of one number keep their order

    def __len__(self) -> int:
        return self._length

    def bytes_of(self, urgency: Urgency) -> int:
        """Return how many payload bytes of a class wait."""
        return self._bytes[urgency]

    def push(self, header: BulkHeader, payload: memoryview, urgency: Urgency) -> None:
        """Queue a frame."""
        if urgency is Urgency.ROUND:
            self._hurry_followed()
        tags = (header.lineage, header.view, header.policy, header.iteration, header.attempt)
        key = (*tags, header.term) if header.kind in _CHUNKS else None
        groups = self._classes[urgency]
        if not groups or key is None or groups[-1].key != key:
            groups.append(_Group(key))
        heappush(groups[-1].frames, (header.index, self._count, (header, payload)))
        self._bytes[urgency] += len(payload)
        self._count += 1
        self._length += 1

    def pop(self) -> Frame:
        """Return the next frame, which is queued no longer; raise `IndexError` if there is none."""
        for urgency, groups in zip(Urgency, self._classes, strict=True):
            if groups:
                frames = groups[0].frames
                frame = heappop(frames)[2]
                if not frames:
                    groups.popleft()
                self._bytes[urgency] -= len(frame[1])
                self._length -= 1
                return frame
        raise IndexError("no frame is queued")

    def clear(self) -> None:
        """Drop all frames."""
        for groups in self._classes:
            groups.clear()
        self._bytes = [0] * len(Urgency)
        self._length = 0

    def _hurry_followed(self) -> None:
        followed = self._classes[Urgency.FOLLOW]
        self._classes[Urgency.ROUND].extend(followed)
        followed.clear()
        self._bytes[Urgency.ROUND] += self._bytes[Urgency.FOLLOW]
        self._bytes[Urgency.FOLLOW] = 0
