"""Updates whose every operation is rounded alike on every processor.

Torch computes a square root by an approximation on some processors and exactly on others, and where
a processor can, it multiplies and adds with one rounding instead of two; so the same update left
other bits on a device of another kind, and their models would have drifted apart. Under
`ExactArithmetic` the operations of which optimizers consist are made of single additions,
multiplications, divisions and square roots, one after the other: for each of these IEEE 754
prescribes the one result that is nearest to the true one. Half precision is computed in float32 and
rounded once at the end, as torch does. What optimizers do beside (comparisons, copies, signs)
rounds nothing.

Only the update needs this: gradients are summed once, and all devices get the bytes of that sum.
Sums within one tensor and matrix products, which few optimizers use, are left to torch; so are the
powers that an optimizer takes of Python's numbers. Devices on which those differ are still refused
by the digest of a trial update (`fingerprint.py`).

`MKL_CBWR`, which has the mathematics library round alike on processors of one kind, is not set:
updates do not use that library, and it would make linear layers 1.6 times slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

BLOCK = 1 << 18  # elements worked on at a time, so that what is in between stays in the cache
_WIDE = (torch.float32, torch.float64)
_KNOWN = (*_WIDE, torch.float16, torch.bfloat16)
_ATEN = torch.ops.aten
_Steps = Callable[[torch.Tensor, list[torch.Tensor], float], None]


class ExactArithmetic(TorchDispatchMode):
    """The context; it acts on dense tensors of float64, float32, float16 and bfloat16 alone."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own has no annotations

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Called by torch for each operation."""
        del types
        packet, keywords = func.overloadpacket, kwargs or {}
        if packet in _EACH:
            return _each(_EACH[packet], args, keywords)
        known = _OPERATIONS.get(packet)
        done = None if known is None else known(*args, **keywords)
        return func(*args, **keywords) if done is None else done


def divides_exactly(device: torch.device) -> bool:
    """Return whether divisions on `device` give the nearest numbers, as IEEE 754 prescribes; those
    of Metal need not."""
    return device.type in ("cpu", "cuda")


def exact_sqrt_(tensor: torch.Tensor) -> None:
    """Replace each element of a float32 or float64 tensor by its correctly rounded square root."""
    if tensor.device.type == "cpu":
        array = tensor.numpy()
        with np.errstate(invalid="ignore"):  # of a negative number it is NaN, as torch's is
            np.sqrt(array, out=array)
    else:
        tensor.sqrt_()


# Steps of an operation: (target, the other tensors, a number); the target becomes the result, the
# others are not changed. All are of one dtype, float32 or float64.


def _add_multiple(target: torch.Tensor, others: list[torch.Tensor], number: float) -> None:
    target.add_(others[0] * number)


def _add_product(target: torch.Tensor, others: list[torch.Tensor], number: float) -> None:
    target.add_((others[0] * number).mul_(others[1]))


def _add_quotient(target: torch.Tensor, others: list[torch.Tensor], number: float) -> None:
    target.add_((others[0] * number).div_(others[1]))


def _interpolate(target: torch.Tensor, others: list[torch.Tensor], number: float) -> None:
    """From the nearer end, as torch does: so that a weight of 1 gives the other end itself."""
    end = others[0]
    way = end - target
    if abs(number) < 0.5:
        target.add_(way.mul_(number))
        return
    rest = 1.0 - number
    if target.dtype == torch.float32:
        rest = float(np.float32(1.0) - np.float32(number))
    torch.sub(end, way.mul_(rest), out=target)


def _root(target: torch.Tensor, others: list[torch.Tensor], number: float) -> None:
    del others, number
    exact_sqrt_(target)


def _reciprocal_root(target: torch.Tensor, others: list[torch.Tensor], number: float) -> None:
    del others, number
    exact_sqrt_(target)
    torch.div(torch.ones_like(target), target, out=target)


def _in_place(steps: _Steps, target: Any, others: list[Any], number: Any) -> Any:
    """Do `steps` on `target` and return it; None, with nothing done, where they are not for it."""
    if not _suits(target, *others) or isinstance(number, torch.Tensor | complex):
        return None
    for place, other in enumerate(others):
        if other.shape != target.shape:
            try:
                others[place] = other.expand(target.shape)
            except RuntimeError:
                return None  # torch says what is wrong
    tensors = [target, *others]
    if target.numel() <= BLOCK or not all(tensor.is_contiguous() for tensor in tensors):
        _do(steps, tensors, number)
    else:
        for block in zip(*(tensor.view(-1).split(BLOCK) for tensor in tensors), strict=True):
            _do(steps, list(block), number)
    return target


def _do(steps: _Steps, tensors: list[torch.Tensor], number: float) -> None:
    target, *others = tensors
    if target.dtype in _WIDE:
        steps(target, others, number)
        return
    wide = target.float()
    steps(wide, [other.float() for other in others], number)
    target.copy_(wide)


def _suits(first: Any, *others: Any) -> bool:
    if not isinstance(first, torch.Tensor) or first.dtype not in _KNOWN:
        return False
    for other in others:  # no generator: this is called for each operation
        if not isinstance(other, torch.Tensor) or other.dtype != first.dtype:
            return False
        if other.device != first.device or other.layout != torch.strided:
            return False
    return first.layout == torch.strided


def _new(steps: _Steps, first: Any, others: list[Any], number: Any) -> Any:
    """Do the same on a copy of `first` in the shape of the result."""
    if not _suits(first, *others):
        return None
    if any(other.shape != first.shape for other in others):
        shape = torch.broadcast_shapes(first.shape, *(other.shape for other in others))
        first = first.expand(shape)
    copy = first.clone(memory_format=torch.contiguous_format)
    return _in_place(steps, copy, others, number)


def _sum(place: Callable[..., Any], sign: int) -> Callable[..., Any]:
    """Return a sum or difference with a factor; without one torch's own has one rounding."""

    def call(first: Any, other: Any, alpha: Any = 1) -> Any:
        if alpha == 1 or not isinstance(other, torch.Tensor):
            return None
        return place(_add_multiple, first, [other], sign * alpha)

    return call


