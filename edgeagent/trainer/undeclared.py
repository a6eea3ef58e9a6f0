"""Warns of an average of the model that the script keeps and `Trainer` was not told of.

Such an average is not part of the training state, so it differs between devices, and a joiner has
none of the past. No argument leads to it, so it is looked for among all living objects, once, at
the first update. It is worth a warning and not an error, because it may be of another model.
"""

from __future__ import annotations

import gc
import warnings
from typing import TYPE_CHECKING

from torch.optim.swa_utils import AveragedModel

if TYPE_CHECKING:
    from edgeagent.trainer.replicated import ReplicatedTensors


def warn_of_undeclared_averages(replicated: ReplicatedTensors) -> None:
    """Warn of each `AveragedModel` that is not among the `replicated` tensors."""
    for thing in gc.get_objects():
        # isinstance() would ask objects for their class, and some import a module when asked.
        kind = type(thing)
        if issubclass(kind, AveragedModel) and not replicated.holds(thing):
            warnings.warn(
                "an AveragedModel is not part of the training state, so it will differ between"
                " devices: see trainer.replicate(name, ema, update=ema.update_parameters)",
                stacklevel=4,  # where the script calls update()
            )
