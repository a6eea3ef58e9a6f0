"""The losses that the script hands to `update()`, summed over a node's share.

A loss on another device stays there until the share is handed in, because reading each loss at once
would make the processor wait for the device after every micro-batch. Then all of them come in one
copy, or in several if they are of several devices or dtypes. They are added in float64 in the order
of the micro-batches, so that the sum does not depend on where they were kept. With `--exact` it
does not depend on the order either: each loss is rounded to a multiple of a power of two that is so
small that float64 holds all sums of such multiples.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from edgeagent.errors import UsageError

# Losses below 2^12 are rounded to multiples of a power of two; the sum of larger ones may depend on
# the order in its last bits.
_LOSS_BITS = 12
_WRONG = "update() takes the micro-batch's mean loss, a single number"


class LossSum:
    """The sum over the micro-batches of one share.

    `waits=True` treats losses on the CPU like those on another device, for tests. `exact_count` is
    0, or the number of micro-batches of an iteration, over which the sum must not depend on the
    order.
    """

    def __init__(self, *, waits: bool = False, exact_count: int = 0) -> None:
        self._waits = waits
        # So many bits behind the point: float64 has 53, some for the losses, some for their number.
        self._bits = 53 - _LOSS_BITS - exact_count.bit_length() if exact_count else 0
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
        self._total += self._rounded(number_of(loss))

    def total(self) -> float:
        """Return the sum, for which this waits for the device. Raises `UsageError` if the device
        keeps no numbers (`meta`)."""
        waiting, self._waiting = self._waiting, []
        if waiting and waiting[0].is_meta:
            raise UsageError(f"{_WRONG}; one on the device {waiting[0].device} has no value")
        for value in torch.stack(waiting).tolist() if waiting else ():
            self._total += self._rounded(value)
        return self._total

    def _rounded(self, value: float) -> float:
        if not self._bits or not abs(value) < 2.0**_LOSS_BITS:
            return value
        return math.ldexp(round(math.ldexp(value, self._bits)), -self._bits)


def number_of(loss: Any) -> float:
    """Return the script's loss as a number; raise `UsageError` if it is not one."""
    value = loss.detach() if isinstance(loss, torch.Tensor) else loss
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise UsageError(_WRONG) from None
