"""How sums of gradients become the means that an optimizer sees, with the same bits everywhere."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from edgeagent.trainer.image import CPU


@dataclass(frozen=True, slots=True)
class Mean:
    """Sums are divided by `weight`, the number of micro-batches, and by `scale`, by which every
    loss was multiplied, and multiplied by `coefficient`, which clips them, unless that is None."""

    weight: int
    scale: float = 1.0
    coefficient: float | None = None

    def of(self, total: torch.Tensor) -> torch.Tensor:
        """Return the mean of `total`, as a new tensor. To be called under `ExactArithmetic`, unless
        that is on the CPU."""
        return self.finished(total / self.weight)

    def finished(self, mean: torch.Tensor) -> torch.Tensor:
        """Change what was divided by the weight alone into the mean, and return it."""
        if self.scale != 1.0:
            mean /= self.scale  # apart from the weight: float32 may not hold the product of the two
        if self.coefficient is not None:
            mean *= self.coefficient
        return mean

    def into(self, target: torch.Tensor, total: torch.Tensor) -> None:
        """Write the mean of `total` to `target`."""
        divide(total, self.weight, target)
        if self.scale != 1.0:
            divide(target, self.scale, target)
        if self.coefficient is not None:
            target.mul_(self.coefficient)


def divide(source: torch.Tensor, number: float, target: torch.Tensor) -> None:
    """Write `source` / `number` to `target`, rounded once, without `ExactArithmetic`."""
    if source.device == CPU:
        torch.div(source, number, out=target)
    else:  # CUDA multiplies by the reciprocal of a number
        divisor = torch.full((), number, dtype=source.dtype, device=source.device)
        torch.div(source, divisor, out=target)
