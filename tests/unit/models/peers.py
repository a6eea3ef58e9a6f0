"""Comparison of our networks with those of torchvision, where that is installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

SIDE = 64  # of the pictures that are compared; the networks are for 224, but take these


def compare_with_torchvision(name: str, make: Callable[[], nn.Module]) -> None:
    """Fail unless our network and `torchvision.models.NAME` have the same keys, shapes and outputs.

    Outputs are compared with the same weights, once in evaluation mode and once in training mode,
    in which both drop the same features because both draw from the same generator.
    """
    try:
        theirs: Any = importlib.import_module("torchvision.models")
    except ImportError:
        pytest.skip("torchvision is not installed: `pip install torchvision` to compare with it")
    torch.manual_seed(0)
    their, our = getattr(theirs, name)(weights=None), make()
    shapes = [[(key, value.shape) for key, value in m.state_dict().items()] for m in (their, our)]
    assert shapes[0] == shapes[1]
    our.load_state_dict(their.state_dict())
    pictures = torch.randn(2, 3, SIDE, SIDE)
    for training in (False, True):
        outputs = []
        for model in (their, our):
            torch.manual_seed(1)
            outputs.append(model.train(training)(pictures))
        assert torch.equal(*outputs)
