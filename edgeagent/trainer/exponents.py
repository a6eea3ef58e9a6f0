"""The exponent of each block of gradients, for `--exact` (`edgeagent/integer_blocks.py`).

The exponents are part of the training state, so all devices have them before an iteration begins,
and joiners pull them with the rest. They follow from the reduced gradients alone, and so are the
same on all devices. An exponent that is too small makes a block wide, which costs bytes; one that
is too large costs precision. So an exponent rises at once to what the last iteration needed, falls
by one in four iterations, and by half of the distance if it is far too large.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from edgeagent.integer_blocks import (
    BLOCK,
    FIELD,
    HEADROOM,
    LARGEST_SHIFT,
    LEAST_EXPONENT,
    MOST_EXPONENT,
    OFFSET,
)
from edgeagent.trainer.layout import TensorSpec

if TYPE_CHECKING:
    from edgeagent.trainer.gradients import VectorLayout

# What the tensor of the exponents is called in the training state.
NAME = "exact.exponents"
# A block's exponent is at most so much below that of the largest block of its tensor, so that a
# block that had small gradients for a while is not wide as soon as it has others.
SPREAD = 5
# An exponent that is too large by more than this falls by half of it in one iteration. It must not
# be less than `SPREAD`, or blocks without gradients would fall at once.
FAR = SPREAD
# In every so many iterations an exponent that is too large falls by one.
FALLS_EVERY = 4


class Exponents:
    """E of each block: `values`, int32 [chunks, blocks of a chunk], on the CPU. All begin at 0."""

    def __init__(self, layout: VectorLayout) -> None:
        self._layout = layout
        tensors = sorted({*layout.gradient_offsets, *layout.buffer_offsets})
        shape = (layout.chunks, layout.chunk_elements // BLOCK)
        self.values = torch.zeros(shape, dtype=torch.int32)
        starts = torch.arange(self.values.numel()) * BLOCK
        # The tensor that each block belongs to; padding counts as the tensor before it.
        begins = torch.tensor(tensors, dtype=torch.int64)
        self._tensor = torch.searchsorted(begins, starts, right=True).view(shape)
        self._tensors = len(tensors) + 1

    @property
    def spec(self) -> TensorSpec:
        """Return name, dtype and shape of the tensor that the training state has of them."""
        return TensorSpec(NAME, "I16", (self.values.numel(),))

    def __call__(self) -> torch.Tensor:
        """Return `values`."""
        return self.values

    def attach(self, view: torch.Tensor) -> None:
        """Keep them in `view`, int16 [blocks], from now on."""
        self._view = view
        self._put()

    def adopt(self) -> None:
        """Take over what another replica, or a file, has put where `attach` keeps them."""
        self.values = self._view.cpu().int().view(self.values.shape)

    def follow(self, reduced: torch.Tensor, iteration: int, *, finite: bool) -> None:
        """Choose the exponents of the next iteration. `reduced`: the vector R of `iteration`, on
        the CPU; `finite`: no number of it is infinite, NaN or lost."""
        now = self.values
        largest = ((self._layout.marks(reduced) >> LARGEST_SHIFT) & FIELD) - OFFSET
        if finite:
            now = self._followed(now, reduced, largest, falls=iteration % FALLS_EVERY == 0)
        else:
            now = torch.maximum(now, largest)
        self.values = now.clamp(LEAST_EXPONENT, MOST_EXPONENT).int()
        self._put()

    def _followed(
        self, now: torch.Tensor, reduced: torch.Tensor, largest: torch.Tensor, *, falls: bool
    ) -> torch.Tensor:
        numbers = self._layout.numbers(reduced).unflatten(1, (-1, BLOCK))
        peak = numbers.abs().amax(-1)
        sums = torch.where(peak > 0, torch.frexp(peak)[1], -OFFSET)
        need = torch.maximum(largest, sums - HEADROOM)
        tops = torch.full((self._tensors,), -OFFSET, dtype=need.dtype)
        tops.scatter_reduce_(0, self._tensor.flatten(), need.flatten(), "amax")
        top = tops[self._tensor]
        need = torch.maximum(need, top - SPREAD)
        gap = now - need
        lower = torch.where(gap > FAR, need + gap // 2, now - int(falls))
        chosen = torch.where(gap > 0, lower, need)
        return torch.where(top > -OFFSET, chosen, now)  # a tensor without gradients stays

    def _put(self) -> None:
        self._view.copy_(self.values.flatten())
