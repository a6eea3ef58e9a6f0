"""What parts of models cost, as counted in a step: the same, whatever part a device has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import nn

from edgeagent.planner.work_cost import WorkCost
from edgeagent.trainer.subnets import fully_connected, residual, transformer
from edgeagent.trainer.subnets.cut_model import CutModel
from edgeagent.trainer.subnets.first_step import FirstStep
from models.gpt2 import GPT2, TINY

if TYPE_CHECKING:
    from edgeagent.trainer.subnets.layers import Division

TOKENS = 6


def cost_of(
    model: nn.Module, division: Division, x: torch.Tensor, parts: int = 1
) -> WorkCost | None:
    """Return what a step with the first of so many equal parts of the model shows."""
    cut = CutModel(model, division)
    watched = FirstStep(model, cut.net, division, cut.places)
    cut.become(
        {layer.name: np.arange(layer.units // parts) for layer in division.layers}
        | {blocks.name: np.arange(len(blocks.modules) // parts) for blocks in division.blocks}
    )
    cut.net(x)
    return watched.cost()


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_a_perceptron_of_a_head_that_sees_one_token(parts: int) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.Embedding(1000, 8)
            self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
            self.body.append(nn.Linear(16, 8))
            self.head = nn.Linear(8, 40)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(self.rows(x))[:, -1])  # type: ignore[no-any-return]

    model = Model()
    x = torch.zeros(3, TOKENS, dtype=torch.int64)
    fixed, linear, square = 3 * 8 * 40, 3 * TOKENS * 2 * 8 * 16, 3 * TOKENS * 16 * 16
    whole = fixed + linear + square
    found = cost_of(model, fully_connected(model), x, parts)
    assert found is not None
    assert found.fixed == pytest.approx(fixed / whole)
    assert found.square == pytest.approx(square / whole)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.convolution(x).relu()  # type: ignore[no-any-return]


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_convolutions_count_for_each_pixel(parts: int) -> None:
    blocks = nn.Sequential(*(Block() for _ in range(4)))
    head = nn.Sequential(nn.Flatten(), nn.Linear(4 * 8 * 8, 10))
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), blocks, head)
    fixed = 4 * 3 * 9 * 64 + 4 * 64 * 10
    whole = fixed + 4 * 4 * 4 * 9 * 64
    found = cost_of(model, residual(model, blocks), torch.zeros(2, 3, 8, 8), parts)
    assert found is not None
    assert found.fixed == pytest.approx(fixed / whole)
    assert found.square == 0


def test_without_a_block_it_is_known_when_there_is_one() -> None:
    blocks = nn.Sequential(*(Block() for _ in range(4)))
    model = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), blocks)
    division, x = residual(model, blocks), torch.zeros(2, 4, 8, 8)
    cut = CutModel(model, division)
    watched = FirstStep(model, cut.net, division, cut.places)
    for mine in ((), (), (2,)):
        cut.become({"1": np.array(mine, np.int64)})
        cut.net(x)
        cut.net(x)
        found = watched.cost()
        assert (found is None) == (not mine)
    assert found == WorkCost(0.2, 0.0)


def test_compiled_modules_count_by_their_shapes() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
    division = fully_connected(model)
    cut = CutModel(model, division)
    watched = FirstStep(model, cut.net, division, cut.places)
    cut.become({layer.name: np.arange(4) for layer in division.layers})
    compiled = torch.compile(cut.net, backend="eager")
    for _ in range(2):
        compiled(torch.zeros(3, 8))
    assert watched.cost() == division.cost(model)


def test_a_language_model_whose_head_is_its_embedding() -> None:
    model = GPT2(TINY)
    found = cost_of(model, transformer(model), torch.zeros(2, TOKENS, dtype=torch.int64), 2)
    divided = sum(
        tensor.numel()
        for name, tensor in model.named_parameters()
        if tensor.ndim == 2 and ("c_" in name)
    )
    head = model.get_parameter("lm_head.weight").numel()
    assert found is not None
    assert found.square == 0
    assert found.fixed == pytest.approx(head / (head + divided))


def test_encoders_with_their_own_attention() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 32, batch_first=True)
    found = cost_of(layer, transformer(layer), torch.zeros(2, TOKENS, 8))
    attention, perceptron = 4 * 8 * 8, 2 * 8 * 32
    assert found is not None
    assert found.fixed == pytest.approx(attention / (attention + perceptron))