def _three(place: Callable[..., Any], steps: _Steps) -> Callable[..., Any]:
    def call(first: Any, second: Any, third: Any, value: Any = 1, scalars: Any = None) -> Any:
        return place(steps, first, [second, third], value if scalars is None else scalars)

    return call


def _lerp(place: Callable[..., Any]) -> Callable[..., Any]:
    def call(first: Any, end: Any, weight: Any) -> Any:
        return place(_interpolate, first, [end], weight)

    return call


def _quotient(first: Any, other: Any, rounding_mode: Any = None) -> Any:
    """Divide by a number as by a tensor: CUDA multiplies by the reciprocal, which rounds twice."""
    apart = isinstance(first, torch.Tensor) and first.device.type != "cpu"
    if not apart or rounding_mode is not None or isinstance(other, torch.Tensor):
        return None
    return first / torch.full((), other, dtype=first.dtype, device=first.device)


def _quotient_in_place(first: Any, other: Any, rounding_mode: Any = None) -> Any:
    found = _quotient(first, other, rounding_mode)
    return None if found is None else first.copy_(found)


_OPERATIONS: dict[Any, Callable[..., Any]] = {
    _ATEN.add: _sum(_new, 1),
    _ATEN.add_: _sum(_in_place, 1),
    _ATEN.sub: _sum(_new, -1),
    _ATEN.sub_: _sum(_in_place, -1),
    _ATEN.addcmul: _three(_new, _add_product),
    _ATEN.addcmul_: _three(_in_place, _add_product),
    _ATEN.addcdiv: _three(_new, _add_quotient),
    _ATEN.addcdiv_: _three(_in_place, _add_quotient),
    _ATEN.lerp: _lerp(_new),
    _ATEN.lerp_: _lerp(_in_place),
    _ATEN.sqrt: lambda first: _new(_root, first, [], 0.0),
    _ATEN.sqrt_: lambda first: _in_place(_root, first, [], 0.0),
    _ATEN.rsqrt: lambda first: _new(_reciprocal_root, first, [], 0.0),
    _ATEN.rsqrt_: lambda first: _in_place(_reciprocal_root, first, [], 0.0),
    _ATEN.div: _quotient,
    _ATEN.div_: _quotient_in_place,
}
# The same on lists of tensors, which is done one by one.
_EACH: dict[Any, Any] = {
    getattr(_ATEN, f"_foreach_{packet.__name__}"): packet
    for packet in _OPERATIONS
    if hasattr(_ATEN, f"_foreach_{packet.__name__}")
}


def _each(packet: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    known, found = _OPERATIONS[packet], []
    for place in range(len(args[0])):
        own = [arg[place] if isinstance(arg, list | tuple) else arg for arg in args]
        named = {
            key: value[place] if isinstance(value, list | tuple) else value
            for key, value in keywords.items()
        }
        done = known(*own, **named)
        found.append(packet(*own, **named) if done is None else done)
    return None if packet.__name__.endswith("_") else found
