"""The losses that the script hands to `update()`, summed over a node's share.

A loss on another device stays there until the share is handed in, because reading each loss at once
would make the processor wait for the device after every micro-batch. Then all of them come in one
copy, or in several if they are of several devices or dtypes. They are added in float64 in the order
of the micro-batches, so that the sum does not depend on where they were kept.
"""

from __future__ import annotations

from typing import Any

import torch

from edgeagent.errors import UsageError

_WRONG = "update() takes the micro-batch's mean loss, a single number"


class LossSum:
    """The sum over the micro-batches of one share.

    `waits=True` treats losses on the CPU like those on another device, for tests.
    """

    def __init__(self, *, waits: bool = False) -> None:
        self._waits = waits
        self._total = 0.0
        self._waiting: list[torch.Tensor] = []

    def clear(self) -> None:
        """Start a new share with a sum of zero."""
        self._total = 0.0
        self._waiting = []

    def add(self, loss: Any) -> None:
        """Add the mean loss of one micro-batch; raise `UsageError` if it is not one number."""
        if isinstance(loss, torch.Tensor) and (self._waits or loss.device.type != "cpu"):
            if loss.numel() != 1 or loss.is_complex():
                raise UsageError(_WRONG)
            first = self._waiting[0] if self._waiting else loss
            if (first.dtype, first.device) != (loss.dtype, loss.device):
                self.total()  # which stacks them, so those that wait must be alike
            self._waiting.append(loss.detach().reshape(()).clone())
            return
        self.total()
        self._total += number_of(loss)

    def total(self) -> float:
        """Return the sum, for which this waits for the device. Raises `UsageError` if the device
        keeps no numbers (`meta`)."""
        waiting, self._waiting = self._waiting, []
        if waiting and waiting[0].is_meta:
            raise UsageError(f"{_WRONG}; one on the device {waiting[0].device} has no value")
        for value in torch.stack(waiting).tolist() if waiting else ():
            self._total += value
        return self._total


def number_of(loss: Any) -> float:
    """Return the script's loss as a number; raise `UsageError` if it is not one."""
    value = loss.detach() if isinstance(loss, torch.Tensor) else loss
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise UsageError(_WRONG) from None
