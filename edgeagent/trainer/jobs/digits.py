"""`digits`: 8x8 handwritten digits, a small convolutional net, trained within seconds."""

from __future__ import annotations

import torch

from edgeagent.trainer.jobs.classification import accuracy_on, classification_loss
from edgeagent.trainer.jobs.job import Job, warm_then_decay

GLOBAL_BATCH = 128
STEPS = 300
LEARNING_RATE = 4e-3
WARM_STEPS = 10
HALF_STEPS = 120


def make(device: torch.device, data: str) -> Job:
    """Build the job; `data` is not used, the pictures are part of the package."""
    from models.digits import Digits
    from models.nets import digits_net

    del data
    model = digits_net().to(device)
    return Job(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=1e-2),
        rate=warm_then_decay(WARM_STEPS, HALF_STEPS),
        data=lambda train: Digits(train=train),
        loss=classification_loss,
        evaluate=accuracy_on("test digits"),
        global_batch=GLOBAL_BATCH,
        steps=STEPS,
    )
