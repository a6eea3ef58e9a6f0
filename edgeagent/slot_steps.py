"""Steps of an optimizer's slots alone, of a divided optimizer.

The weights of an update come from the owners of the slots, so a device that keeps slots needs only
to step these. Nobody waits for that: the trainer does it while it waits for the next round. Until
then a device owes its slots the last update. What is owed is described here in a few numbers, so
that the agent, which has no torch, can make up for it if the trainer ends before.

Only steps that do not depend on the weights can be owed, because these are replaced at once: of
Adam and AdamW, and of SGD with momentum, unless weight decay is added to the gradient. The
operations are those of torch in its order, each on float32, and leave the same bits
(`trainer/owed_slots.py` tries that out).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from edgeagent.held_memory import HeldLayout

    Vector = np.ndarray[Any, np.dtype[np.float32]]

ADAM = "adam"
AMSGRAD = "amsgrad"
SGD = "sgd"
# The slots that a rule steps, by the names that torch gives them.
SLOTS: Mapping[str, tuple[str, ...]] = {
    ADAM: ("exp_avg", "exp_avg_sq"),
    AMSGRAD: ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
    SGD: ("momentum_buffer",),
}
# Elements at a time. With five vectors of float32 in use that is 640 KiB, which stays in the cache
# of one core.
BLOCK = 1 << 15


@dataclass(frozen=True, slots=True)
class SlotStep:
    """A step of slots that is owed.

    `rule` is a key of `SLOTS`. `numbers`: for Adam its two betas, for SGD its momentum and its
    dampening. A sum of gradients is divided by `weight` and by `scale` and multiplied by
    `coefficient`, unless that is None, as in `trainer/mean.py`; `maximize` changes its sign.
    """

    rule: str
    numbers: tuple[float, float]
    maximize: bool
    weight: int
    scale: float = 1.0
    coefficient: float | None = None

    def encode(self) -> tuple[float, ...]:
        """Return all of it but the rule as numbers."""
        factor = math.nan if self.coefficient is None else self.coefficient
        return (*self.numbers, float(self.maximize), float(self.weight), self.scale, factor)

    def step(self, total: Vector, slots: Sequence[Vector]) -> None:
        """Step the `slots` (in the order of `SLOTS`) with the sums `total`; all of one length."""
        with np.errstate(all="ignore"):  # small squares become 0 all the time, as in torch
            for first in range(0, len(total), BLOCK):
                part = slice(first, first + BLOCK)
                gradient = self._mean(total[part])
                _KERNELS[self.rule](gradient, [slot[part] for slot in slots], *self.numbers)

    def _mean(self, total: Vector) -> Vector:
        mean = total / np.float32(self.weight)
        if self.scale != 1.0:
            mean /= np.float32(self.scale)
        if self.coefficient is not None:
            mean *= np.float32(self.coefficient)
        return np.negative(mean, out=mean) if self.maximize else mean


def decoded(rule: str, numbers: Sequence[float]) -> SlotStep:
    """Return the step that `SlotStep.encode` has given. Raises ValueError if it is none."""
    if rule not in SLOTS or len(numbers) != 6 or not 1 <= numbers[3] < math.inf:
        raise ValueError(f"no step of slots: {rule} {numbers}")
    first, second, maximize, weight, scale, factor = numbers
    coefficient = None if math.isnan(factor) else factor
    return SlotStep(rule, (first, second), bool(maximize), int(weight), scale, coefficient)


def chunks_to_step(layout: HeldLayout, stripes: Iterable[int], gradient_chunks: int) -> list[int]:
    """Return the chunks of these stripes that have slots: those of gradients, not of buffers."""
    chunks = (c for s in stripes for c in layout.chunks_of(s))
    return sorted(c for c in chunks if c <= gradient_chunks)


def step_chunks(
    memory: Vector, layout: HeldLayout, chunks: Iterable[int], names: Sequence[str], step: SlotStep
) -> Iterator[int]:
    """Step the slots of `chunks` in the region `memory`, whose slots are called `names`, one chunk
    whenever the iterator is asked; yield how many elements that were."""
    numbers = [names.index(name) for name in SLOTS[step.rule]]
    for chunk in chunks:
        total = memory[layout.sums(chunk)]
        step.step(total, [memory[layout.slot(number, chunk)] for number in numbers])
        yield len(total)


def _adam(gradient: Vector, slots: Sequence[Vector], beta1: float, beta2: float) -> None:
    average, squares = slots[0], slots[1]
    rest = np.float32(1 - beta1)
    change = gradient - average
    if abs(1 - beta1) < 0.5:  # as torch computes a mean of two numbers that may lie far apart
        change *= rest
        average += change
    else:
        change *= np.float32(1) - rest
        np.subtract(gradient, change, out=average)
    np.multiply(gradient, np.float32(1 - beta2), out=change)
    change *= gradient
    squares *= np.float32(beta2)
    squares += change


def _amsgrad(gradient: Vector, slots: Sequence[Vector], beta1: float, beta2: float) -> None:
    _adam(gradient, slots, beta1, beta2)
    np.maximum(slots[2], slots[1], out=slots[2])


def _sgd(gradient: Vector, slots: Sequence[Vector], momentum: float, dampening: float) -> None:
    slots[0][:] *= np.float32(momentum)
    gradient *= np.float32(1 - dampening)
    slots[0][:] += gradient


_KERNELS = {ADAM: _adam, AMSGRAD: _amsgrad, SGD: _sgd}
