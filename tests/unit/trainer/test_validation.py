"""Every refusal names what is wrong, before anything is joined."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from edgeagent.errors import UsageError
from edgeagent.trainer import Trainer
from edgeagent.trainer.loader import default_micro_batch
from edgeagent.trainer.validation import check_dataset


def anything() -> Any:
    return object()


def linear() -> nn.Module:
    return nn.Linear(4, 4)


def sgd(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, **options)


def attempt(model: nn.Module, optimizer: Any = None, **options: Any) -> Trainer:
    return Trainer(model, sgd(model) if optimizer is None else optimizer, **options)


def with_parameter(value: torch.Tensor, grad: bool = True) -> nn.Module:
    model = nn.Linear(2, 2)
    model.extra = nn.Parameter(value, requires_grad=grad)
    return model


def with_buffer(value: torch.Tensor) -> nn.Module:
    model = nn.Linear(2, 2)
    model.register_buffer("extra", value)
    return model


def sharing() -> nn.Module:
    model = nn.Linear(2, 2)
    model.extra = nn.Parameter(model.weight.data)
    return model


def foreign() -> Trainer:
    return attempt(linear(), sgd(linear()))


def twice() -> Trainer:
    model = linear()
    optimizer = sgd(model)
    optimizer.param_groups.append({**optimizer.param_groups[0]})
    return attempt(model, optimizer)


def left_out() -> Trainer:
    model = nn.Linear(2, 2)
    return attempt(model, torch.optim.SGD([model.weight], lr=0.1))


def frozen() -> nn.Module:
    model = linear()
    for parameter in model.parameters():
        parameter.requires_grad = False
    return model


def other_schedule() -> Trainer:
    return attempt(linear(), lr_scheduler=torch.optim.lr_scheduler.StepLR(sgd(linear()), 1))


class Closure(torch.optim.SGD):
    def step(self, closure: Callable[[], float]) -> float:  # type: ignore[override]
        return closure()


class Odd(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["history"] = [parameter.grad]


def quantised() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch itself wants to be rid of these
        value = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    return with_buffer(value)


REFUSALS: dict[str, tuple[str, Callable[[], Any]]] = {
    "no module": ("not a torch.nn.Module", lambda: attempt(anything(), anything())),
    "no optimizer": ("not a torch.optim", lambda: attempt(linear(), object())),
    "lbfgs": ("LBFGS", lambda: attempt(m := linear(), torch.optim.LBFGS(m.parameters()))),
    "closure": ("Closure", lambda: attempt(m := linear(), Closure(m.parameters(), lr=0.1))),
    "sparse adam": (
        "SparseAdam",
        lambda: attempt(m := linear(), torch.optim.SparseAdam(m.parameters())),
    ),
    "sparse": ("sparse=False", lambda: attempt(nn.Sequential(nn.Embedding(4, 4, sparse=True)))),
    "foreign": ("not in the model", foreign),
    "left out": ("bias is trainable and in none", left_out),
    "twice": ("in two places", twice),
    "complex": ("extra is complex", lambda: attempt(with_parameter(torch.zeros(2) * 1j))),
    "complex buffer": ("extra is complex", lambda: attempt(with_buffer(torch.zeros(2) * 1j))),
    "quantised": ("extra is quantised", lambda: attempt(quantised())),
    "float8": (
        "extra has dtype torch.float8",
        lambda: attempt(with_parameter(torch.zeros(2).to(torch.float8_e4m3fn), grad=False)),
    ),
    "meta": ("meta device", lambda: attempt(with_parameter(torch.zeros(2, device="meta")))),
    "shared": ("share memory", lambda: attempt(sharing())),
    "lazy": ("no shape yet", lambda: attempt(nn.LazyLinear(3))),
    "frozen": ("no trainable", lambda: attempt(frozen())),
    "batch": ("not divisible", lambda: attempt(linear(), global_batch=30, micro_batch=8)),
    "zero batch": ("positive", lambda: attempt(linear(), global_batch=0)),
    "negative": ("positive", lambda: attempt(linear(), micro_batch=-8)),
    "huge": ("at most 1048576", lambda: attempt(linear(), global_batch=10**12)),
    "text batch": ("positive", lambda: attempt(linear(), global_batch="8")),
    "many": (
        "more than",
        lambda: attempt(linear(), global_batch=1 << 20, micro_batch=1),
    ),
    "steps": ("steps", lambda: attempt(linear(), steps=-1)),
    "clip": ("max_grad_norm", lambda: attempt(linear(), max_grad_norm=0.0)),
    "clip nan": ("max_grad_norm", lambda: attempt(linear(), max_grad_norm=float("nan"))),
    "capturable": (
        "capturable",
        lambda: attempt(m := linear(), torch.optim.Adam(m.parameters(), capturable=True)),
    ),
    "differentiable": (
        "differentiable",
        lambda: attempt(m := linear(), sgd(m, differentiable=True)),
    ),
    "tensor lr": (
        "lr of group 0 is a tensor",
        lambda: attempt(m := linear(), torch.optim.Adam(m.parameters(), lr=torch.tensor(0.1))),
    ),
    "odd slots": ("history is a list", lambda: attempt(m := linear(), Odd(m.parameters(), lr=0.1))),
    "schedule": ("another optimizer", other_schedule),
    "no schedule": ("has no step", lambda: attempt(linear(), lr_scheduler=object())),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refused_by_name(name: str) -> None:
    message, make = REFUSALS[name]
    with pytest.raises(UsageError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_fused_is_switched_off_with_a_warning() -> None:
    model = linear()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    with pytest.warns(UserWarning, match="fused") as caught:
        attempt(model, optimizer)
    assert caught[0].filename == __file__, "where the script makes its Trainer"
    assert optimizer.param_groups[0]["fused"] is False
    assert optimizer.param_groups[0]["foreach"] is False


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ([], "empty"),
        (iter([1]), "__len__"),
        ({1, 2}, "__getitem__"),
        (torch.utils.data.DataLoader([1, 2]), "not a DataLoader"),  # type: ignore[arg-type]
    ],
)
def test_data_sets(dataset: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_dataset(dataset)


@pytest.mark.parametrize(
    ("global_batch", "micro_batch"),
    [
        (256, 8),
        (128, 8),
        (32, 8),
        (8, 8),
        (5, 5),
        (1, 1),
        (1024, 16),
        (100, 10),
        (26, 13),
        (7, 7),
        (4096, 64),
        (17, 17),
        (10**12, 10**12 // 64),
        (10**12 + 39, 10**12 + 39),
    ],
)
def test_default_micro_batch(global_batch: int, micro_batch: int) -> None:
    assert default_micro_batch(global_batch) == micro_batch
