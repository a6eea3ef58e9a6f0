"""The learning-rate schedule: stepped once an iteration, and looked ahead without stepping it.

Law: `future_rates` leaves optimizer and schedule as they are: it steps a copy that is coupled to a
stand-in for the optimizer. Equal schedules give equal text, so the job's fingerprint shows a
schedule that will differ, for example a function that depends on an argument of the script.
"""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from edgeagent.trainer.slots import lone_optimizer

if TYPE_CHECKING:
    from torch.optim import Optimizer

LOOKED_AHEAD = (1, 2, 10, 100, 1000)  # steps


def step_schedule(scheduler: Any, loss: float) -> None:
    """Step it as an iteration with this mean loss does; None is no schedule."""
    if isinstance(scheduler, ReduceLROnPlateau):
        scheduler.step(loss)
    elif scheduler is not None:
        with warnings.catch_warnings():  # torch warns if the very first step was skipped
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            scheduler.step()


def future_rates(optimizer: Optimizer, scheduler: Any) -> tuple[tuple[str, str], ...]:
    """Return (field, each group's learning rate) after 1, 2, 10, 100 and 1000 steps.

    Shorter where the schedule ends. A schedule that follows the loss has none; of one that cannot
    be copied, or whose `step()` wants arguments, nothing is known before it differs. Then the first
    update with another rate makes the replicas differ, which their digests show.
    """
    if scheduler is None or isinstance(scheduler, ReduceLROnPlateau):
        return ()
    lone = lone_optimizer(optimizer, [{**g, "params": []} for g in optimizer.param_groups])
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
