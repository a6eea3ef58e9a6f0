"""Compares two saved training states bit by bit, and says where they part.

Two tensors are equal if their bits are, so a NaN is equal to itself and -0.0 differs from 0.0. The
files are read one tensor at a time, so memory is needed for the two largest tensors only.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open

from edgeagent.checkpoint_file import KEYS, check_format, check_whole
from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.state_difference import first_scalar
from edgeagent.trainer.meta import decode_meta

if TYPE_CHECKING:
    from typing import Any


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """How one tensor of two states differs.

    `place`: the index of the first element that differs, `values`: that element in each state.
    `elements`: how many differ. `largest`: the largest absolute difference of two elements, and
    `scale` the largest absolute value of the first state's tensor, so that the two can be compared;
    both are NaN where a NaN is involved.
    """

    name: str
    place: tuple[int, ...]
    values: tuple[float, float]
    elements: int
    largest: float
    scale: float


@dataclass(slots=True)
class Comparison:
    """What a comparison of two saved states has found. `iterations`: the step of each."""

    iterations: tuple[int, int]
    scalar: str  # the first scalar that differs, with both values; "" if none does
    tensors: int = 0  # how many were compared: those of the same name, shape and type
    bytes: int = 0
    different: list[TensorDifference] = field(default_factory=list)
    unlike: list[str] = field(default_factory=list)  # names with another shape or type
    missing: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))  # in each file

    @property
    def equal(self) -> bool:
        """Whether the two states are the same, to the last bit."""
        return not (self.scalar or self.different or self.unlike or any(self.missing))


def compare_states(first: str, second: str) -> Comparison:
    """Compare the training states in two files.

    Raises `UsageError` if one of them cannot be read, is no training state or is damaged.
    """
    opened: list[Any] = [_open(path) for path in (first, second)]
    scalars = [_scalars(path, file) for path, file in zip((first, second), opened, strict=True)]
    iterations = [
        _iteration(path, text) for path, text in zip((first, second), scalars, strict=True)
    ]
    found = Comparison(
        (iterations[0], iterations[1]), first_scalar(scalars[0], scalars[1], ("", ""))
    )
    names = [set(file.keys()) for file in opened]
    found.missing = (sorted(names[1] - names[0]), sorted(names[0] - names[1]))
    for name in sorted(names[0] & names[1]):
        try:
            a, b = (file.get_tensor(name) for file in opened)
        except (SafetensorError, OSError) as error:
            raise UsageError(f"cannot read {name}: {error}") from None
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            found.unlike.append(name)
            continue
        found.tensors += 1
        found.bytes += a.nbytes
        if (difference := compare_tensors(name, a, b)) is not None:
            found.different.append(difference)
    return found


def compare_tensors(name: str, a: torch.Tensor, b: torch.Tensor) -> TensorDifference | None:
    """Return how two tensors of one shape and dtype differ, None if all their bits are equal."""
    bits = [x.contiguous().reshape(-1, 1).view(torch.uint8) for x in (a, b)]  # a row per element
    differs = (bits[0] != bits[1]).any(1)
    if not bool(differs.any()):
        return None
    at = int(differs.nonzero()[0])
    place = tuple(int(k) for k in torch.unravel_index(torch.tensor(at), a.shape))
    here, there = (x.reshape(-1).double() for x in (a, b))
    return TensorDifference(
        name,
        place,
        (float(here[at]), float(there[at])),
        int(differs.sum()),
        float((here - there).abs().max()),
        float(here.abs().max()),
    )


def _open(path: str) -> Any:
    """Return a reader of the file at `path`, all of which can be read."""
    try:
        check_whole(path)
        file: Any = safe_open(path, framework="pt")
        check_format(path, file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise UsageError(f"cannot read {path}: {error}") from None
    return file


def _scalars(path: str, file: Any) -> bytes:
    try:
        return base64.b64decode(file.metadata()[KEYS[1]], validate=True)
    except (KeyError, ValueError, binascii.Error):
        raise UsageError(f"{path} is damaged: its scalars cannot be read") from None


def _iteration(path: str, scalars: bytes) -> int:
    try:
        return decode_meta(scalars).iteration
    except EdgeAgentError as error:
        raise UsageError(f"{path} is damaged: {error}") from None
