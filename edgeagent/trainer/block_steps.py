"""Steps of torch's Adam, AdamW and SGD, made block by block.

Torch makes a step of about fifteen operations, each of which goes through a whole parameter, so all
of it is read from memory and written back as many times; and under `ExactArithmetic` each operation
passes through Python, which takes longer than the arithmetic of a small parameter. Here all the
operations are done on one block, which stays in the processor's cache, before the next one begins.
The mean gradient is made of the sum there, too, so that there is never a vector of all means.

The operations are those that `ExactArithmetic` makes of torch's, in the same order, so they leave
the same bits. Whether they do is tried out with the settings of each parameter group, and for
whatever is not known here the optimizer itself is stepped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from edgeagent.trainer.exact_arithmetic import ExactArithmetic, divides_exactly, exact_sqrt_
from edgeagent.trainer.image import CPU
from edgeagent.trainer.mean import Mean, divide
from edgeagent.trainer.settings import NOT_SCALARS
from edgeagent.trainer.slots import lone_optimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch.optim import Optimizer

    Slots = Mapping[str, torch.Tensor]
    Kernel = Callable[["Block", Mapping[str, Any], float], None]

# Elements of a block for each thread of the CPU: six vectors of float32 take 3 MiB, which a cache
# holds, and the operations of a block, about 100 us of which do not depend on its length, 500 us.
CPU_BLOCK = 1 << 17
# Elements of a block on another device, where operations have a fixed cost and memory is fast.
DEVICE_BLOCK = 1 << 22
_MOST_ROOMS = 1000  # how many lengths of blocks are remembered; a model has few
# Settings of a group with other values than these are not known here.
_OFF = ("capturable", "differentiable", "fused")
TRIAL_ELEMENTS = 4087
_TRIAL_BLOCK = 1000
_TRIAL_STEPS = 3
_TRIAL_DECAY = 0.01
_TRIAL_RATE = 0.01


@dataclass(slots=True)
class Block:
    """What a kernel works on, all of one length: weights and slots, which it steps, the gradient,
    which it may change, and two vectors for what is in between."""

    weights: torch.Tensor
    gradient: torch.Tensor
    slots: Slots
    first: torch.Tensor
    second: torch.Tensor


class BlockSteps:
    """Steps pieces of parameters on `device` with one kernel; `block`: elements at a time, 0 for as
    many as suit the device."""

    def __init__(self, kernel: Kernel, device: torch.device, block: int = 0) -> None:
        self._kernel = kernel
        self._elements = block
        self._device = device
        self._scratch = torch.empty((0, 0), device=device)
        # Parts of it by number and length: making these takes longer than a small step.
        self._rooms: dict[tuple[int, int], Sequence[torch.Tensor]] = {}

    def step(
        self,
        weights: torch.Tensor,
        total: torch.Tensor,
        mean: Mean,
        slots: Slots,
        settings: Mapping[str, Any],
        count: float,
        *,
        keep: bool = True,
    ) -> None:
        """Step `weights` with the sums `total`, and the `slots` with `keep`; all float32 [n], and
        contiguous. `count`: how many steps these slots have behind them afterwards."""
        names, vectors = list(slots), (weights, total, *slots.values())
        parts: Iterable[tuple[torch.Tensor, ...]] = [vectors]
        block = self._block
        if len(weights) > block:
            parts = zip(*(vector.split(block) for vector in vectors), strict=True)
        for part, sums, *mine in parts:
            gradient, first, second, *copies = self._room(3 + (0 if keep else len(mine)), len(part))
            mean.into(gradient, sums)
            if not keep:
                mine = [copy.copy_(slot) for copy, slot in zip(copies, mine, strict=True)]
            own = dict(zip(names, mine, strict=True))
            self._kernel(Block(part, gradient, own, first, second), settings, count)

    def step_parameter(
        self,
        parameter: torch.nn.Parameter,
        total: torch.Tensor,
        mean: Mean,
        memory: Mapping[str, Any],
        settings: Mapping[str, Any],
    ) -> None:
        """Step a whole parameter, and all that the optimizer remembers of it."""
        if "step" in memory:
            memory["step"].add_(1)
        slots = {k: slot.view(-1) for k, slot in memory.items() if k != "step"}
        flat = parameter.detach().view(-1)
        self.step(flat, total, mean, slots, settings, count_of(memory))

    @property
    def _block(self) -> int:
        """How many elements are stepped at once; the number of threads may change."""
        if self._elements:
            return self._elements
        return CPU_BLOCK * torch.get_num_threads() if self._device == CPU else DEVICE_BLOCK

    def _room(self, count: int, length: int) -> Sequence[torch.Tensor]:
        """Return so many vectors, of which the values do not matter."""
        if (known := self._rooms.get((count, length))) is not None:
            return known
        if self._scratch.shape[0] < count or self._scratch.shape[1] < length:
            shape = (max(count, self._scratch.shape[0]), max(length, self._scratch.shape[1]))
            self._scratch = torch.empty(shape, device=self._device)
            self._rooms = {}  # they were in the vectors before
        if len(self._rooms) >= _MOST_ROOMS:
            self._rooms = {}
        found = self._rooms[count, length] = self._scratch[:count, :length].unbind()
        return found


def steps_of(optimizer: Optimizer, device: torch.device) -> BlockSteps | None:
    """Return what steps the parameters of `optimizer` on `device` with the bits that it would leave
    itself; None if there is no such thing."""
    kernel = _KERNELS.get(type(optimizer))
    if kernel is None or not divides_exactly(device):
        return None
    for group in optimizer.param_groups:
        decays = {group["weight_decay"], 0.0, _TRIAL_DECAY}  # a script may set it while training
        for decay in sorted(decays, key=repr):
            settings = {k: v for k, v in group.items() if k not in NOT_SCALARS}
            if not _is_known(settings):
                return None
            # A warm-up begins with 0, which would leave the weights as they are.
            trial = {**settings, "weight_decay": decay, "lr": settings["lr"] or _TRIAL_RATE}
            if not _agrees(optimizer, kernel, trial, device):
                return None
    return BlockSteps(kernel, device)


def is_ready(optimizer: Optimizer, settings: Mapping[str, Any], memory: Mapping[str, Any]) -> bool:
    """Return whether a parameter with this memory can be stepped: its slots exist, and are what the
    kernels know."""
    if not _is_known(settings):
        return False
    if isinstance(optimizer, torch.optim.SGD):
        wanted = {"momentum_buffer"} if settings["momentum"] else set()
    else:
        wanted = {"step", "exp_avg", "exp_avg_sq"}
        wanted |= {"max_exp_avg_sq"} if settings["amsgrad"] else set()
    return memory.keys() == wanted and all(
        isinstance(value, torch.Tensor)
        and value.dtype == torch.float32
        and (name == "step" or value.is_contiguous())
        for name, value in memory.items()
    )


def count_of(memory: Mapping[str, Any]) -> float:
    """Return how many steps an optimizer's memory of a parameter counts, 0 if it counts none."""
    return float(memory["step"]) if "step" in memory else 0.0


