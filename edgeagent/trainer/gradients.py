"""Gradients as one flat vector: summed over micro-batches, reduced by the agents, then applied.

The vector holds the gradients of all trainable parameters and behind them the changes of the
floating-point buffers. The parameter that was registered last comes first, because `backward()`
computes its gradient first, and chunks travel in ascending order (`overlap.py`). Every tensor
starts at a multiple of 16 elements, and padding is zero. If there are buffers, the section of
gradients ends where a chunk ends, so that no chunk holds both: the squares of whole chunks give the
norm of the gradients.

A node sums on its own device and copies the vector into the shared memory once for its share. The
reduced vector goes to the device as a whole and is divided and clipped there, by operations that
round alike on all devices (`exact_arithmetic.py`); on the CPU, if the device has no such division.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.integer_blocks import BLOCK, BLOCK_WORDS, MOST_BLOCKS
from edgeagent.trainer.image import CPU
from protocols import limits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from mmap import mmap

    from edgeagent.trainer.mean import Mean
    from edgeagent.trainer.staging import Staging

# Tensors and chunks start at multiples of this number of elements: 64 bytes in float32, which is a
# line of the processor's cache.
ELEMENT_STEP = 16
# The number of elements that a chunk of a large vector aims at: 256 KiB in float32.
CHUNK_ELEMENTS_AIM = 65536
# How many chunks a vector aims at: enough to divide them among many ways by weight, and to keep all
# links busy until shortly before the end of a round.
CHUNKS_AIM = 160
# A small vector of n elements has chunks of this many times the square root of n, and so fewer than
# `CHUNKS_AIM`. With K chunks an agent needs K times the 0.1 to 0.3 ms that it takes to send, check
# and add one; on the other hand each level of a tree passes a chunk on only when all of it has
# come, and so adds the time of one chunk, a K-th of the whole. The sum of both costs is least where
# K grows as the square root. At 1 MB it makes 42 chunks of 24 KB, each 2 ms long on 100 Mbit/s.
CHUNK_ELEMENTS_ROOT = 12
# The number of elements below which chunks are never made shorter on purpose: 4 KiB in float32.
CHUNK_ELEMENTS_LEAST = 1024
# From how many chunks on the chunks of a very large vector become longer instead of more, since
# each needs some bookkeeping in every round.
CHUNKS_MOST = 4096
# What is added to the norm before clipping divides by it, as in torch.nn.utils.clip_grad_norm_.
CLIP_EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class VectorLayout:
    """Where each tensor lies in the flat vector; all numbers are elements of `dtype`.

    `gradient_elements` is the length of the section of gradients, `elements` that of the vector,
    both with padding. With `in_blocks` the sums are integers in blocks (`integer_blocks.py`): each
    tensor begins a block, all chunks are equally long, and in memory, where a chunk ends with the
    marks of its blocks, the vector is a little longer than `elements`.
    """

    dtype: torch.dtype
    gradient_offsets: tuple[int, ...]
    buffer_offsets: tuple[int, ...]
    gradient_elements: int
    elements: int
    chunk_elements: int
    in_blocks: bool = False

    @property
    def words(self) -> int:
        """Return the length of the vector in memory, in numbers of `dtype`."""
        return self._in_memory(self.elements)

    @property
    def chunk_words(self) -> int:
        """Return the length of a chunk in memory, in numbers of `dtype`."""
        return self._in_memory(self.chunk_elements)

    @property
    def wide_bytes(self) -> int:
        """Return the bytes that the vector has if all numbers are int64; 0 unless `in_blocks`."""
        return 8 * self.elements if self.in_blocks else 0

    def view_of(self, memory: mmap) -> torch.Tensor:
        """Return the vector that lies in `memory`."""
        view = torch.frombuffer(memory, dtype=self.dtype, count=max(1, self.words))
        return view[: self.words]

    def _in_memory(self, elements: int) -> int:
        return elements // BLOCK * BLOCK_WORDS if self.in_blocks else elements

    def numbers(self, vector: torch.Tensor) -> torch.Tensor:
        """Return the numbers in `vector`, which has all `words`, without marks: a view of it, of
        one dimension, or of two (a row for each chunk) if `in_blocks`."""
        if not self.in_blocks:
            return vector
        return vector.view(-1, self.chunk_words)[:, : self.chunk_elements]

    def marks(self, vector: torch.Tensor) -> torch.Tensor:
        """Return the marks of the blocks in `vector`, which has all `words`: a view, int32, with a
        row for each chunk. Only if `in_blocks`."""
        return vector.view(torch.int32).view(-1, self.chunk_words)[:, self.chunk_elements :]

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
    gradient_sizes: Sequence[int],
    buffer_sizes: Sequence[int],
    dtype: torch.dtype,
    order: Sequence[int] = (),
    *,
    in_blocks: bool = False,
) -> VectorLayout:
    """Return the layout of a vector for tensors with these numbers of elements.

    `order` has the number of each gradient in the order in which they are to lie; empty for the
    order of `gradient_sizes`. `in_blocks`: the sums are integers.

    Raises `UsageError` if they cannot be, because `dtype` is not float32.
    """
    if in_blocks and dtype != torch.float32:
        raise UsageError(
            "wire exact is for models of float32 and less: leave --exact away, or convert the model"
        )
    order = order or range(len(gradient_sizes))
    step = BLOCK if in_blocks else ELEMENT_STEP
    placed, gradients = _place([gradient_sizes[n] for n in order], 0, step)
    gradient_offsets = [offset for _, offset in sorted(zip(order, placed, strict=True))]
    most = MOST_BLOCKS * BLOCK if in_blocks else limits.MAX_CHUNK_BYTES // dtype.itemsize
    chunk = chunk_elements_for(gradients, most, step)
    if buffer_sizes or in_blocks:
        gradients = _padded(gradients, chunk)
    buffer_offsets, elements = _place(buffer_sizes, gradients, step)
    if in_blocks:
        elements = _padded(elements, chunk)
    return VectorLayout(
        dtype, tuple(gradient_offsets), tuple(buffer_offsets), gradients, elements, chunk, in_blocks
    )


def backward_order(model: torch.nn.Module, names: Sequence[str]) -> list[int]:
    """Return the numbers of the parameters with these names, the one registered last first."""
    numbers = {name: n for n, name in enumerate(names)}
    registered = [name for name, _ in model.named_parameters() if name in numbers]
    return [numbers[name] for name in reversed(registered)]


def chunk_elements_for(elements: int, most: int, step: int = ELEMENT_STEP) -> int:
    """Return the length of a chunk for a vector of `elements` elements.

    It is a multiple of `step` elements, shorter for small vectors, and has at most `most` elements.
    """
    least = max(CHUNK_ELEMENTS_LEAST, CHUNK_ELEMENTS_ROOT * math.isqrt(elements))
    aim = min(CHUNK_ELEMENTS_AIM, max(least, elements // CHUNKS_AIM))
    aim = min(most, max(aim, elements // CHUNKS_MOST))
    count = max(1, -(-elements // aim))
    return min(most, max(step, _padded(-(-elements // count), step)))


class GradientSum:
    """This node's own contribution: the sum over the micro-batches it computed.

    `shared` is the flat vector in the shared memory, `parameters` are the trainable parameters in
    canonical order, and `names` are theirs. `staging` copies the sum from `device` to the shared
    memory; if it is None, the sum is made in the shared memory itself.
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
        self._views = self._parts() if not layout.in_blocks else []
        self._bits = 0  # bit k is set if parameter k had a gradient
        self._clean = True  # the vector is all zeros
        self._is_home = True  # the shared memory has what the vector has

    def for_buffers(self) -> tuple[torch.Tensor, int]:
        """Return where the changes of buffers are to be added up, and the place in the flat vector
        with which that begins."""
        return self.vector, 0

    def clear(self) -> None:
        """Set the sum to zero."""
        if not self._clean:
            self.vector.zero_()
            self._is_home = False
        self._bits = 0
        self._clean = True

    def spoil(self) -> None:
        """Note that something else has been written into the shared memory of the sum, which has to
        begin anew."""
        self._clean = self._is_home = False

    def take(self, number: int) -> None:
        """Add the `.grad` of parameter `number` now, before `add` does that for the others."""
        self._clean = self._is_home = False
        gradient = self._parameters[number].grad
        if gradient is not None:
            with torch.no_grad():
                self._views[number].add_(gradient.detach())

    def add(self, taken: Callable[[int], bool] = lambda _: False) -> bool:
        """Add the `.grad` of every parameter and set it to None; return whether there was any.

        Those of which `taken` says so are in the sum already. Raises `UsageError` for a sparse
        gradient.
        """
        self._clean = self._is_home = False
        found = False
        for number, (parameter, view) in enumerate(zip(self._parameters, self._views, strict=True)):
            gradient = dense_gradient(self._names[number], parameter)
            if gradient is None:
                continue
            if not taken(number):
                view.add_(gradient.detach().to(view.device))
            self._bits |= 1 << number
            parameter.grad = None
            found = True
        return found

    def put_change(
        self,
        number: int,
        start: torch.Tensor,
        end: torch.Tensor,
        weight: int,
        index: tuple[Any, ...] = (),
    ) -> None:
        """Make `weight` times `start` minus `end` all that the sum has of parameter `number`, or of
        its elements at `index`, whose values `start` and `end` are then."""
        self._clean = self._is_home = False
        self._bits |= 1 << number
        view = self._views[number]
        with torch.no_grad():
            if index:
                view[index] = (start.to(view) - end.to(view)).mul_(weight)
            else:
                view.copy_(start)
                view.sub_(end.to(view.device)).mul_(weight)

    def _parts(self) -> list[torch.Tensor]:
        """Return the part of the vector that belongs to each parameter, in its shape."""
        places = zip(self._layout.gradient_offsets, self._parameters, strict=True)
        return [self.vector[at : at + p.numel()].view(p.shape) for at, p in places]

    def bring_home(self) -> None:
        """Copy the sum, buffers included, into the shared memory if it is not there yet."""
        if self._staging is not None and not self._is_home:
            self._staging.copy(self.vector, self._shared)
        self._is_home = True

    def bitmap(self) -> bytes:
        """Return which parameters had a gradient, one bit each, little-endian."""
        return self._bits.to_bytes(math.ceil(len(self._parameters) / 8), "little")


