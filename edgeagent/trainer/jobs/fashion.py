"""`fashion-mnist` and `fashion-alexnet`: 28x28 pictures of clothes.

The first trains a small convolutional net within minutes; the second an AlexNet whose linear layers
are narrow, twenty times the work.
"""

from __future__ import annotations

import torch

from edgeagent.errors import UsageError
from edgeagent.trainer.jobs.classification import accuracy_on, classification_loss
from edgeagent.trainer.jobs.job import Job, warm_then_decay

GLOBAL_BATCH = 256
STEPS = 1500
LEARNING_RATE = 3e-3
WARM_STEPS = 50
HALF_STEPS = 600
ALEXNET_HIDDEN = 512
ALEXNET_RATE = 5e-4


def make(device: torch.device, data: str) -> Job:
    """Build `fashion-mnist`; `data`: the folder of the IDX files, "" looks for them or downloads.

    Raises `UsageError`, here or in `Job.data`, if the data cannot be had.
    """
    from models.nets import fashion_net

    return _job(fashion_net().to(device), LEARNING_RATE, data)


def make_alexnet(device: torch.device, data: str) -> Job:
    """Build `fashion-alexnet`, as `make` does."""
    from models.alexnet import AlexNet

    model = AlexNet(10, stem="cifar", channels=1, hidden=ALEXNET_HIDDEN).to(device)
    return _job(model, ALEXNET_RATE, data)


def _job(model: torch.nn.Module, learning_rate: float, data: str) -> Job:
    from models.download import DataError
    from models.fashion import FashionMnist

    def pictures(train: bool) -> FashionMnist:
        try:
            return FashionMnist(train, data or None)
        except DataError as error:
            raise UsageError(str(error)) from None

    return Job(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=1e-2),
        rate=warm_then_decay(WARM_STEPS, HALF_STEPS),
        data=pictures,
        loss=classification_loss,
        evaluate=accuracy_on("test pictures"),
        global_batch=GLOBAL_BATCH,
        steps=STEPS,
    )
