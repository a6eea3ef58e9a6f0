"""`cifar10`: 32x32 photographs, a ResNet-18 that is narrow enough for laptops.

With a quarter of the usual width it has a sixteenth of the weights (0.7 million) and of the work.
"""

from __future__ import annotations

import torch

from edgeagent.errors import UsageError
from edgeagent.trainer.jobs.classification import accuracy_on, classification_loss
from edgeagent.trainer.jobs.job import Job, warm_then_decay

WIDTH = 16
GLOBAL_BATCH = 256
STEPS = 2000
LEARNING_RATE = 0.1
MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4
WARM_STEPS = 100
HALF_STEPS = 600


def make(device: torch.device, data: str) -> Job:
    """Build the job; `data`: the folder of the files or of their archive, "" downloads it.

    Raises `UsageError`, here or in `Job.data`, if the data cannot be had.
    """
    from models.cifar10 import Cifar10
    from models.download import DataError
    from models.resnet import resnet18

    def pictures(train: bool) -> Cifar10:
        try:
            return Cifar10(train, data or None, augment=train)
        except DataError as error:
            raise UsageError(str(error)) from None

    model = resnet18(10, stem="cifar", width=WIDTH).to(device)
    return Job(
        model=model,
        optimizer=torch.optim.SGD(
            model.parameters(),
            lr=LEARNING_RATE,
            momentum=MOMENTUM,
            weight_decay=WEIGHT_DECAY,
            nesterov=True,
        ),
        rate=warm_then_decay(WARM_STEPS, HALF_STEPS),
        data=pictures,
        loss=classification_loss,
        evaluate=accuracy_on("test pictures"),
        global_batch=GLOBAL_BATCH,
        steps=STEPS,
    )
