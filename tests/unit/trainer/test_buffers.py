"""Buffers with infinite elements, such as masks for attention, and those of float64."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from edgeagent.errors import UsageError
from edgeagent.trainer.buffers import ModelBuffers
from edgeagent.trainer.gradients import plan_vector
from tests.unit.trainer.replicas import CLASSES, FEATURES, run_cluster, train

if TYPE_CHECKING:
    from edgeagent.trainer import Trainer

INF = math.inf
BUFFERS = {
    "mask": torch.full((4, 4), -INF).triu(1),
    "rest": torch.tensor([math.nan, INF, 2.0]),
    "wide": torch.tensor([0.1, 1e300], dtype=torch.float64),
    "short": torch.tensor([-INF, 0.1], dtype=torch.bfloat16),
}


class Masked(nn.Module):
    """Buffers that stay as they are, and batch norm's, which change."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.layer, self.norm = nn.Linear(FEATURES, CLASSES), nn.BatchNorm1d(CLASSES)
        for name, value in BUFFERS.items():
            self.register_buffer(name, value.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = torch.softmax(self.get_buffer("mask"), 1)
        output: torch.Tensor = self.norm(self.layer(x)) @ seen
        return output


def until_the_end(trainer: Trainer, model: nn.Module, data: Any) -> None:
    before = model.get_buffer("norm.running_var").clone()
    train(trainer, model, data)
    assert trainer.skipped == 0
    for name, value in BUFFERS.items():
        assert torch.equal(model.get_buffer(name).isnan(), value.isnan()), name
        assert torch.equal(model.get_buffer(name).nan_to_num(7.0), value.nan_to_num(7.0)), name
    assert not torch.equal(model.get_buffer("norm.running_var"), before)


@pytest.mark.parametrize("options", [{}, {"wire": "exact"}, {"_mirror": True}, {"local_steps": 2}])
def test_infinite_elements_stay_and_no_step_is_skipped(options: dict[str, Any]) -> None:
    def make() -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]:
        model = Masked()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, optimizer, {"global_batch": 32, "micro_batch": 4, **options}

    served = run_cluster(make, 2, 4, loop=until_the_end)
    assert len(served.losses) == 4


def attached(value: torch.Tensor, *, fixed: bool) -> tuple[nn.Module, ModelBuffers, torch.Tensor]:
    """Return a model with one buffer `value`, its buffers, and this node's sum of its changes."""
    model = nn.Module()
    model.register_buffer("kept", value.clone())
    buffers = ModelBuffers(model, fixed=fixed)
    layout = plan_vector([1], buffers.sizes(), torch.float32)
    vector = torch.zeros(layout.elements)
    buffers.attach({"kept": value.clone()}, layout, vector)
    return model, buffers, buffers.section(layout, vector)[0]


@pytest.mark.parametrize("start", [INF, -INF, math.nan])
@pytest.mark.parametrize("after", [2.0, 0.0, -7.0, "other"])
def test_an_infinite_element_that_changes_is_refused_by_name(start: float, after: Any) -> None:
    left = torch.tensor([1.0, {INF: -INF}.get(start, INF) if after == "other" else after])
    model, buffers, _ = attached(torch.tensor([1.0, start]), fixed=True)
    model.kept = left
    with pytest.raises(UsageError, match="buffer kept: an element that is infinite or NaN has"):
        buffers.collect()
    with pytest.raises(UsageError, match="buffer kept"):
        buffers.put_change("kept", left, 3, ())


def test_where_it_may_change_it_contributes_its_value() -> None:
    model, buffers, total = attached(torch.tensor([INF, -INF]), fixed=False)
    for value in (2.0, 6.0):
        buffers.restore()
        model.kept = torch.tensor([value, -INF])
        buffers.collect()
    buffers.apply({0: total / 2}, b"")
    assert torch.equal(model.get_buffer("kept"), torch.tensor([4.0, -INF]))


def test_what_a_step_that_is_left_out_has_spoilt_is_not_handed_in() -> None:
    """One device has met a sample that is NaN, and all would have it in their statistics."""
    start = torch.tensor([1.0, 2.0, INF])
    model, buffers, total = attached(start, fixed=False)
    model.kept = torch.tensor([math.nan, 5.0, INF])
    buffers.collect(along=1)
    assert torch.equal(model.get_buffer("kept"), torch.tensor([1.0, 5.0, INF]))
    assert torch.equal(total[:2], torch.tensor([0.0, 3.0]))
    buffers.put_change("kept", torch.tensor([INF, 3.0, INF]), 4, ())
    assert torch.equal(total[:2], torch.tensor([0.0, 4.0]))


def test_an_element_that_has_become_infinite_is_looked_for_in_each_iteration() -> None:
    model, buffers, total = attached(torch.tensor([1.0]), fixed=True)
    buffers.collect()
    buffers.apply({0: total + INF}, b"")
    assert model.get_buffer("kept").item() == INF
    buffers.clear()
    buffers.collect()
    model.kept = torch.tensor([3.0])
    with pytest.raises(UsageError, match="buffer kept"):
        buffers.collect()
    buffers.restore()
    buffers.apply({0: torch.zeros(1)}, b"")
    assert model.get_buffer("kept").item() == INF, "no device had it, as may be with subnets"
