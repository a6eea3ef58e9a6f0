"""Flat copies between the trainer's device and the host's memory, in large pieces.

The flat vectors of state and gradients cross here between the device and the memory that the agent
maps, always as a whole and never tensor by tensor, because each copy has a fixed cost. For CUDA the
pieces go through pinned (page-locked) memory, which the device reads and writes by itself.
"""

from __future__ import annotations

import torch

# The longest piece, in bytes. It bounds the pinned memory, which the system cannot swap out, and is
# large enough for the fixed cost of a copy not to matter.
PIECE_BYTES = 64 << 20


class Staging:
    """Copies vectors between `device` and the host; `copies` counts the pieces, for the tests."""

    def __init__(self, device: torch.device, piece_bytes: int = PIECE_BYTES) -> None:
        self.copies = 0
        self._piece_bytes = piece_bytes
        self._pins = device.type == "cuda"
        self._pinned: torch.Tensor | None = None

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy `source` into `target`, one of which is on the device and the other on the host.

        Both are one-dimensional and have the same dtype and length. When this returns, the copy is
        done and `source` may change.
        """
        for start, end in self._pieces(source):
            piece, pinned = source[start:end], self._room(source, end - start)
            if pinned is not None:
                piece = pinned.copy_(piece)
            target[start:end].copy_(piece)
            self.copies += 1

    def _pieces(self, source: torch.Tensor) -> list[tuple[int, int]]:
        count, step = source.numel(), max(1, self._piece_bytes // source.itemsize)
        return [(start, min(start + step, count)) for start in range(0, count, step)]

    def _room(self, like: torch.Tensor, count: int) -> torch.Tensor | None:
        """Return pinned memory for `count` elements; None where the device has no use for it."""
        if not self._pins:
            return None
        size = count * like.itemsize
        if self._pinned is None or self._pinned.numel() < size:
            self._pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        return self._pinned[:size].view(like.dtype)
