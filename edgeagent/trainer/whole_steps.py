"""The update of a whole optimizer: from the sum of all gradients to the new parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from edgeagent.trainer.block_steps import is_ready, steps_of
from edgeagent.trainer.exact_arithmetic import ExactArithmetic, divides_exactly
from edgeagent.trainer.gradients import gradient_bits, mean_of, set_gradients
from edgeagent.trainer.mean import Mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.optim import Optimizer

    from edgeagent.trainer.block_steps import BlockSteps
    from edgeagent.trainer.gradients import VectorLayout
    from edgeagent.trainer.image import StateImage

_Todo = list[tuple[int, torch.nn.Parameter, dict[str, Any]]]  # number, parameter, its group


class WholeSteps:
    """Steps all `parameters`, which are in canonical order: block by block where that is possible,
    and else the `optimizer` itself. `device`: where the parameters are, or most of them."""

    def __init__(
        self,
        optimizer: Optimizer,
        parameters: Sequence[torch.nn.Parameter],
        layout: VectorLayout,
        device: torch.device,
    ) -> None:
        self._optimizer = optimizer
        self._parameters = list(parameters)
        self._layout = layout
        plain = all(p.dtype == torch.float32 and p.device == device for p in self._parameters)
        self._blocks = steps_of(optimizer, device) if plain else None

    def step(
        self, image: StateImage, reduced: torch.Tensor, mean: Mean, bitmap: bytes, own_hooks: int
    ) -> torch.Tensor:
        """Make an update with the summed vector `reduced`, which is on the CPU and is not changed.

        `bitmap` has a bit for each parameter: whether it has a gradient. `own_hooks`: how many
        hooks the optimizer has that are not the script's. Returns the means of what lies behind the
        gradients in the vector, on the device of `image`. Raises `EdgeAgentError` if the bitmap is
        impossible.
        """
        bits, start = gradient_bits(bitmap, len(self._parameters)), self._layout.gradient_elements
        blocks = self._blocks if not _has_hooks(self._optimizer, own_hooks) else None
        todo = self._todo(bits) if blocks is not None else None
        if blocks is None or todo is None:
            means = mean_at(image, self._layout, reduced, mean)
            set_gradients(self._layout, means, self._parameters, bits)
            with ExactArithmetic():
                self._optimizer.step()
            return means[start:]
        if self._layout.in_blocks:  # between the numbers there are marks
            means = mean_at(image, self._layout, reduced, mean)
            self._step_blocks(blocks, todo, means, Mean(1))
            return means[start:]
        there = image.received(reduced)
        self._step_blocks(blocks, todo, there, mean)
        with ExactArithmetic():
            return there[start:] / mean.weight

    def _todo(self, bits: int) -> _Todo | None:
        """Return what is to be stepped block by block; None if that is not possible now."""
        numbers = {p: n for n, p in enumerate(self._parameters) if bits >> n & 1}
        found = []
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                number, memory = numbers.get(parameter), self._optimizer.state.get(parameter, {})
                if number is None:
                    continue
                if not parameter.is_contiguous() or not is_ready(self._optimizer, group, memory):
                    return None
                found.append((number, parameter, group))
        return found

    def _step_blocks(
        self, blocks: BlockSteps, todo: _Todo, total: torch.Tensor, mean: Mean
    ) -> None:
        for number, parameter, group in todo:
            start = self._layout.gradient_offsets[number]
            sums = total[start : start + parameter.numel()]
            memory = self._optimizer.state.get(parameter, {})
            blocks.step_parameter(parameter, sums, mean, memory, group)


def mean_at(
    image: StateImage, layout: VectorLayout, reduced: torch.Tensor, mean: Mean
) -> torch.Tensor:
    """Return the mean of the vector `reduced`, which is on the CPU, on the device of `image`.

    A GPU divides more numbers in a second than the CPU, and needs no new memory of the host for it.
    """
    with ExactArithmetic():
        if divides_exactly(image.device):
            return mean_of(layout, image.received(reduced), mean)
        return image.received(mean_of(layout, reduced, mean))


def _has_hooks(optimizer: Optimizer, own: int) -> bool:
    """Return whether the script has hooks that are called when the optimizer steps."""
    mine = len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)
    return mine + len(_global_optimizer_pre_hooks) + len(_global_optimizer_post_hooks) > own
