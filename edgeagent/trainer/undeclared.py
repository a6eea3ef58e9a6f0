"""An average of the model that the script keeps and Trainer() was not told of.

Law: looked for once, at the first update, among all living objects, for it is nobody's parameter;
an average that only this device keeps is worth a warning, and no more: it may be another model's.
"""

from __future__ import annotations

import gc
import warnings
from typing import TYPE_CHECKING

from torch.optim.swa_utils import AveragedModel

if TYPE_CHECKING:
    from edgeagent.trainer.replicated import ReplicatedTensors


def warn_of_undeclared_averages(replicated: ReplicatedTensors) -> None:
    """Warn of an AveragedModel that is not replicated."""
    for thing in gc.get_objects():
        kind = type(thing)  # not isinstance(), which asks objects that import when they are asked
        if issubclass(kind, AveragedModel) and not replicated.holds(thing):
            warnings.warn(
                "an AveragedModel is not part of the training state, so it will differ between"
                " devices: see trainer.replicate(name, ema, update=ema.update_parameters)",
                stacklevel=4,  # where the script calls update()
            )
