"""Adapters begin as nothing, are all that is trained, and merge into the weights they stand by."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from models.gpt2 import GPT2, SMALL, TINY, Conv1D
from models.lora import LoraLinear, adapter_state, add_adapters, load_adapters, merge

TOKENS = torch.arange(20).repeat(2, 1)
ADAPTERS = ("lora_a", "lora_b")
CONVOLUTIONS = ("c_attn", "c_proj")


def network(pattern: str = "*.attn.c_*") -> tuple[GPT2, list[str]]:
    torch.manual_seed(0)
    model = GPT2(TINY)
    return model, add_adapters(model, pattern, rank=3, alpha=6.0)


def train(model: nn.Module, steps: int = 3) -> None:
    """A few steps that change every adapter."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.5)
    for _ in range(steps):
        loss: Tensor = model(TOKENS).square().mean() * 100
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_new_adapters_change_no_output() -> None:
    torch.manual_seed(0)
    plain = GPT2(TINY)
    model, names = network()
    assert names == [f"transformer.h.{k}.attn.{part}" for k in (0, 1) for part in CONVOLUTIONS]
    assert torch.equal(model(TOKENS), plain(TOKENS))


def test_only_adapters_are_trained() -> None:
    model, names = network()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trainable = [name for name, p in model.named_parameters() if p.requires_grad]
    assert sorted(trainable) == sorted(f"{n}.{part}" for n in names for part in ADAPTERS)
    train(model)
    changed = [n for n, tensor in model.state_dict().items() if not torch.equal(tensor, before[n])]
    assert sorted(changed) == sorted(trainable)
    assert all(p.grad is None for p in model.parameters() if not p.requires_grad)


@pytest.mark.parametrize("base", [nn.Linear(5, 4), Conv1D(5, 4)])
def test_the_formula(base: nn.Linear | Conv1D) -> None:
    torch.manual_seed(0)
    layer = LoraLinear(base, rank=2, alpha=6.0)
    nn.init.normal_(layer.lora_b)
    x = torch.randn(3, 5)
    matrix = base.weight if isinstance(base, nn.Linear) else base.weight.t()
    whole = matrix + 3.0 * layer.lora_b @ layer.lora_a
    expected = x @ whole.t() + base.bias
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(layer.merged()(x), expected)


def test_merged_model_is_the_same_function_with_the_old_keys() -> None:
    torch.manual_seed(0)
    keys = list(GPT2(TINY).state_dict())
    model, _ = network()
    train(model)
    expected = model(TOKENS)
    merge(model)
    assert list(model.state_dict()) == keys
    torch.testing.assert_close(model(TOKENS), expected)
    assert not any(isinstance(module, LoraLinear) for module in model.modules())


def test_adapters_alone_carry_what_was_learned() -> None:
    model, names = network()
    train(model)
    state = adapter_state(model)
    assert sorted(state) == sorted(f"{name}.{part}" for name in names for part in ADAPTERS)
    other, _ = network()
    assert not torch.equal(other(TOKENS), model(TOKENS))
    load_adapters(other, state)
    assert torch.equal(other(TOKENS), model(TOKENS))


def test_adapters_of_another_network_are_refused() -> None:
    model, _ = network()
    state = adapter_state(model)
    name = sorted(state)[0]
    tensor = state.pop(name)
    with pytest.raises(ValueError, match=f"{name} is missing"):
        load_adapters(model, state)
    with pytest.raises(ValueError, match=r"x\.lora_a is of no adapter"):
        load_adapters(model, {**state, name: tensor, "x.lora_a": tensor})
    with pytest.raises(ValueError, match=r"is \[1\], not \[3, 64\]"):
        load_adapters(model, {**state, name: torch.zeros(1)})


def test_adapters_can_be_added_twice_but_not_to_one_layer() -> None:
    model, _ = network("*.attn.c_attn")
    assert add_adapters(model, "*.mlp.c_fc") == [f"transformer.h.{k}.mlp.c_fc" for k in (0, 1)]
    assert sum(p.requires_grad for p in model.parameters()) == 8
    with pytest.raises(ValueError, match="no linear layer"):
        add_adapters(model, "*.attn.c_attn*")


def test_what_cannot_be_adapted_is_refused() -> None:
    model, _ = network()
    with pytest.raises(ValueError, match="no linear layer of the model has a name like 'x'"):
        add_adapters(model, "x")
    with pytest.raises(ValueError, match="lm_head shares its weight"):
        add_adapters(model, "lm_head")
    with pytest.raises(ValueError, match="rank 5: use 1 to 4"):
        LoraLinear(nn.Linear(4, 8), 5, 1.0)


def test_adapters_of_rank_4_in_gpt2_small_are_a_thousandth_of_it() -> None:
    with torch.device("meta"):
        model = GPT2(SMALL)
        add_adapters(model, "*.attn.c_attn", rank=4)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == 147_456
