"""The perceptrons with a residual path: shapes, and what of them can be divided."""

from __future__ import annotations

import torch

from edgeagent.planner.work_cost import WorkCost
from edgeagent.trainer.subnets import fully_connected
from models.residual_perceptron import Residual, residual_perceptron


def test_shapes_and_size() -> None:
    net = residual_perceptron(inputs=12, width=4, hidden=8, blocks=2, classes=3)
    assert net(torch.zeros(5, 3, 4)).shape == (5, 3)
    block = 2 * 4 + (4 * 8 + 8) + (8 * 4 + 4)
    whole = (12 * 4 + 4) + 2 * block + 2 * 4 + (4 * 3 + 3)
    assert sum(parameter.numel() for parameter in net.parameters()) == whole


def test_a_block_that_makes_nothing_changes_nothing() -> None:
    block = Residual(4, 8)
    last = block.body[-1]
    assert isinstance(last, torch.nn.Linear)
    torch.nn.init.zeros_(last.weight)
    torch.nn.init.zeros_(last.bias)
    x = torch.randn(3, 4)
    assert torch.equal(block(x), x)


def test_the_neurons_of_each_block_are_divided() -> None:
    net = residual_perceptron(inputs=12, width=4, hidden=8, blocks=3, classes=3)
    found = fully_connected(net)
    assert [layer.units for layer in found.layers] == [8, 8, 8]
    whole, divided = 12 * 4 + 4 * 3, 3 * 2 * 4 * 8
    assert found.cost(net) == WorkCost(whole / (whole + divided), 0.0)
