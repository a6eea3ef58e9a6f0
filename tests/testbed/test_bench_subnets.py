"""The parts with which unequal devices end a step together."""

from __future__ import annotations

import pytest

from edgeagent.trainer.subnets import fully_connected
from models.fully_connected import fully_connected_net
from models.residual_perceptron import residual_perceptron
from tests.testbed.bench.subnets import SLOW, right_parts


@pytest.mark.parametrize("is_residual", [True, False])
def test_the_right_parts_take_equally_long(is_residual: bool) -> None:
    if is_residual:
        net = residual_perceptron(64, 32, 128, blocks=4, classes=10)
    else:
        net = fully_connected_net(64, 128, classes=10)
    division = fully_connected(net)
    parts = right_parts(net, division)
    assert sum(parts.values()) == pytest.approx(1.0)
    dims = [
        sum(p.tensor == name for layer in division.layers for p in layer.pieces)
        for name, _ in net.named_parameters()
    ]
    sizes = [tensor.numel() for tensor in net.parameters()]
    times = [
        slow * sum(n * parts[name] ** d for n, d in zip(sizes, dims, strict=True))
        for name, slow in SLOW.items()
    ]
    assert times == pytest.approx([times[0]] * len(times))
