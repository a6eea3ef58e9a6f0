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
    from collections.abc import Mapping

    from edgeagent.planner.work_cost import WorkCost
    from edgeagent.trainer.subnets.layers import Division


class FirstStep:
    """Watches forward passes of `net`, a subnet of `model`, until `cost` is asked for and known.

    `places`: name of a tensor in the model -> the module of the subnet that has it, and its name
    there.
    """

    def __init__(
        self, model: nn.Module, division: Division, places: Mapping[str, tuple[nn.Module, str]]
    ) -> None:
        self._model = model
        self._division = division
        self._uses: dict[str, float] = {}  # how often each number of a tensor was multiplied
        self._hooks = [
            module.register_forward_hook(self._counts(name, key))
            for name, (module, key) in places.items()
            if isinstance(tensor := getattr(module, key), nn.Parameter)
            and tensor.ndim > 1
            and not isinstance(module, nn.Embedding | nn.EmbeddingBag)
        ]

    def cost(self) -> WorkCost | None:
        """Return what parts of the model cost, and watch no longer; None if this device has had no
        step yet, or no block of some chain of blocks."""
        if not self._uses:
            return None
        uses = dict(self._uses)
        for blocks in self._division.blocks:
            there = next((b for b in blocks.modules if any(_of(b, name) for name in uses)), None)
            if there is None:
                return None
            seen = {name.removeprefix(there): n for name, n in uses.items() if _of(there, name)}
            uses |= {block + inner: n for block in blocks.modules for inner, n in seen.items()}
        for hook in self._hooks:
            hook.remove()
        return self._division.cost(self._model, uses)

    def _counts(self, name: str, key: str) -> Any:
        def counted(module: nn.Module, _args: Any, output: Any) -> None:
            out = output[0] if isinstance(output, tuple) else output
            if not torch.compiler.is_compiling() and isinstance(out, torch.Tensor) and out.ndim:
                channels = 1 if getattr(module, key).ndim > 2 and out.ndim > 2 else -1
                self._uses[name] = self._uses.get(name, 0.0) + out.numel() / out.shape[channels]

        return counted


def _of(block: str, name: str) -> bool:
    return name.startswith(f"{block}.")
