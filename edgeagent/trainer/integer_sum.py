"""This node's own contribution as integers, for `--exact` (`edgeagent/integer_blocks.py`).

The gradients of each micro-batch are rounded to multiples of their blocks' units, and only those
multiples are added up. What a micro-batch gives to the sum thus depends on the micro-batch and on
the exponents alone, and not on what has been added before it or on another device.

On the CPU this works on one chunk after the other, so that everything stays in the processor's
cache. On another device it works on the whole vector at once, since each operation has a fixed cost
there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from edgeagent.integer_blocks import (
    BITS,
    BLOCK,
    FIELD,
    HEADROOM,
    LARGEST_SHIFT,
    LOST,
    OFFSET,
    WIDE,
    WIDE_HEADROOM,
)
from edgeagent.trainer.gradients import GradientSum, dense_gradient
from edgeagent.trainer.image import CPU

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from edgeagent.shared_memory import SharedRegion
    from edgeagent.trainer.exponents import Exponents
    from edgeagent.trainer.gradients import VectorLayout
    from edgeagent.trainer.staging import Staging

# About how many numbers are worked on at a time on the CPU: so few that they stay in the cache, and
# so many that the fixed cost of each operation does not matter.
_AT_ONCE = 1 << 20
_MOST = (1 << 31) - 1  # of int32


class IntegerSum(GradientSum):
    """The sum over the micro-batches that this node computed.

    As `GradientSum`, and: `wide` is the shared memory for the int64 numbers of wide blocks, on the
    CPU, `BLOCK` for each block of the vector; `exponents` returns E of each block, int32 [chunks,
    blocks of a chunk], on the CPU. `floats` has the changes of buffers in the running micro-batch,
    in the places of the vector from `layout.gradient_elements` on.
    """

    def __init__(
        self,
        layout: VectorLayout,
        shared: torch.Tensor,
        parameters: Sequence[torch.nn.Parameter],
        names: Sequence[str],
        device: torch.device,
        staging: Staging | None,
        wide: torch.Tensor,
        exponents: Callable[[], torch.Tensor],
    ) -> None:
        super().__init__(layout, shared, parameters, names, device, staging)
        self._wide = wide.view(-1, BLOCK)
        self._exponents = exponents
        size, home = layout.chunk_elements, self.vector.device
        words = self.vector.view(torch.int32)
        self._numbers = layout.numbers(words).unflatten(1, (-1, BLOCK))  # [chunks, blocks, BLOCK]
        self._marks = layout.marks(words)  # [chunks, blocks]
        self._rows = torch.arange(self._marks.numel()).view(self._marks.shape)  # of `wide`
        # What no integer of a block is beyond, so that an overflow is foreseen.
        self._bounds = torch.zeros(self._marks.shape, dtype=torch.int64)
        self._has_wide = False
        self._step = size * (max(1, _AT_ONCE // size) if home == CPU else layout.chunks)
        self._piece = torch.zeros(min(self._step, layout.elements), device=home)
        self._spare = torch.empty_like(self._piece)
        self.floats = torch.zeros(layout.elements - layout.gradient_elements, device=home)
        ends = [o + p.numel() for o, p in zip(layout.gradient_offsets, parameters, strict=True)]
        self._spans = list(zip(layout.gradient_offsets, ends, strict=True))

    def for_buffers(self) -> tuple[torch.Tensor, int]:
        """Return `floats` and where it begins in the vector."""
        return self.floats, self._layout.gradient_elements

    def clear(self) -> None:
        """Set the sum to zero."""
        if self._has_wide:
            self._wide[((self._marks & WIDE) != 0).flatten().cpu()] = 0
            self._has_wide = False
        self._bounds.zero_()
        self.floats.zero_()
        super().clear()

    def take(self, number: int) -> None:
        """Add the `.grad` of parameter `number` now, before `add` does that for the others."""
        self._clean = self._is_home = False
        gradient = self._parameters[number].grad
        if gradient is None:
            return
        start, end = self._spans[number]
        end, size = -(-end // BLOCK) * BLOCK, self._layout.chunk_elements
        flat = gradient.detach().to(self.vector.device).reshape(-1)
        while start < end:  # as many whole chunks as possible, or what there is of one
            within, whole = start % size, (end - start) // size * size
            stop = start + min(self._step, whole) if whole and not within else start - within + size
            stop = min(stop, end)
            self._take_in(start, stop, {number: flat})
            start = stop

    def add(self, taken: Callable[[int], bool] = lambda _: False) -> bool:
        """Add the `.grad` of every parameter and set it to None; return whether there was any.

        Those of which `taken` says so are in the sum already. Raises `UsageError` for a sparse
        gradient.
        """
        self._clean = self._is_home = False
        flat, some_left = {}, False
        for number, parameter in enumerate(self._parameters):
            gradient = dense_gradient(self._names[number], parameter)
            if gradient is None:
                continue
            self._bits |= 1 << number
            if taken(number):
                some_left = True
            else:
                flat[number] = gradient.detach().to(self.vector.device).reshape(-1)
        if some_left:
            for number in flat:
                self.take(number)
        self._take_in_all({} if some_left else flat)
        found = bool(flat) or some_left
        for parameter in self._parameters:
            parameter.grad = None
        return found

    def _take_in_all(self, gradients: Mapping[int, torch.Tensor]) -> None:
        """Add these gradients, by number, and the changes of buffers."""
        layout = self._layout
        begin = 0 if gradients else layout.gradient_elements
        for start in range(begin, layout.elements, self._step):
            self._take_in(start, min(start + self._step, layout.elements), gradients)

    def _take_in(self, start: int, stop: int, gradients: Mapping[int, torch.Tensor]) -> None:
        """Add what lies in [start, stop) of the vector: whole chunks, or whole blocks of one."""
        layout, size = self._layout, self._layout.chunk_elements
        piece = self._piece[: stop - start].zero_()
        for number, flat in gradients.items():
            first, last = self._spans[number]
            low, high = max(first, start), min(last, stop)
            if low < high:
                piece[low - start : high - start].copy_(flat[low - first : high - first])
        low = max(start, layout.gradient_elements)
        if low < stop:
            changes = self.floats[low - layout.gradient_elements : stop - layout.gradient_elements]
            piece[low - start :].copy_(changes)
            changes.zero_()
        chunks, blocks = slice(start // size, -(-stop // size)), slice(None)
        if stop - start < size:
            first = start % size // BLOCK
            blocks = slice(first, first + (stop - start) // BLOCK)
        self._add_blocks(piece, chunks, blocks)

    def _add_blocks(self, piece: torch.Tensor, chunks: slice, blocks: slice) -> None:
        """Add the numbers in `piece`, which is written to, to these blocks of these chunks."""
        numbers, marks = self._numbers[chunks, blocks], self._marks[chunks, blocks]
        exponents, bounds = self._exponents()[chunks, blocks], self._bounds[chunks, blocks]
        given = piece.view(numbers.shape)
        spare = self._spare[: len(piece)].view(numbers.shape)
        peak = torch.abs(given, out=spare).amax(-1).cpu()
        largest = torch.frexp(peak)[1]  # |given| < 2^largest
        finite, some = torch.isfinite(peak), peak != 0
        above, units = largest - exponents, exponents + (HEADROOM - BITS)
        lost = ~finite | (some & (above > WIDE_HEADROOM))
        before = marks.cpu()
        said = torch.maximum(
            (before >> LARGEST_SHIFT) & FIELD, torch.where(some & finite, largest + OFFSET, 0)
        )
        after = (exponents + OFFSET) | (said << LARGEST_SHIFT) | (before & (WIDE | LOST))
        most = torch.bitwise_left_shift(torch.ones_like(bounds), (largest - units).clamp(0, BITS))
        bounds += torch.where(some, most, 0)
        special = lost | (some & (above > HEADROOM)) | (bounds > _MOST)
        if self._has_wide:
            special |= some & ((before & WIDE) != 0)
        if bool(special.any()):
            after |= torch.where(lost, LOST, 0).int()
            given[lost.to(given.device)] = 0.0
            after |= self._add_carefully(given, numbers, (chunks, blocks), special, units, after)
        marks.copy_(after)
        scaled = given.mul_(_powers(-units).to(given.device).unsqueeze(-1)).round_()
        numbers.add_(scaled.to(torch.int32))

    def _add_carefully(
        self,
        given: torch.Tensor,
        numbers: torch.Tensor,
        place: tuple[slice, slice],
        special: torch.Tensor,
        units: torch.Tensor,
        marks: torch.Tensor,
    ) -> torch.Tensor:
        """Add the blocks that `special` selects with int64, and set what is `given` of them to
        zero; return the flags of those that are wide from now on, int32 like `marks`."""
        chosen = special.to(given.device)
        wide = given[chosen].double().cpu() * _powers(-units[special], wide=True).unsqueeze(-1)
        total = wide.round_().long() + numbers[chosen].long().cpu()
        given[chosen] = 0.0
        peaks = total.abs().amax(-1)
        rows, was_wide = self._rows[place][special], (marks[special] & WIDE) != 0
        becomes_wide = ~was_wide & (peaks > _MOST)
        self._wide[rows[was_wide]] += total[was_wide]
        self._wide[rows[becomes_wide]] = total[becomes_wide]
        is_wide = was_wide | becomes_wide
        self._has_wide = self._has_wide or bool(is_wide.any())
        self._bounds[place][special] = torch.where(is_wide, 0, peaks)
        total[is_wide] = 0
        numbers[chosen] = total.int().to(numbers.device)
        flags = torch.zeros_like(marks)
        flags[special] = torch.where(is_wide, WIDE, 0).int()
        return flags


def _powers(exponents: torch.Tensor, *, wide: bool = False) -> torch.Tensor:
    """Return 2 to the power of each, exactly: float32, or float64 if `wide`. Made of bits, because
    torch computes powers by approximation."""
    if wide:
        return ((exponents.long() + 1023) << 52).view(torch.float64)
    return ((exponents.int() + 127) << 23).view(torch.float32)


def own_sum(
    layout: VectorLayout,
    vector: torch.Tensor,
    wide: SharedRegion,
    exponents: Exponents | None,
    parameters: Sequence[torch.nn.Parameter],
    names: Sequence[str],
    device: torch.device,
    staging: Staging | None,
) -> GradientSum:
    """Return this node's sum, of integers if there are `exponents`. Arguments as of the classes;
    `vector` and `wide` are the shared memory."""
    if exponents is None:
        return GradientSum(layout, vector, parameters, names, device, staging)
    rows = torch.frombuffer(wide.memory, dtype=torch.int64)[: layout.elements]
    return IntegerSum(layout, vector, parameters, names, device, staging, rows, exponents)
