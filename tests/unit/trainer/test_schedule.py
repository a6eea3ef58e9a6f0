"""The schedule's future rates: looked at without side effects, and in the fingerprint."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from edgeagent.trainer import Trainer
from edgeagent.trainer.fingerprint import job_fields
from edgeagent.trainer.schedule import LOOKED_AHEAD, future_rates


def adam() -> torch.optim.Optimizer:
    layers = nn.Linear(2, 2), nn.Linear(2, 2)
    groups: list[dict[str, Any]] = [{"params": layer.parameters()} for layer in layers]
    groups[1]["lr"] = 0.5
    return torch.optim.AdamW(groups, lr=0.1)


SCHEDULES: dict[str, Any] = {
    "step": lambda o: lr_scheduler.StepLR(o, 7),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, [lambda i: 1 / (1 + i), lambda i: 0.9**i]),
    "multiplicative": lambda o: lr_scheduler.MultiplicativeLR(o, lambda i: 0.99),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 30),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 30),
    "cycle": lambda o: lr_scheduler.CyclicLR(o, 0.1, 0.4, 20, cycle_momentum=False),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=2000),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 5), lr_scheduler.ExponentialLR(o, 0.99)], [5]
    ),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o), lr_scheduler.PolynomialLR(o, 50)]
    ),
}


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize("kind", SCHEDULES)
def test_future_rates_are_those_that_come_and_change_nothing(kind: str) -> None:
    optimizer = adam()
    schedule = SCHEDULES[kind](optimizer)
    scalars = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    before = copy.deepcopy((scalars, {k: repr(v) for k, v in schedule.state_dict().items()}))
    fields = dict(future_rates(optimizer, schedule))
    scalars = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    after = (scalars, {k: repr(v) for k, v in schedule.state_dict().items()})
    assert repr(after) == repr(before)
    assert len(fields) == len(LOOKED_AHEAD)
    for step in range(1, LOOKED_AHEAD[-1] + 1):
        schedule.step()
        if step in LOOKED_AHEAD:
            rates = ", ".join(repr(group["lr"]) for group in optimizer.param_groups)
            assert fields[f"learning rate after step {step}"] == rates


class Stubborn:
    """A schedule of the script's own that cannot be copied."""

    optimizer = None

    def step(self) -> None:
        raise AssertionError("a copy that is none was stepped")

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("no copies")


def test_what_is_not_known_is_said() -> None:
    optimizer = adam()
    assert future_rates(optimizer, None) == ()
    assert future_rates(optimizer, lr_scheduler.ReduceLROnPlateau(optimizer)) == ()
    assert future_rates(optimizer, Stubborn()) == (("learning rates known", "0, then TypeError"),)
    short = lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=50)
    *known, end = future_rates(optimizer, short)
    assert [name for name, _ in known] == [f"learning rate after step {n}" for n in (1, 2, 10)]
    assert end == ("learning rates known", "3, then ValueError")


def test_a_function_that_will_differ_is_in_the_fingerprint() -> None:
    def job(slower: float) -> dict[str, str]:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = lr_scheduler.LambdaLR(optimizer, lambda i: 1.0 if i < 50 else slower)
        trainer = Trainer(model, optimizer, 8, schedule)
        return dict(job_fields(trainer._state, optimizer, schedule, {}))

    one, other = job(0.5), job(0.4)
    different = [name for name in one if one[name] != other[name]]
    assert different == ["learning rate after step 100", "learning rate after step 1000"]
