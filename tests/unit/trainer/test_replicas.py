"""Replicas stay byte-identical, and equal to training alone, whatever model and optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from tests.unit.trainer.replicas import CLASSES, FEATURES, Points, network, run_cluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeagent.trainer import Trainer

OPTIMIZERS: dict[str, Callable[[list[dict[str, Any]]], torch.optim.Optimizer]] = {
    "sgd-momentum": lambda g: torch.optim.SGD(g, lr=0.05, momentum=0.9, nesterov=True),
    "adamw": lambda g: torch.optim.AdamW(g, lr=3e-3),
    "adam-amsgrad": lambda g: torch.optim.Adam(g, lr=3e-3, amsgrad=True),
    "rmsprop": lambda g: torch.optim.RMSprop(g, lr=1e-3, momentum=0.5, centered=True),
    "adagrad": lambda g: torch.optim.Adagrad(g, lr=1e-2),
    "adafactor": lambda g: torch.optim.Adafactor(g, lr=1e-2),
    "nadam": lambda g: torch.optim.NAdam(g, lr=1e-3),
}


def two_groups(model: nn.Module) -> list[dict[str, Any]]:
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    return [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]


def make_with(kind: str, **options: Any) -> Any:
    def make() -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]:
        model = network()
        optimizer = OPTIMIZERS[kind](two_groups(model))
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=[0.02, 0.01], total_steps=50, cycle_momentum=kind == "sgd-momentum"
        )
        settings = {"global_batch": 40, "micro_batch": 8, "max_grad_norm": 0.5}
        return model, optimizer, {**settings, "lr_scheduler": schedule, **options}

    return make


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_joiner_and_founders_are_equal_byte_for_byte(kind: str) -> None:
    served = run_cluster(make_with(kind), 3, 12, cluster={"join_at": {2: 5}})
    assert served.losses[-1] == served.losses[-1]
    assert served.losses[-1] < served.losses[0]
    assert len(served.states) == 1


def tries(trainer: Trainer, model: nn.Module, dataset: Any = None) -> None:
    """The loop of the README, with a `backward()` between micro-batches, as for a picture of what
    the model looks at."""
    for x, y in trainer.loader(dataset):
        nn.functional.cross_entropy(model(x), y).backward()
        trainer.update(1.0)
        model.eval()
        model(x).sum().backward()
        model.train()


def as_ever(trainer: Trainer, model: nn.Module, dataset: Any = None) -> None:
    for x, y in trainer.loader(dataset):
        nn.functional.cross_entropy(model(x), y).backward()
        trainer.update(1.0)


def test_gradients_from_between_micro_batches_are_not_trained() -> None:
    found = [run_cluster(make_with("adamw"), 2, 4, loop=loop).states for loop in (as_ever, tries)]
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", ["sgd-momentum", "adamw"])
def test_mirrored_replica_equals_in_place_one(kind: str) -> None:
    direct = run_cluster(make_with(kind), 2, 8, cluster={"join_at": {1: 3}})
    mirrored = run_cluster(make_with(kind, _mirror=True), 2, 8, cluster={"join_at": {1: 3}})
    assert mirrored.states == direct.states
    assert mirrored.metas == direct.metas


def make_double() -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]:
    model = network(torch.float64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    return (
        model,
        optimizer,
        {
            "global_batch": 48,
            "micro_batch": 8,
            "lr_scheduler": schedule,
            "max_grad_norm": 1.0,
        },
    )


def double_points() -> Points:
    return Points(torch.float64)


def test_four_nodes_train_as_one_does() -> None:
    alone = run_cluster(make_double, 1, 100, dataset=double_points)
    four = run_cluster(make_double, 4, 100, dataset=double_points)
    differences = [abs(a - b) / abs(a) for a, b in zip(alone.losses, four.losses, strict=True)]
    assert max(differences) <= 1e-9
    assert alone.losses[-1] < 0.7 * alone.losses[0]


class Tied(nn.Module):
    """An encoder and a decoder that share their weight, and a parameter nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.encoder = nn.Linear(FEATURES, FEATURES)
        self.decoder = nn.Linear(FEATURES, FEATURES)
        self.decoder.weight = self.encoder.weight
        self.head = nn.Linear(FEATURES, CLASSES)
        self.unused = nn.Linear(3, 3)
        self.frozen = nn.Parameter(torch.ones(FEATURES), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.decoder(torch.tanh(self.encoder(x))) * self.frozen)
        return output


def make_tied() -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]:
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    return model, optimizer, {"global_batch": 32}


def tied_loop(trainer: Trainer, model: nn.Module, dataset: Any) -> None:
    from tests.unit.trainer.replicas import train

    assert isinstance(model, Tied)
    before = model.unused.weight.detach().clone()
    train(trainer, model, dataset)
    assert model.decoder.weight is model.encoder.weight
    assert torch.equal(model.unused.weight, before)
    assert not trainer._optimizer.state.get(model.unused.weight)


def test_tied_unused_and_frozen_parameters() -> None:
    served = run_cluster(make_tied, 3, 8, cluster={"join_at": {2: 4}}, loop=tied_loop)
    names = [name for name, _, _ in served.nodes[0].hello.tensors]
    assert "model.encoder.weight" not in names or "model.decoder.weight" not in names
    assert "model.frozen" in names
    assert "optimizer.frozen.exp_avg" not in names


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_parameters(dtype: torch.dtype) -> None:
    def make() -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]:
        model = network(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return model, optimizer, {"global_batch": 32}

    served = run_cluster(make, 2, 10, dataset=lambda: Points(dtype), cluster={"join_at": {1: 4}})
    assert served.nodes[0].hello.accumulate == "float32"
    assert served.losses[-1] < served.losses[0]


def test_not_finite_gradients_are_skipped_by_all_and_counted() -> None:
    cluster = {"poison": {3: float("nan"), 5: float("inf")}, "keep_states": True}
    served = run_cluster(make_with("adamw"), 2, 8, cluster=cluster)
    assert served.skipped == [3, 5]
    assert served.states[3] == served.states[2]
    assert served.states[4] != served.states[3]
    assert served.metas[3] != served.metas[2]


def test_shares_of_zero_and_uneven_shares() -> None:
    def shares(iteration: int, active: int) -> list[int]:
        return [[5, 0], [0, 5], [1, 4]][iteration % 3]

    even = run_cluster(make_with("sgd-momentum"), 1, 6)
    odd = run_cluster(make_with("sgd-momentum"), 2, 6, cluster={"shares": shares})
    assert odd.losses == pytest.approx(even.losses, rel=1e-5)
