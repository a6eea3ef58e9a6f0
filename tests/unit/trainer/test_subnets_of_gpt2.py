"""Subnets of Hugging Face's GPT-2, whose modules keep their own sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from edgeagent.trainer.subnets import transformer
from edgeagent.trainer.subnets.cut_model import CutModel


def gpt2() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=50,
        n_positions=16,
        n_embd=16,
        n_layer=2,
        n_head=4,
        resid_pdrop=0,
        attn_pdrop=0,
        embd_pdrop=0,
    )
    torch.manual_seed(1)
    return transformers.GPT2LMHeadModel(config)


def test_neurons_and_heads_are_divided() -> None:
    division = transformer(gpt2())
    assert sorted(layer.units for layer in division.layers) == [4, 4, 64, 64]


@pytest.mark.parametrize("part", [1, 2, 4])
def test_a_part_of_it_computes(part: int) -> None:
    """The whole of it computes the same as the model, and so does one whose other units are 0."""
    model = gpt2()
    division = transformer(model)
    cut = CutModel(model, division, "none")
    cut.become({layer.name: np.arange(layer.units // part) for layer in division.layers})
    tokens = torch.arange(12).reshape(2, 6)
    with torch.no_grad():
        found = cut.net(tokens).logits
        for layer in division.layers:
            users = dict(model.named_parameters())
            users[f"{layer.users[0]}.weight"][layer.units // part * layer.width :] = 0
        wanted = model(tokens).logits
    torch.testing.assert_close(found, wanted)


def test_cross_attention_stays_whole() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=50, n_embd=16, n_layer=1, n_head=4, add_cross_attention=True
    )
    names = [layer.name for layer in transformer(transformers.GPT2LMHeadModel(config)).layers]
    assert not [name for name in names if "cross" in name]
