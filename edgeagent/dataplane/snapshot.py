"""A snapshot of a training state, without a copy of the part that never changes.

A frozen base may be nearly all of the state. A copy of it would take as much memory again on each
device that others join, although the state itself always has the same bytes there.
"""

from __future__ import annotations


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
