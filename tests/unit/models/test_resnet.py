"""Residual networks have the published sizes, torchvision's keys, and take small pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from models import resnet
from tests.unit.models.peers import compare_with_torchvision

if TYPE_CHECKING:
    from models.resnet import ResNet

PARAMETERS = {"resnet18": 11_689_512, "resnet50": 25_557_032, "resnet101": 44_549_160}
TENSORS = {"resnet18": 122, "resnet50": 320, "resnet101": 626}  # in the state dict


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", PARAMETERS)
def test_sizes_are_the_published_ones(name: str) -> None:
    with torch.device("meta"):
        model: ResNet = getattr(resnet, name)()
    assert parameters(model) == PARAMETERS[name]
    state = model.state_dict()
    assert len(state) == TENSORS[name]
    assert state["conv1.weight"].shape == (64, 3, 7, 7)
    assert state["layer2.0.downsample.0.weight"].shape[2:] == (1, 1)
    assert ("layer1.0.downsample.0.weight" in state) == (name != "resnet18")
    assert state["fc.weight"].shape == (1000, 512 if name == "resnet18" else 2048)


@pytest.mark.parametrize("name", PARAMETERS)
def test_equal_to_torchvision(name: str) -> None:
    compare_with_torchvision(name, getattr(resnet, name))


@pytest.mark.parametrize(("side", "channels"), [(32, 3), (28, 1)])
def test_small_pictures_keep_their_size_in_the_first_stage(side: int, channels: int) -> None:
    torch.manual_seed(0)
    model = resnet.resnet18(10, stem="cifar", width=4, channels=channels)
    sizes: list[torch.Size] = []
    for stage in ("layer1", "layer4"):
        model.get_submodule(stage).register_forward_hook(
            lambda _module, _inputs, output: sizes.append(output.shape)
        )
    logits = model(torch.randn(2, channels, side, side))
    assert logits.shape == (2, 10)
    assert sizes == [(2, 4, side, side), (2, 32, -(-side // 8), -(-side // 8))]
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_half_the_width_has_a_quarter_of_the_weights() -> None:
    with torch.device("meta"):
        narrow, wide = (resnet.resnet18(10, stem="cifar", width=width) for width in (32, 64))
    assert parameters(wide) == 11_173_962
    assert 3.9 < parameters(wide) / parameters(narrow) < 4.1


def test_an_unknown_stem_is_refused() -> None:
    with pytest.raises(ValueError, match="stem 'small': use one of imagenet, cifar"):
        resnet.resnet18(stem="small")
