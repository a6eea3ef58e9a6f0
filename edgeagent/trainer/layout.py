"""Where each tensor of the training state lies in the flat shared state.

Equal jobs have equal layouts, so that members can exchange the state as bytes. Therefore a layout
follows from the names, shapes and dtypes of the tensors alone, and from which of them never change
while training. Those come first, so that a joiner which has them already need not copy them; they
and the others are each sorted by name. Each tensor starts at a multiple of 64 bytes, and the bytes
between tensors are zero. Parameters and buffers are called `model.<name>`, optimizer slots
`optimizer.<parameter>.<slot>`, and what `Trainer.replicate` was given `replicated.<name>.<key>`.
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from edgeagent.errors import UsageError
from edgeagent.terminal.text import bytes_text
from protocols import limits

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable
    from mmap import mmap

# The bytes to a multiple of which each tensor starts: a line of the processor's cache, which also
# suits its vector instructions and every dtype.
ALIGNMENT = 64
# The dtypes that the state can hold, with their names in the safetensors file format.
DTYPE_NAMES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True, slots=True, order=True)
class TensorSpec:
    """Name, dtype and shape of one tensor of the training state."""

    name: str
    dtype_name: str
    shape: tuple[int, ...]

    @property
    def dtype(self) -> torch.dtype:
        """Return the torch dtype."""
        return next(dtype for dtype, name in DTYPE_NAMES.items() if name == self.dtype_name)

    @property
    def bytes(self) -> int:
        """Return the size in bytes, without padding."""
        count = 1
        for length in self.shape:
            count *= length
        return count * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class StateLayout:
    """All tensors of the training state in the order of their offsets, which are in bytes.

    `size` is the length of the whole state in bytes, padding included, and `constant_bytes` that of
    its beginning, which holds the tensors that never change while training and nothing else.
    """

    specs: tuple[TensorSpec, ...]
    offsets: tuple[int, ...]
    size: int
    constant_bytes: int = 0

    def tensors(self) -> tuple[tuple[str, int, int], ...]:
        """Return (name, offset, bytes) of every tensor, ascending."""
        return tuple(
            (spec.name, offset, spec.bytes)
            for spec, offset in zip(self.specs, self.offsets, strict=True)
        )

    def by_name(self) -> tuple[tuple[TensorSpec, int], ...]:
        """Return every tensor with its offset, sorted by name: the order of tensors in files, which
        does not depend on what is trained."""
        return tuple(sorted(zip(self.specs, self.offsets, strict=True)))

    def spans(self, names: Container[str]) -> tuple[tuple[int, int], ...]:
        """Return where the tensors with these `names` lie, as (first byte, byte behind the last)
        with padding, ascending; tensors that lie one behind the other are one span."""
        found: list[tuple[int, int]] = []
        for spec, start, end in zip(
            self.specs, self.offsets, (*self.offsets[1:], self.size), strict=True
        ):
            if spec.name not in names or start == end:
                continue
            first = found.pop()[0] if found and found[-1][1] == start else start
            found.append((first, end))
        return tuple(found)

    def digest(self) -> str:
        """Return a SHA-256 over names, dtypes, shapes and offsets, in hex."""
        text = repr([(s.name, s.dtype_name, s.shape) for s in self.specs]) + repr(self.offsets)
        return hashlib.sha256(text.encode()).hexdigest()

    def views(self, memory: mmap) -> dict[str, torch.Tensor]:
        """Return every tensor as a view of `memory`, which holds at least `size` bytes.

        Each view has a storage of its own, because `torch.save` writes the whole storage of a
        tensor: a script that saves one parameter shall not save the whole state.
        """
        return {
            spec.name: _view(memory, spec, offset)
            for spec, offset in zip(self.specs, self.offsets, strict=True)
        }

    def cut(self, raw: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return every tensor as a view of `raw`: uint8 [at least `size`], on any device."""
        return {
            spec.name: raw[offset : offset + spec.bytes].view(spec.dtype).view(spec.shape)
            for spec, offset in zip(self.specs, self.offsets, strict=True)
        }


def _view(memory: mmap, spec: TensorSpec, offset: int) -> torch.Tensor:
    count = spec.bytes // spec.dtype.itemsize
    if not count:
        return torch.empty(spec.shape, dtype=spec.dtype)
    return torch.frombuffer(memory, dtype=spec.dtype, count=count, offset=offset).view(spec.shape)


def tensor_spec(name: str, tensor: torch.Tensor) -> TensorSpec:
    """Return what the layout has to know of `tensor`, under this `name`.

    Raises `UsageError` for a dtype that the state cannot hold.
    """
    dtype_name = DTYPE_NAMES.get(tensor.dtype)
    if dtype_name is None:
        raise UsageError(f"{name} has dtype {tensor.dtype}, which edgeagent cannot replicate")
    return TensorSpec(name, dtype_name, tuple(tensor.shape))


def plan_layout(specs: Iterable[TensorSpec], constants: Collection[str] = ()) -> StateLayout:
    """Return a layout of the tensors that `specs` describe; those named in `constants` never change
    while training.

    Raises `UsageError` if two have the same name, or if all of them together are too large.
    """
    by_name = sorted(specs)
    for before, spec in itertools.pairwise(by_name):
        if before.name == spec.name:
            raise UsageError(f"two tensors of the training state are called {spec.name}")
    ordered = sorted(by_name, key=lambda spec: (spec.name not in constants, spec))
    offsets: list[int] = []
    end = constant_bytes = 0
    for spec in ordered:
        offsets.append(end)
        end += -(-spec.bytes // ALIGNMENT) * ALIGNMENT
        if spec.name in constants:
            constant_bytes = end
    if end > limits.MAX_STATE_BYTES:
        raise UsageError(
            f"the training state has {bytes_text(end)}; {bytes_text(limits.MAX_STATE_BYTES)} is "
            "the most"
        )
    return StateLayout(tuple(ordered), tuple(offsets), end, constant_bytes)
