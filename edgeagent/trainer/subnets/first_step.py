"""What a part of the model costs, as the first step of a device shows.

How many weights a module has says little of what computing with them takes: a convolution uses each
once for every pixel, a row of an embedding is only looked up, and a head may see one token of many.
So the modules of the subnet count in one forward pass how often their weights are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from edgeagent.planner.work_cost import WorkCost
    from edgeagent.trainer.subnets.layers import Division

Place = tuple[nn.Module, str]  # a module, and the name of a tensor in it


class FirstStep:
    """Watches forward passes of `net`, which is to become subnets of `model`, until its cost is
    known. `places`: name of a tensor in the model -> its place in the net."""

    def __init__(
        self, model: nn.Module, net: nn.Module, division: Division, places: Mapping[str, Place]
    ) -> None:
        self._model = model
        self._division = division
        self._uses: dict[str, float] = {}  # how often each number of a tensor was multiplied
        names = {id(getattr(module, key)): name for name, (module, key) in places.items()}
        self._hooks = [
            module.register_forward_hook(self._counts(names[id(getattr(owner, key))], owner, key))
            for module in net.modules()
            for owner, key in _multiplied(module)
        ]

    def cost(self) -> WorkCost | None:
        """Return what parts of the model cost, after a step, and watch no longer. None if the step
        had no block of some chain of blocks: then the next step has to show it.

        Compiled modules count nothing, because that would cut what is compiled into pieces. Then
        the cost is that by the shapes.
        """
        uses, self._uses = self._uses, {}
        for blocks in self._division.blocks if uses else ():
            there = next((b for b in blocks.modules if any(_of(b, name) for name in uses)), None)
            if there is None:
                return None
            seen = {name.removeprefix(there): n for name, n in uses.items() if _of(there, name)}
            uses |= {block + inner: n for block in blocks.modules for inner, n in seen.items()}
        for hook in self._hooks:
            hook.remove()
        return self._division.cost(self._model, uses or None)

    def _counts(self, name: str, owner: nn.Module, key: str) -> Callable[..., None]:
        def counted(_module: nn.Module, _args: Any, output: Any) -> None:
            out = output[0] if isinstance(output, tuple) else output
            if not torch.compiler.is_compiling() and isinstance(out, torch.Tensor) and out.ndim:
                channels = 1 if getattr(owner, key).ndim > 2 and out.ndim > 2 else -1
                self._uses[name] = self._uses.get(name, 0.0) + out.numel() / out.shape[channels]

        return counted


def _multiplied(module: nn.Module) -> Iterator[Place]:
    """Yield the matrices with which `module` multiplies when it is called."""
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return
    for key, tensor in module.named_parameters(recurse=False):
        if tensor.ndim > 1:
            yield module, key
    if isinstance(module, nn.MultiheadAttention):  # it does not call this module
        yield module.out_proj, "weight"


def _of(block: str, name: str) -> bool:
    return name.startswith(f"{block}.")
