"""What a script's `loss.backward()` left: the loss, and which version of each gradient.

A loop in the shape of torch's own never says what its loss is, it only calls `loss.backward()`.
`Tensor.backward` is therefore replaced, in this process and once, by one that also notes the
tensor it was called on. The version counters that PyTorch keeps show whether the script changed a
gradient afterwards, as `clip_grad_norm_` does: that would change one micro-batch of one device, and
not the mean over the cluster.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from edgeagent.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Watching:
    """Process-wide: who wants to know of `backward()` at present."""

    installed = False
    by: BackwardNotes | None = None


class BackwardNotes:
    """Notes every `backward()` of a scalar since the last `take()`."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self._losses: list[torch.Tensor] = []
        self._versions: list[int] = []
        self._scaled: tuple[torch.Tensor, torch.Tensor] | None = None
        if not _Watching.installed:
            every: Any = torch.Tensor
            every.backward = _noted(every.backward)
            _Watching.installed = True
        _Watching.by = self

    def scaled(self, loss: torch.Tensor, result: torch.Tensor) -> None:
        """A scaler made `result` of `loss`: `backward()` of the one stands for the other."""
        self._scaled = (result, loss)

    def called_on(self, tensor: torch.Tensor) -> None:
        """Take in a `backward()` that has just returned."""
        if tensor.numel() != 1:
            return
        if self._scaled is not None and self._scaled[0] is tensor:
            tensor = self._scaled[1]
        self._losses.append(tensor.detach().reshape(()))
        self._versions = self._now()

    def take(self) -> torch.Tensor:
        """Return the sum of the losses, a scalar tensor, and forget them.

        Raises `UsageError` if there was no `backward()`, or if gradients were changed after it.
        """
        losses, versions = self._losses, self._versions
        self.forget()
        if not losses:
            raise UsageError(
                "optimizer.step() without loss.backward() of a single number since the last batch:"
                " each batch of the prepared loader needs one backward() and one step()"
            )
        if versions != self._now():
            raise UsageError(
                "the script changed gradients between backward() and optimizer.step()"
                " (clip_grad_norm_?): that is one micro-batch's, not the cluster's mean gradient."
                " Take it out, and give prepare() max_grad_norm= to clip the mean"
            )
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def forget(self) -> None:
        """Nothing was computed since."""
        self._losses, self._versions, self._scaled = [], [], None

    def _now(self) -> list[int]:
        gradients = (parameter.grad for parameter in self._parameters)
        return [-1 if gradient is None else gradient._version for gradient in gradients]


def _noted(backward: Any) -> Any:
    """Return `Tensor.backward` that also tells who wants to know."""

    @functools.wraps(backward)
    def noted(self: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        result = backward(self, *arguments, **options)
        if _Watching.by is not None:
            _Watching.by.called_on(self)
        return result

    return noted
