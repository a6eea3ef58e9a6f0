"""`fashion-mnist`: 28x28 pictures of clothes, a small convolutional net, trained within minutes."""

from __future__ import annotations

import torch

from edgeagent.errors import UsageError
from edgeagent.trainer.jobs import Job, warm_then_decay

GLOBAL_BATCH = 256
STEPS = 1500
LEARNING_RATE = 3e-3
WARM_STEPS = 50
HALF_STEPS = 600


def make(device: torch.device, data: str) -> Job:
    """Build the job; `data` is the folder of the IDX files, "" looks for them or downloads."""
    from models.fashion import DataError, FashionMnist
    from models.nets import fashion_net

    def pictures(train: bool) -> FashionMnist:
        try:
            return FashionMnist(train, data or None)
        except DataError as error:
            raise UsageError(str(error)) from None

    model = fashion_net().to(device)
    return Job(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=1e-2),
        rate=warm_then_decay(WARM_STEPS, HALF_STEPS),
        data=pictures,
        global_batch=GLOBAL_BATCH,
        steps=STEPS,
        noun="test pictures",
    )
