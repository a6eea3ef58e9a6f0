"""LoRA: small trainable adapters beside the frozen linear layers of a network.

An adapter adds `scale * x A^T B^T` to the output of its layer, with A of shape [rank, inputs] and B
of shape [outputs, rank] (Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021,
section 4.1). B begins at zero, so a network with new adapters computes what it did without them.
Only adapters are trained; all other parameters are frozen, so no gradients of them are computed,
summed or sent, and the optimizer keeps nothing for them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.gpt2 import Conv1D

ADAPTER_NAMES = ("lora_a", "lora_b")


class LoraLinear(nn.Module):
    """A frozen linear layer with an adapter: [..., inputs] to [..., outputs].

    `base` is an `nn.Linear` (weight [outputs, inputs]) or a GPT-2 `Conv1D` (weight [inputs,
    outputs]). `scale` is `alpha / rank`. `dropout` drops features on their way into the adapter.
    """

    def __init__(
        self, base: nn.Linear | Conv1D, rank: int, alpha: float, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.base = base
        self._transposed = isinstance(base, Conv1D)
        shape = base.weight.shape
        inputs, outputs = shape if self._transposed else reversed(shape)
        if not 1 <= rank <= min(inputs, outputs):
            raise ValueError(f"rank {rank}: use 1 to {min(inputs, outputs)}, as the layer allows")
        self.scale = alpha / rank
        like = base.weight.detach()
        self.lora_a = nn.Parameter(like.new_empty(rank, inputs))
        self.lora_b = nn.Parameter(like.new_zeros(outputs, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output and the adapter's, added."""
        low = functional.linear(self.dropout(x), self.lora_a)
        result: Tensor = self.base(x) + functional.linear(low, self.lora_b) * self.scale
        return result

    @torch.no_grad()
    def merged(self) -> nn.Linear | Conv1D:
        """Add the adapter to the weight of the layer, and return the layer."""
        change = self.lora_b @ self.lora_a * self.scale
        self.base.weight += change.t() if self._transposed else change
        return self.base

    def extra_repr(self) -> str:
        """Return what no weight tells, for people and for the comparison of two jobs."""
        return f"scale={self.scale}"


def add_adapters(
    model: nn.Module, pattern: str, *, rank: int = 4, alpha: float = 8.0, dropout: float = 0.0
) -> list[str]:
    """Freeze `model` and put adapters beside the linear layers whose names match; return the names.

    `pattern` is a shell pattern over the whole name of a module, such as `*.attn.c_attn`. Raises
    `ValueError` if it matches no linear layer, or one whose weight another module uses as well:
    merging its adapter would change that one, too.
    """
    adapted = [layer.base for _, layer in _adapted(model)]
    found = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
        and fnmatchcase(name, pattern)
        and not any(module is base for base in adapted)
    ]
    if not found:
        raise ValueError(f"no linear layer of the model has a name like {pattern!r}")
    uses = Counter[Tensor](weight for _, weight in model.named_parameters(remove_duplicate=False))
    for name, module in found:
        if uses[module.weight] > 1:
            raise ValueError(f"{name} shares its weight with another module: leave it out")
    model.requires_grad_(False)
    for _, layer in _adapted(model):
        layer.lora_a.requires_grad_(True)
        layer.lora_b.requires_grad_(True)
    for name, module in found:
        _replace(model, name, LoraLinear(module, rank, alpha, dropout))
    return [name for name, _ in found]


def adapter_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the adapters alone: `state_dict()` without what is frozen."""
    names = {f"{name}.{part}" for name, _ in _adapted(model) for part in ADAPTER_NAMES}
    return {name: tensor for name, tensor in model.state_dict().items() if name in names}


def load_adapters(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Take over what `adapter_state` returned of a network with the same adapters.

    Raises `ValueError` if the names or the shapes are others.
    """
    own = adapter_state(model)
    if own.keys() != state.keys():
        name = sorted(own.keys() ^ state.keys())[0]
        raise ValueError(f"{name} is {'missing' if name in own else 'of no adapter of the model'}")
    for name, tensor in state.items():
        if own[name].shape != tensor.shape:
            raise ValueError(f"{name} is {list(tensor.shape)}, not {list(own[name].shape)}")
    model.load_state_dict(state, strict=False)


def merge(model: nn.Module) -> None:
    """Add all adapters to the weights of their layers; the model is as it was before, but trained.

    The names of `state_dict()` are those without adapters, and all parameters are still frozen.
    """
    for name, module in list(_adapted(model)):
        _replace(model, name, module.merged())


def _adapted(model: nn.Module) -> Iterator[tuple[str, LoraLinear]]:
    for name, module in model.named_modules():
        if isinstance(module, LoraLinear):
            yield name, module


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    setattr(model.get_submodule(parent), own, module)