def dense_gradient(name: str, parameter: torch.Tensor) -> torch.Tensor | None:
    """Return the `.grad` of a parameter if it has one. Raises `UsageError` if that is sparse."""
    gradient = parameter.grad
    if gradient is not None and gradient.layout != torch.strided:
        raise UsageError(f"{name} has a sparse gradient; use a dense one")
    return gradient


def is_finite(square_sums: Sequence[float], layout: VectorLayout) -> bool:
    """Return whether all gradients are finite, by the sum of squares of each chunk.

    If the sums are integers, changes of buffers count as well: there a number that was too large to
    be added is lost, which the next iteration can mend, but not a buffer that has become NaN.
    Raises `EdgeAgentError` if there are not as many sums as chunks.
    """
    if len(square_sums) != layout.chunks:
        raise EdgeAgentError("the agent reported the squares of another number of chunks")
    chunks = layout.chunks if layout.in_blocks else layout.gradient_chunks
    return all(math.isfinite(value) for value in square_sums[:chunks])


def clip_coefficient(
    square_sums: Sequence[float], layout: VectorLayout, weight: float, max_norm: float | None
) -> float | None:
    """Return the factor that clips the mean gradient to `max_norm`, None if it need not be clipped.

    The norm is that of the mean, which is the sum divided by `weight`. Its squares are added up in
    the order of the chunks in float64, so that all replicas get the same factor.
    """
    if max_norm is None:
        return None
    total = 0.0
    for value in square_sums[: layout.gradient_chunks]:
        total += value
    coefficient = max_norm / (math.sqrt(total) / weight + CLIP_EPSILON)
    return coefficient if coefficient < 1.0 else None


