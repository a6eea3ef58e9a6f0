"""Loss and evaluation of the jobs that tell classes of pictures apart.

A batch is (pictures [N, channels, H, W], labels int64 [N]), a model turns the pictures into logits
[N, classes].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from edgeagent.trainer.jobs.job import Evaluation

if TYPE_CHECKING:
    from collections.abc import Callable

EVALUATION_BATCH = 500


def classification_loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    """Return the mean cross-entropy of a batch."""
    pictures, labels = batch
    return functional.cross_entropy(model(pictures), labels)


def accuracy_on(
    noun: str,
) -> Callable[[torch.nn.Module, Any, torch.device], Evaluation]:
    """Return an evaluation by the part of a data set that a model gets right.

    `noun`: what the test set consists of, for people.
    """

    def evaluate(model: torch.nn.Module, dataset: Any, device: torch.device) -> Evaluation:
        right = 0
        for pictures, labels in torch.utils.data.DataLoader(dataset, EVALUATION_BATCH):
            right += int((model(pictures.to(device)).argmax(dim=1).cpu() == labels).sum())
        part = right / len(dataset)
        text = f"accuracy {100 * part:.2f} % on {len(dataset)} {noun}"
        return Evaluation({"accuracy": part}, text)

    return evaluate
