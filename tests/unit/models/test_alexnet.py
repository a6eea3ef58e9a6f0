"""AlexNet has the published size, torchvision's keys, and takes small pictures."""

from __future__ import annotations

import pytest
import torch

from models.alexnet import AlexNet
from tests.unit.models.peers import compare_with_torchvision


def test_the_size_is_the_published_one() -> None:
    with torch.device("meta"):
        state = AlexNet().state_dict()
    assert sum(tensor.numel() for tensor in state.values()) == 61_100_840
    assert len(state) == 16
    assert state["features.0.weight"].shape == (64, 3, 11, 11)
    assert state["classifier.1.weight"].shape == (4096, 9216)


def test_equal_to_torchvision() -> None:
    compare_with_torchvision("alexnet", AlexNet)


@pytest.mark.parametrize(("side", "channels"), [(32, 3), (28, 1)])
def test_small_pictures(side: int, channels: int) -> None:
    torch.manual_seed(0)
    model = AlexNet(10, stem="cifar", hidden=16, channels=channels)
    logits = model(torch.randn(2, channels, side, side))
    assert logits.shape == (2, 10)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_an_unknown_stem_is_refused() -> None:
    with pytest.raises(ValueError, match="stem 'small': use one of imagenet, cifar"):
        AlexNet(stem="small")
