"""What a built-in job is, and the loop that trains and evaluates one.

A job is what a user's own script would be: a model, an optimizer, a data set and the loop of the
README. It uses nothing of the trainer that a script cannot use, so that the built-in jobs show what
scripts can do. The schedules do not depend on the number of steps, so that nodes which are asked
for different numbers train the same job.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from edgeagent.errors import UsageError
from edgeagent.trainer.subnets import fully_connected, transformer
from edgeagent.trainer.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeagent.trainer.subnets import Division


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a trained model is worth.

    `scores`: figures of merit by name, which the agent shows and writes to its events. `text`: one
    line for people.
    """

    scores: dict[str, float]
    text: str


@dataclass(frozen=True, slots=True)
class Job:
    """One job.

    `rate(iteration)` is the factor on the optimizer's learning rate. `data(train)` returns the
    training or the test set. `loss(model, batch)` is the mean loss of one micro-batch, as the
    loader yields it. `evaluate(model, dataset, device)` judges the trained model by the test set;
    the model is in evaluation mode then, and no gradients are recorded.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    rate: Callable[[int], float]
    data: Callable[[bool], Any]
    loss: Callable[[torch.nn.Module, Any], torch.Tensor]
    evaluate: Callable[[torch.nn.Module, Any, torch.device], Evaluation]
    global_batch: int
    steps: int


def train_and_evaluate(
    job: Job, device: torch.device, local_steps: int = 0, *, by_parts: bool = False
) -> Evaluation | None:
    """Train `job` to its end and return what it is worth; None if this node left early.

    With `local_steps` (0: none) there are as many fewer iterations, which are rounds, and the rate
    of a round is that of the iteration in its middle. `by_parts`: in each round this device trains
    a subnet of the model. Prints one line with the result and reports
    each score to the agent.
    """
    each = max(1, local_steps)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        job.optimizer, lambda number: job.rate(number * each + each // 2)
    )
    trainer = Trainer(
        job.model,
        job.optimizer,
        global_batch=job.global_batch,
        lr_scheduler=schedule,
        steps=max(1, job.steps // each),
        overlap=True,
        subnets=division_of(job.model) if by_parts else None,
    )
    for batch in trainer.loader(job.data(True)):
        loss = job.loss(trainer.model, batch)
        loss.backward()
        trainer.update(loss)
        if trainer.capture_exit_event():
            trainer.request_node_exit()
            break
    if trainer.end_reason != "steps":
        trainer.close()
        return None
    job.model.eval()
    with torch.no_grad():
        evaluation = job.evaluate(job.model, job.data(False), device)
    job.model.train()
    for name, value in evaluation.scores.items():
        trainer.report(name, value, quiet=True)  # the text below says it
    print(evaluation.text, flush=True)
    trainer.close()
    return evaluation


def division_of(model: torch.nn.Module) -> Division:
    """Return what of a job's model is divided: the hidden layers of its linear layers, or of its
    transformer blocks. Raises `UsageError` if it has neither."""
    try:
        return fully_connected(model)
    except UsageError:
        pass
    try:
        return transformer(model)
    except UsageError:
        raise UsageError(
            "--mode subnets divides hidden linear layers or transformer blocks, and the model of"
            " this job has neither: leave --mode subnets away, or take another job"
        ) from None


def warm_then_decay(warm: int, half: int) -> Callable[[int], float]:
    """Return a rate that rises over `warm` iterations, then falls as 1 / (1 + (i / half)^2)."""

    def rate(iteration: int) -> float:
        if iteration < warm:
            return (iteration + 1) / warm
        past = (iteration - warm) / half
        return 1.0 / (1.0 + past * past)

    return rate
