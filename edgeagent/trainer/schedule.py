"""The learning-rate schedule: stepping it once an iteration, and looking ahead without stepping it.

Looking ahead is for the job's fingerprint. Two schedules may have the same state today and give
different rates later, for example if one is a function that depends on an argument of the script,
and devices with such schedules must not train together. `future_rates` steps a copy that is coupled
to a stand-in for the optimizer, so the optimizer and the schedule themselves stay as they are.
"""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from edgeagent.trainer.slots import lone_optimizer

if TYPE_CHECKING:
    from torch.optim import Optimizer

# After how many steps the rates are looked at. More than 1000 would delay the start of the script.
LOOKED_AHEAD = (1, 2, 10, 100, 1000)


def step_schedule(scheduler: Any, loss: float) -> None:
    """Step the schedule, None for none, as an iteration whose mean loss is `loss` does."""
    if isinstance(scheduler, ReduceLROnPlateau):
        scheduler.step(loss)
    elif scheduler is not None:
        # torch warns of a schedule that is stepped before the optimizer. That is what happens if
        # the very first update was skipped because a gradient was not finite.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            scheduler.step()


def future_rates(optimizer: Optimizer, scheduler: Any) -> tuple[tuple[str, str], ...]:
    """Return (field, the learning rate of each group) after 1, 2, 10, 100 and 1000 steps.

    There are fewer pairs where the schedule ends earlier, and none for a schedule that follows the
    loss. A schedule that cannot be copied, or whose `step()` wants arguments, cannot be looked
    ahead. If two of these differ, that is noticed later: the first update with another rate makes
    the replicas differ, which their digests show.
    """
    if scheduler is None or isinstance(scheduler, ReduceLROnPlateau):
        return ()
    lone = lone_optimizer(optimizer, [{**g, "params": []} for g in optimizer.param_groups])
    # The copy of the schedule must refer to the stand-in and to the very same parameters: deepcopy
    # takes from `memo` what stands for an object that it meets.
    memo: dict[int, Any] = {id(optimizer): lone, id(optimizer.param_groups): lone.param_groups}
    for mine, copied in zip(optimizer.param_groups, lone.param_groups, strict=True):
        memo[id(mine)] = copied
        memo |= {id(parameter): parameter for parameter in mine["params"]}
    fields = []
    try:
        ahead = copy.deepcopy(scheduler, memo)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the stand-in is never stepped
            for step in range(1, LOOKED_AHEAD[-1] + 1):
                ahead.step()
                if step in LOOKED_AHEAD:
                    rates = ", ".join(repr(group["lr"]) for group in lone.param_groups)
                    fields.append((f"learning rate after step {step}", rates))
    except Exception as error:  # whatever the script's own schedule raises
        fields.append(("learning rates known", f"{len(fields)}, then {type(error).__name__}"))
    return tuple(fields)
