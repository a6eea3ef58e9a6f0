"""The outer optimizer of rounds of local steps: it steps the weights that all devices share.

Each device takes steps of its own with the script's optimizer, the inner one. What the cluster sums
is how far the devices came, as a gradient: weights at the start of the round minus weights at its
end. The outer optimizer takes its mean for the gradient of the shared weights. Its memory is part
of the training state, as that of the only optimizer is in training without local steps.

- "average" steps with SGD and a rate of 1, so that the new weights are the mean of the devices'
  weights (local SGD; federated averaging with a weight for each device's samples).
- "nesterov" steps with SGD, Nesterov's momentum 0.9 and a rate of 0.7, which are the values that
  DiLoCo (Douillard et al., 2023, Algorithm 1 and section 3) found best.
- A function makes any other one of the shared weights that it is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from edgeagent.config import OUTERS
from edgeagent.errors import UsageError
from edgeagent.trainer.validation import check_optimizer, settle_implementation

if TYPE_CHECKING:
    from torch.optim import Optimizer

AVERAGE, NESTEROV = OUTERS
NESTEROV_RATE = 0.7
NESTEROV_MOMENTUM = 0.9


def check_outer(outer: Any) -> None:
    """Raise `UsageError` unless `outer` is one of `OUTERS`, None or a function."""
    if outer is not None and outer not in OUTERS and not callable(outer):
        raise UsageError(
            f"outer is {outer!r}; it must be one of {', '.join(OUTERS)}, or a function that makes"
            " an optimizer of the parameters that it is given"
        )


def outer_optimizer(outer: Any, parameters: list[torch.nn.Parameter]) -> Optimizer:
    """Return the optimizer that `outer` names or makes; None means "average".

    `parameters` are the shared weights. Raises `UsageError` if it makes none of exactly these, or
    one that cannot be replicated.
    """
    check_outer(outer)
    if outer is None or outer == AVERAGE:
        made: Any = torch.optim.SGD(parameters, lr=1.0)
    elif outer == NESTEROV:
        made = torch.optim.SGD(
            parameters, lr=NESTEROV_RATE, momentum=NESTEROV_MOMENTUM, nesterov=True
        )
    else:
        made = outer(list(parameters))
        if not isinstance(made, torch.optim.Optimizer):
            raise UsageError(f"outer= made a {type(made).__name__}, not a torch.optim optimizer")
        stepped = [id(p) for group in made.param_groups for p in group["params"]]
        if sorted(stepped) != sorted(id(p) for p in parameters):
            raise UsageError("outer= made an optimizer of other parameters than it was given")
        check_optimizer(made)
    settle_implementation(made)
    optimizer: Optimizer = made
    return optimizer
