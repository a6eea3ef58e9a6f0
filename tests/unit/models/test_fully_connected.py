"""The fully connected network has three layers, of the sizes it is asked for."""

from __future__ import annotations

import torch

from models.fully_connected import fully_connected_net


def test_shapes() -> None:
    torch.manual_seed(0)
    model = fully_connected_net(12, 7, 5)
    shapes = [tuple(parameter.shape) for parameter in model.parameters()]
    assert shapes == [(7, 12), (7,), (7, 7), (7,), (5, 7), (5,)]
    assert model(torch.zeros(3, 1, 4, 3)).shape == (3, 5)


def test_it_is_not_linear() -> None:
    torch.manual_seed(0)
    model = fully_connected_net(4, 16, 2)
    x = torch.randn(8, 4)
    assert not torch.allclose(model(x) + model(-x), 2 * model(torch.zeros(8, 4)))
