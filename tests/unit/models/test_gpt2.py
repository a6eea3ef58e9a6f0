"""GPT-2 has the published sizes and transformers' keys, sees no later token, and learns."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from models.gpt2 import GPT2, LARGE, MEDIUM, SMALL, TINY, GPT2Config, next_token_loss


@pytest.mark.parametrize(
    ("config", "parameters"),
    [(SMALL, 124_439_808), (MEDIUM, 354_823_168), (LARGE, 774_030_080)],
)
def test_sizes_are_the_published_ones(config: GPT2Config, parameters: int) -> None:
    with torch.device("meta"):
        model = GPT2(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    state = model.state_dict()
    assert len(state) == 12 * config.layers + 5
    assert state["transformer.wpe.weight"].shape == (1024, config.width)
    name = "transformer.h.0.attn.c_attn.weight"
    assert state[name].shape == (config.width, 3 * config.width)
    assert state["lm_head.weight"].shape == (50257, config.width)


def test_equal_to_transformers() -> None:
    try:
        theirs: Any = importlib.import_module("transformers")
    except ImportError:
        pytest.skip("transformers is not installed: `pip install transformers` to compare with it")
    torch.manual_seed(0)
    config = GPT2Config(vocabulary=300, context=32, width=48, layers=3, heads=4, dropout=0.0)
    sizes = {"n_positions": 32, "n_embd": 48, "n_layer": 3, "n_head": 4, "vocab_size": 300}
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    tokens = {"bos_token_id": 0, "eos_token_id": 0}
    their = theirs.GPT2LMHeadModel(theirs.GPT2Config(**sizes, **none, **tokens))
    our = GPT2(config)
    shapes = [[(key, value.shape) for key, value in m.state_dict().items()] for m in (their, our)]
    assert shapes[0] == shapes[1]
    for parameter in their.parameters():  # biases begin at zero, which would hide mistakes
        torch.nn.init.normal_(parameter, std=0.1)
    our.load_state_dict(their.state_dict())
    sequence = torch.randint(300, (2, 32))
    logits, expected = our(sequence), their(sequence).logits
    torch.testing.assert_close(logits, expected)
    loss = next_token_loss(logits[:, :-1], sequence[:, 1:])
    torch.testing.assert_close(loss, their(sequence, labels=sequence).loss)
    loss.backward()
    expected[:, :-1].flatten(0, 1).log_softmax(1).gather(
        1, sequence[:, 1:].reshape(-1, 1)
    ).mean().neg().backward()
    for (name, ours), (_, other) in zip(
        our.named_parameters(), their.named_parameters(), strict=True
    ):
        torch.testing.assert_close(ours.grad, other.grad, msg=name)


def test_logits_depend_on_no_later_token() -> None:
    torch.manual_seed(0)
    model = GPT2(TINY)
    tokens = torch.randint(256, (1, 20))
    changed = tokens.clone()
    changed[0, 12] = (tokens[0, 12] + 1) % 256
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :12], after[:, :12])
    assert (before[:, 12:] - after[:, 12:]).abs().amax(dim=2).min() > 1e-4


def test_initial_loss_is_that_of_a_guess_and_falls() -> None:
    torch.manual_seed(0)
    model = GPT2(GPT2Config(256, 32, 32, 1, 2, dropout=0.0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = torch.arange(33).repeat(4, 1)
    losses = []
    for _ in range(8):
        loss = next_token_loss(model(tokens[:, :-1]), tokens[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(5.55, abs=0.2)  # the logarithm of 256
    assert losses[-1] < 0.7 * losses[0]


def test_the_table_and_the_output_layer_are_one_parameter() -> None:
    model = GPT2(TINY)
    assert model.lm_head.weight is model.transformer.wte.weight
    assert "lm_head.weight" not in dict(model.named_parameters())


def test_dropout_acts_in_training_alone() -> None:
    torch.manual_seed(0)
    model = GPT2(GPT2Config(16, 8, 8, 1, 2, dropout=0.5))
    tokens = torch.randint(16, (1, 8))
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


def test_what_cannot_be_built_or_fed_is_refused() -> None:
    with pytest.raises(ValueError, match="width 10 is no multiple of 4 heads"):
        GPT2(GPT2Config(16, 8, 10, 1, 4))
    with pytest.raises(ValueError, match="65 tokens; this network takes 64"):
        GPT2(TINY)(torch.zeros(1, 65, dtype=torch.int64))
