"""The losses that the script hands to `update()`, summed over a node's share.

Law: a loss on another device stays there until the share is handed in: reading each at once would
have the processor wait for the device after every micro-batch. All of them then come in one copy,
and are added in float64 in the order of the micro-batches.
"""

from __future__ import annotations

from typing import Any

import torch

from edgeagent.errors import UsageError

_WRONG = "update() takes the micro-batch's mean loss, a single number"


class LossSum:
    """The sum over the micro-batches of one share. `waits`: as for a device, also on the CPU."""

    def __init__(self, *, waits: bool = False) -> None:
        self._waits = waits
        self._total = 0.0
        self._waiting: list[torch.Tensor] = []

    def clear(self) -> None:
        """Start a new share."""
        self._total = 0.0
        self._waiting = []

    def add(self, loss: Any) -> None:
        """Take in one micro-batch's mean loss; raise `UsageError` if it is not one number."""
        if isinstance(loss, torch.Tensor) and (self._waits or loss.device.type != "cpu"):
            if loss.numel() != 1 or loss.is_complex():
                raise UsageError(_WRONG)
            if self._waiting and self._waiting[0].dtype != loss.dtype:
                self.total()
            self._waiting.append(loss.detach().reshape(()).clone())
            return
        self.total()
        self._total += number_of(loss)

    def total(self) -> float:
        """Return the sum; waits for the device."""
        if self._waiting:
            for value in torch.stack(self._waiting).tolist():
                self._total += value
            self._waiting = []
        return self._total


def number_of(loss: Any) -> float:
    """Return the script's loss as a number; raise `UsageError` if it is not one."""
    value = loss.detach() if isinstance(loss, torch.Tensor) else loss
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise UsageError(_WRONG) from None
