"""The built-in jobs: `edgeagent run digits`, `edgeagent run fashion-mnist`.

Law: a job is what a user's own script would be: a model, an optimizer, a data set and the loop of
the README. It uses nothing of the trainer that a script cannot use. The schedules do not depend on
the number of steps, so that nodes asked for different numbers train the same job.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from edgeagent.trainer.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Callable

EVALUATION_BATCH = 500


@dataclass(frozen=True, slots=True)
class Job:
    """One classification job.

    `rate(iteration)` is the factor on the optimizer's learning rate. `data(train)` returns the
    training or the test set.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    rate: Callable[[int], float]
    data: Callable[[bool], Any]
    global_batch: int
    steps: int
    noun: str


def train_and_evaluate(job: Job, device: torch.device) -> float:
    """Train `job` to its end and return its test accuracy (0..1); NaN if this node left early.

    Prints one line with the result and reports it to the agent.
    """
    schedule = torch.optim.lr_scheduler.LambdaLR(job.optimizer, job.rate)
    trainer = Trainer(
        job.model,
        job.optimizer,
        global_batch=job.global_batch,
        lr_scheduler=schedule,
        steps=job.steps,
    )
    for inputs, labels in trainer.loader(job.data(True)):
        loss = nn.functional.cross_entropy(job.model(inputs), labels)
        loss.backward()
        trainer.update(loss)
        if trainer.capture_exit_event():
            trainer.request_node_exit()
            break
    if trainer.end_reason != "steps":
        trainer.close()
        return float("nan")
    right, count = evaluate(job.model, job.data(False), device)
    trainer.report("accuracy", right / count)
    print(f"accuracy {100 * right / count:.2f} % on {count} {job.noun}", flush=True)
    trainer.close()
    return right / count


def evaluate(model: nn.Module, dataset: Any, device: torch.device) -> tuple[int, int]:
    """Return how many samples of `dataset` the model gets right, and how many there are."""
    model.eval()
    right = 0
    with torch.no_grad():
        for inputs, labels in torch.utils.data.DataLoader(dataset, EVALUATION_BATCH):
            right += int((model(inputs.to(device)).argmax(dim=1).cpu() == labels).sum())
    model.train()
    return right, len(dataset)


def warm_then_decay(warm: int, half: int) -> Callable[[int], float]:
    """Return a rate that rises over `warm` iterations, then falls as 1 / (1 + (i / half)^2)."""

    def rate(iteration: int) -> float:
        if iteration < warm:
            return (iteration + 1) / warm
        past = (iteration - warm) / half
        return 1.0 / (1.0 + past * past)

    return rate
