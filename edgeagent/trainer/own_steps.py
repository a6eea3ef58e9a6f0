"""What takes a device's own steps within a round: on the whole model, or on its subnet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeagent.trainer.local_steps import LocalSteps
from edgeagent.trainer.subnets.steps import SubnetSteps

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

    from edgeagent.trainer.options import Options


def own_steps(
    options: Options, model: torch.nn.Module, optimizer: Optimizer, max_grad_norm: float | None
) -> LocalSteps | SubnetSteps | None:
    """Return what takes this device's own steps within a round; None without such rounds."""
    if not options.local_steps:
        return None
    if options.subnets is None:
        return LocalSteps(model, optimizer, options.outer, max_grad_norm)
    return SubnetSteps(
        model,
        optimizer,
        options.subnets.division,
        steps=options.local_steps,
        cells=options.round_batch // options.micro_batch,
        seed=options.seed,
        max_grad_norm=max_grad_norm,
        scale=options.subnets.scale,
        period=options.subnets.period,
    )
