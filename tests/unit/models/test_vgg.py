"""VGG-11 has the published sizes, torchvision's keys, and takes pictures from 32x32 on."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from models.vgg import Vgg11
from tests.unit.models.peers import compare_with_torchvision


@pytest.mark.parametrize(
    ("batch_norm", "parameters", "tensors"), [(False, 132_863_336, 22), (True, 132_868_840, 62)]
)
def test_sizes_are_the_published_ones(batch_norm: bool, parameters: int, tensors: int) -> None:
    with torch.device("meta"):
        model = Vgg11(batch_norm=batch_norm)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    state = model.state_dict()
    assert len(state) == tensors
    assert state["features.0.weight"].shape == (64, 3, 3, 3)
    assert state["classifier.0.weight"].shape == (4096, 25088)


@pytest.mark.parametrize(("name", "batch_norm"), [("vgg11", False), ("vgg11_bn", True)])
def test_equal_to_torchvision(name: str, batch_norm: bool) -> None:
    compare_with_torchvision(name, partial(Vgg11, batch_norm=batch_norm))


@pytest.mark.parametrize("batch_norm", [False, True])
def test_small_pictures(batch_norm: bool) -> None:
    torch.manual_seed(0)
    model = Vgg11(10, stem="cifar", hidden=16, batch_norm=batch_norm)
    logits = model(torch.randn(2, 3, 32, 32))
    assert logits.shape == (2, 10)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_pictures_that_are_too_small_are_refused() -> None:
    with torch.device("meta"):
        model = Vgg11(10, stem="cifar", hidden=16)
    with pytest.raises(ValueError, match="pictures of 32x32 or more"):
        model(torch.zeros(2, 3, 28, 28, device="meta"))


def test_an_unknown_stem_is_refused() -> None:
    with pytest.raises(ValueError, match="stem 'small': use one of imagenet, cifar"):
        Vgg11(stem="small")