def trial_numbers(draw: torch.Generator) -> torch.Tensor:
    """Return numbers of very different sizes, and some zeros, with which steps are tried out:
    float32 [TRIAL_ELEMENTS]."""
    some = torch.randn(TRIAL_ELEMENTS, generator=draw)
    some *= 10.0 ** torch.randint(-12, 4, (TRIAL_ELEMENTS,), generator=draw)
    some[::97] = 0.0
    return some


def _is_known(settings: Mapping[str, Any]) -> bool:
    numbers = [settings["lr"], settings["weight_decay"], *settings.get("betas", ())]
    plain = all(isinstance(number, float | int) for number in numbers)
    return plain and not any(settings.get(name) for name in _OFF)


def _agrees(
    optimizer: Optimizer, kernel: Kernel, settings: dict[str, Any], device: torch.device
) -> bool:
    """Return whether a few steps of fixed numbers leave the same bits both ways."""
    draw = torch.Generator().manual_seed(3)

    def numbers() -> torch.Tensor:
        return trial_numbers(draw).to(device)

    theirs = torch.nn.Parameter(numbers())
    lone = lone_optimizer(optimizer, [{**settings, "params": [theirs]}])
    steps = BlockSteps(kernel, device, _TRIAL_BLOCK)
    mean = Mean(3, 1.5, 0.7)
    mine, memory = theirs.detach().clone(), dict[str, Any]()
    for count in range(_TRIAL_STEPS + 1):
        total = numbers()
        if count:  # the first step makes the slots
            slots = {k: v for k, v in memory.items() if k != "step"}
            about = (total, mean, slots, settings, count_of(memory) + 1)
            published = mine.clone()
            steps.step(published, *about, keep=False)
            steps.step(mine, *about)
            if not torch.equal(published, mine):
                return False
        try:
            with torch.no_grad(), ExactArithmetic():
                theirs.grad = mean.of(total)
                type(lone).step(lone)
        except Exception:  # whatever an optimizer raises: it is then left to step, and to raise
            return False
        found = lone.state.get(theirs, {})
        if not count:
            mine = theirs.detach().clone()
            memory = {k: v.clone() for k, v in found.items() if v is not None}
            if not is_ready(optimizer, settings, memory):
                return False
            continue
        if "step" in memory:
            memory["step"] += 1
        pairs = [(mine, theirs.detach()), *((memory[k], found[k]) for k in memory)]
        if not all(torch.equal(a, b) for a, b in pairs):
            return False
    return True


