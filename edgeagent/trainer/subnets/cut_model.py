"""A copy of a model that becomes another subnet of it in each round.

`CutModel.net` is a module of the same class as the model. Its tensors are its own: those of a
divided layer hold the units that this device has, all others hold what the model's hold.

Modules that use a divided layer get its output multiplied by a factor, since a sum over some of its
units is smaller than that over all. It is the inverse of the part that is there, as with (inverted)
dropout, which keeps the mean of what they get ("inverse"), the root of that, which keeps the
deviation of a sum of independent numbers ("sqrt"), or 1 ("none"). Of a block that is there, what it
adds to its input is multiplied in the same way.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from edgeagent.config import SUBNET_SCALES
from edgeagent.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from edgeagent.trainer.subnets.cells import Units
    from edgeagent.trainer.subnets.layers import Division, Layer

Index = tuple[Any, ...]
_POWERS = dict(zip(SUBNET_SCALES, (1.0, 0.5, 0.0), strict=True))


@dataclass(frozen=True, slots=True)
class Holding:
    """What a subnet has of one tensor: the elements at `index`, () for all of them, which no other
    device has if it `is_own`."""

    index: Index
    is_own: bool


class Scaled(nn.Module):
    """A block of which what it adds to its input is multiplied by `factor`."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block
        self.factor = 1.0

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the block's output, or more of the same."""
        out: torch.Tensor = self.block(x, *args, **kwargs)
        return out if self.factor == 1.0 else x + (out - x) * self.factor


class LeftOut(nn.Module):
    """Stands for a block that this device does not have: returns its first argument."""

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return `x`."""
        del args, kwargs
        return x


class CutModel:
    """The copy `net` of `model`, divided as `division` says; `scale` is one of `SUBNET_SCALES`.

    Raises `UsageError` if the model cannot be copied or does not fit the division.
    """

    def __init__(self, model: nn.Module, division: Division, scale: str = SUBNET_SCALES[0]) -> None:
        division.check(model)
        self._division = division
        self._power = _POWERS[scale]
        try:
            self.net: nn.Module = copy.deepcopy(model)
        except Exception as error:
            raise UsageError(f"subnets: the model cannot be copied: {error}") from None
        if not model.training:  # as pretrained ones often are; the script sees to `net` from now on
            self.net.train()
        self._whole = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        own = {**dict(self.net.named_parameters()), **dict(self.net.named_buffers())}
        places = {name: _place(self.net, name) for name in own}
        self.places: dict[str, tuple[nn.Module, str]] = places  # of each tensor: module, its name
        self._factors: dict[str, float] = {}
        for layer in division.layers:
            self._factors[layer.name] = 1.0
            for user in layer.users:
                self.net.get_submodule(user).register_forward_pre_hook(self._multiplier(layer.name))
        self._blocks = {
            name: Scaled(self.net.get_submodule(name))
            for blocks in division.blocks
            for name in blocks.modules
        }
        self.holdings: dict[str, Holding] = {}

    def own(self, name: str) -> torch.Tensor:
        """Return the net's tensor that is called `name` in the model."""
        module, key = self.places[name]
        tensor: torch.Tensor = getattr(module, key)
        return tensor

    def become(self, units: Mapping[str, Units]) -> None:
        """Become the subnet with these units of each layer and these blocks of each chain, by the
        names of layers and chains, with the present values of the model.

        A layer without units would be none. So the first unit of a layer is borrowed then: the net
        has it, but nothing of that layer is in `holdings`.
        """
        dims: dict[str, dict[int, torch.Tensor]] = {}
        borrowed: set[str] = set()
        for layer in self._division.layers:
            mine = units[layer.name]
            if not len(mine):
                mine = np.zeros(1, np.int64)
                borrowed |= {piece.tensor for piece in layer.pieces}
            self._factors[layer.name] = _factor(len(mine), layer.units, self._power)
            for piece in layer.pieces:
                at = _entries(mine, layer, piece.sections)
                dims.setdefault(piece.tensor, {})[piece.dim] = at
            for module, attribute, each in layer.counts:
                setattr(self.net.get_submodule(module), attribute, each * len(mine))
        out = self._set_blocks(units)
        self.holdings = {}
        with torch.no_grad():
            for name, whole in self._whole.items():
                if any(name.startswith(f"{block}.") for block in out):
                    continue
                index = _open_mesh(dims[name]) if name in dims else ()
                self._set(name, whole.detach()[index] if index else whole.detach())
                if name in borrowed:
                    continue
                block = any(name.startswith(f"{block}.") for block in self._blocks)
                self.holdings[name] = Holding(index, name in dims or block)

    def _set_blocks(self, units: Mapping[str, Units]) -> set[str]:
        """Put in the blocks that this device has; return the names of the others."""
        out: set[str] = set()
        for blocks in self._division.blocks:
            mine = {blocks.modules[k] for k in units[blocks.name].tolist()}
            factor = _factor(len(mine), len(blocks.modules), self._power)
            for name in blocks.modules:
                parent, _, key = name.rpartition(".")
                scaled = self._blocks[name]
                scaled.factor = factor
                here: nn.Module = scaled if name in mine else LeftOut()
                self.net.get_submodule(parent)._modules[key] = here
            out |= set(blocks.modules) - mine
        return out

    def _set(self, name: str, value: torch.Tensor) -> None:
        module, key = self.places[name]
        present = getattr(module, key)
        if present.shape == value.shape:
            present.data.copy_(value)
            present.grad = None
        elif isinstance(present, nn.Parameter):
            setattr(module, key, nn.Parameter(value.clone(), present.requires_grad))
        else:
            module._buffers[key] = value.clone()

    def _multiplier(self, layer: str) -> Callable[[nn.Module, tuple[Any, ...]], Any]:
        def multiplied(_module: nn.Module, args: tuple[Any, ...]) -> Any:
            factor = self._factors[layer]
            return args if factor == 1.0 else (args[0] * factor, *args[1:])

        return multiplied


def _place(net: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, key = name.rpartition(".")
    return net.get_submodule(path), key


def _factor(mine: int, every: int, power: float) -> float:
    return float((every / mine) ** power) if mine else 1.0


def _entries(units: Units, layer: Layer, sections: int) -> torch.Tensor:
    """Return where the numbers of these units lie along a dimension."""
    at = torch.from_numpy(units)
    within = torch.arange(layer.width)
    each = (at[:, None] * layer.width + within).flatten()
    starts = torch.arange(sections) * layer.units * layer.width
    return (starts[:, None] + each).flatten()


def _open_mesh(dims: Mapping[int, torch.Tensor]) -> Index:
    """Return what selects these entries along dimensions 0 and 1."""
    if len(dims) == 2:
        return (dims[0][:, None], dims[1])
    return (dims[0],) if 0 in dims else (slice(None), dims[1])
