"""Flat copies between the trainer's device and the host's memory, in large pieces.

Law: whatever crosses between the device and the memory that the agent maps crosses here, and what
is copied is one flat vector, never tensor by tensor. For CUDA the pieces go through pinned memory,
which the device reads and writes by itself; `copies` counts them.
"""

from __future__ import annotations

import torch

PIECE_BYTES = 64 << 20  # bounds the pinned memory


class Staging:
    """Copies between `device` and the host; vectors of one dtype and length at a time."""

    def __init__(self, device: torch.device, piece_bytes: int = PIECE_BYTES) -> None:
        self.copies = 0
        self._piece_bytes = piece_bytes
        self._pins = device.type == "cuda"
        self._pinned: torch.Tensor | None = None

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy `source` into `target`, one of which is on the device and the other on the host.

        Returns when the copy is done: `source` may change afterwards.
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