def _adam(block: Block, settings: Mapping[str, Any], count: float) -> None:
    weights, gradient, one, two = block.weights, block.gradient, block.first, block.second
    average, squares = block.slots["exp_avg"], block.slots["exp_avg_sq"]
    rate, decay, (beta1, beta2) = settings["lr"], settings["weight_decay"], settings["betas"]
    if settings["maximize"]:
        gradient.neg_()
    if decay != 0 and settings.get("decoupled_weight_decay"):
        weights.mul_(1 - rate * decay)
    elif decay != 0:
        gradient.add_(torch.mul(weights, decay, out=one))
    torch.sub(gradient, average, out=one)
    if abs(1 - beta1) < 0.5:
        average.add_(one.mul_(1 - beta1))
    else:
        rest = float(np.float32(1.0) - np.float32(1 - beta1))
        torch.sub(gradient, one.mul_(rest), out=average)
    squares.mul_(beta2).add_(torch.mul(gradient, 1 - beta2, out=one).mul_(gradient))
    root = squares
    if settings["amsgrad"]:
        root = block.slots["max_exp_avg_sq"]
        torch.maximum(root, squares, out=root)
    exact_sqrt_(one.copy_(root))
    divide(one, (1 - beta2**count) ** 0.5, one)
    one.add_(settings["eps"])
    torch.mul(average, -(rate / (1 - beta1**count)), out=two)
    weights.add_(two.div_(one))


def _sgd(block: Block, settings: Mapping[str, Any], count: float) -> None:
    del count
    weights, gradient, one = block.weights, block.gradient, block.first
    momentum, decay = settings["momentum"], settings["weight_decay"]
    if settings["maximize"]:
        gradient.neg_()
    if decay != 0:
        gradient.add_(torch.mul(weights, decay, out=one))
    if momentum != 0:
        buffer = block.slots["momentum_buffer"]
        buffer.mul_(momentum).add_(torch.mul(gradient, 1 - settings["dampening"], out=one))
        if settings["nesterov"]:
            gradient.add_(torch.mul(buffer, momentum, out=one))
        else:
            gradient = buffer
    weights.add_(torch.mul(gradient, -settings["lr"], out=one))


_KERNELS: dict[type[torch.optim.Optimizer], Kernel] = {
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adam,
    torch.optim.SGD: _sgd,
}
