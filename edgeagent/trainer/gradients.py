"""Gradients as one flat vector: summed over micro-batches, reduced elsewhere, handed to the step.

Law: the vector holds the gradients of all trainable parameters in canonical order, then the
changes of the floating buffers. Every tensor starts at a multiple of 16 elements; if there are
buffers, the first section ends with a chunk, so that a chunk never holds both. Padding is zero.
A node sums on its own device and brings the vector home once for its share. Everything the step
sees (division, clipping) is computed on the CPU from the reduced bytes alone, so it is the same on
all replicas, and then goes to the device as one vector.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.trainer.image import CPU
from protocols import limits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgeagent.trainer.staging import Staging

ELEMENT_STEP = 16  # tensors, chunks and later shards are cut at multiples of this
CHUNK_ELEMENTS_AIM = 65536
CHUNK_ELEMENTS_LEAST = 4096
CHUNKS_AIM = 16  # enough to keep a tree of a few levels busy
CHUNKS_MOST = 4096
CLIP_EPSILON = 1e-6  # as torch.nn.utils.clip_grad_norm_


@dataclass(frozen=True, slots=True)
class VectorLayout:
    """Where each tensor lies in the flat vector; all numbers are elements of `dtype`."""

    dtype: torch.dtype
    gradient_offsets: tuple[int, ...]
    buffer_offsets: tuple[int, ...]
    gradient_elements: int
    elements: int
    chunk_elements: int

    @property
    def accumulate(self) -> str:
        """Return the numpy name of `dtype`."""
        return "float64" if self.dtype == torch.float64 else "float32"

    @property
    def gradient_chunks(self) -> int:
        """Return how many chunks hold gradients; the others hold buffers."""
        return -(-self.gradient_elements // self.chunk_elements)

    @property
    def chunks(self) -> int:
        """Return the number of chunks."""
        return -(-self.elements // self.chunk_elements)


def plan_vector(
    gradient_sizes: Sequence[int], buffer_sizes: Sequence[int], dtype: torch.dtype
) -> VectorLayout:
    """Lay out a vector for tensors of the given numbers of elements."""
    gradient_offsets, gradients = _place(gradient_sizes, 0)
    chunk = chunk_elements_for(gradients, dtype.itemsize)
    if buffer_sizes:
        gradients = -(-gradients // chunk) * chunk
    buffer_offsets, elements = _place(buffer_sizes, gradients)
    return VectorLayout(
        dtype, tuple(gradient_offsets), tuple(buffer_offsets), gradients, elements, chunk
    )


def chunk_elements_for(elements: int, item_bytes: int) -> int:
    """Return the chunk length, a multiple of 16: short for small vectors, at most 1 MiB."""
    most = limits.MAX_CHUNK_BYTES // item_bytes
    aim = min(CHUNK_ELEMENTS_AIM, max(CHUNK_ELEMENTS_LEAST, elements // CHUNKS_AIM))
    aim = min(most, max(aim, elements // CHUNKS_MOST))
    count = max(1, -(-elements // aim))
    return min(most, max(ELEMENT_STEP, _padded(-(-elements // count))))


class GradientSum:
    """This node's own contribution: the sum over the micro-batches it computed.

    `shared`: the flat vector in shared memory. `parameters`: trainable ones in canonical order.
    `staging`: how the sum comes from `device` to the shared memory; None sums there at once.
    """

    def __init__(
        self,
        layout: VectorLayout,
        shared: torch.Tensor,
        parameters: Sequence[torch.nn.Parameter],
        names: Sequence[str],
        device: torch.device = CPU,
        staging: Staging | None = None,
    ) -> None:
        self._layout = layout
        self._shared = shared
        self._staging = staging
        self.vector = shared if staging is None else torch.zeros_like(shared, device=device)
        self._parameters = list(parameters)
        self._names = list(names)
        self._views = [
            self.vector[offset : offset + parameter.numel()].view(parameter.shape)
            for offset, parameter in zip(layout.gradient_offsets, parameters, strict=True)
        ]
        self._bits = 0
        self._clean = True
        self._is_home = True

    def clear(self) -> None:
        """Start a new iteration with zeros."""
        if not self._clean:
            self.vector.zero_()
            self._is_home = False
        self._bits = 0
        self._clean = True

    def add(self) -> bool:
        """Add every parameter's `.grad` and set it to None; return whether there was any.

        Raises `UsageError` for a sparse one.
        """
        self._clean = self._is_home = False
        found = False
        for number, (parameter, view) in enumerate(zip(self._parameters, self._views, strict=True)):
            gradient = parameter.grad
            if gradient is None:
                continue
            if gradient.layout != torch.strided:
                raise UsageError(f"{self._names[number]} has a sparse gradient; use a dense one")
            view.add_(gradient.detach().to(view.device))
            self._bits |= 1 << number
            parameter.grad = None
            found = True
        return found

    def bring_home(self) -> None:
        """Have the sum, buffers included, in the shared memory."""
        if self._staging is not None and not self._is_home:
            self._staging.copy(self.vector, self._shared)
        self._is_home = True

    def bitmap(self) -> bytes:
        """Return which parameters had a gradient, one bit each, little-endian."""
        return self._bits.to_bytes(math.ceil(len(self._parameters) / 8), "little")


def is_finite(square_sums: Sequence[float], layout: VectorLayout) -> bool:
    """Return whether all gradients are finite; raise `EdgeAgentError` if chunks are missing."""
    if len(square_sums) != layout.chunks:
        raise EdgeAgentError("the agent reported the squares of another number of chunks")
    return all(math.isfinite(value) for value in square_sums[: layout.gradient_chunks])


def clip_coefficient(
    square_sums: Sequence[float], layout: VectorLayout, weight: float, max_norm: float | None
) -> float | None:
    """Return what to multiply the mean gradient by, None if its norm is within `max_norm`.

    The norm is that of the mean (sum / weight), added up in chunk order in float64.
    """
    if max_norm is None:
        return None
    total = 0.0
    for value in square_sums[: layout.gradient_chunks]:
        total += value
    coefficient = max_norm / (math.sqrt(total) / weight + CLIP_EPSILON)
    return coefficient if coefficient < 1.0 else None


def mean_of(
    layout: VectorLayout,
    reduced: torch.Tensor,
    weight: int,
    coefficient: float | None,
    scale: float = 1.0,
) -> torch.Tensor:
    """Return the mean that the step sees, a vector of its own on the CPU: of gradients clipped.

    `reduced`: the summed vector, not changed. `weight`: micro-batches summed. `scale`: what every
    loss was multiplied by. Raises `EdgeAgentError` if the weight is impossible.
    """
    if weight < 1:
        raise EdgeAgentError("the agent reported an impossible reduction")
    mean = reduced / weight
    gradients = mean[: layout.gradient_elements]
    if scale != 1.0:
        gradients /= scale  # for itself: their product may be more than a float32 holds
    if coefficient is not None:
        gradients *= coefficient
    return mean


def set_gradients(
    layout: VectorLayout,
    mean: torch.Tensor,
    parameters: Sequence[torch.nn.Parameter],
    bitmap: bytes,
) -> None:
    """Set `.grad` of each parameter to its part of `mean`, or None where nobody had a gradient.

    Raises `EdgeAgentError` if the bitmap is impossible.
    """
    bits = int.from_bytes(bitmap, "little")
    if len(bitmap) != math.ceil(len(parameters) / 8) or bits >> len(parameters):
        raise EdgeAgentError("the agent reported an impossible reduction")
    for number, (offset, parameter) in enumerate(
        zip(layout.gradient_offsets, parameters, strict=True)
    ):
        if bits >> number & 1:
            gradient = mean[offset : offset + parameter.numel()].view(parameter.shape)
            parameter.grad = gradient.to(parameter.dtype).to(parameter.device)
        else:
            parameter.grad = None


def _place(sizes: Sequence[int], start: int) -> tuple[list[int], int]:
    offsets = []
    for size in sizes:
        offsets.append(start)
        start += _padded(size)
    return offsets, start


def _padded(elements: int) -> int:
    return -(-elements // ELEMENT_STEP) * ELEMENT_STEP