def mean_of(layout: VectorLayout, reduced: torch.Tensor, mean: Mean) -> torch.Tensor:
    """Return the mean that the step sees, as a new vector where `reduced` is.

    `reduced` is the summed vector, which is not changed. The buffers are divided by the weight
    alone. Raises `EdgeAgentError` if the weight is impossible.
    """
    if mean.weight < 1:
        raise EdgeAgentError("the agent reported an impossible reduction")
    means = (layout.numbers(reduced) / mean.weight).view(-1)
    mean.finished(means[: layout.gradient_elements])
    return means


def gradient_bits(bitmap: bytes, count: int) -> int:
    """Return the `bitmap` of `count` parameters as a number: bit k says whether any micro-batch of
    the cluster gave parameter k a gradient. Raises `EdgeAgentError` if it is impossible."""
    bits = int.from_bytes(bitmap, "little")
    if len(bitmap) != math.ceil(count / 8) or bits >> count:
        raise EdgeAgentError("the agent reported an impossible reduction")
    return bits


def set_gradients(
    layout: VectorLayout,
    means: torch.Tensor,
    parameters: Sequence[torch.nn.Parameter],
    bits: int,
) -> None:
    """Set `.grad` of each parameter to its part of `means`, or None where its bit is not set."""
    for number, (offset, parameter) in enumerate(
        zip(layout.gradient_offsets, parameters, strict=True)
    ):
        if bits >> number & 1:
            gradient = means[offset : offset + parameter.numel()].view(parameter.shape)
            parameter.grad = gradient.to(parameter.dtype).to(parameter.device)
        else:
            parameter.grad = None


def _place(sizes: Sequence[int], start: int, step: int) -> tuple[list[int], int]:
    """Return where tensors of these sizes begin, one behind the other from `start` and each at a
    multiple of `step`, and the end."""
    offsets = []
    for size in sizes:
        offsets.append(start)
        start += _padded(size, step)
    return offsets, start


def _padded(elements: int, step: int) -> int:
    return -(-elements // step) * step
