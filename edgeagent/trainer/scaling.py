"""The loss scale of mixed precision: a `torch.amp.GradScaler` as part of the training state.

In half precision small gradients vanish, so the script multiplies its loss by a scale, which
multiplies the gradients. The scale is the same on all replicas throughout an iteration, because
gradients are summed while they are scaled. The update divides the sum by the scale. It is skipped
on all replicas alike if the gradients are not finite, and afterwards the scale grows or shrinks by
GradScaler's own rule: with its settings, in float32. The script scales the loss and does nothing
else with the scaler, because the scaler's `step`, `unscale_` and `update` see the gradients of one
device only.
"""

from __future__ import annotations

import functools
import math
import struct
from typing import TYPE_CHECKING, Any

import torch

from edgeagent.errors import EdgeAgentError, UsageError

if TYPE_CHECKING:
    from torch.amp.grad_scaler import GradScaler

# The entries of a GradScaler's `state_dict()`, all of which are part of the training state.
_KEYS = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
# Packing a number as float32 rounds it as the scaler's own tensor does.
_SINGLE = struct.Struct("<f")


class _Scaled:
    """Which scaler has scaled something last, in this process.

    It is global, because nothing in a gradient shows that it was scaled: `GradScaler.scale` itself
    is wrapped for all scalers. `installed` says that it is.
    """

    installed = False
    by: GradScaler | None = None


class LossScale:
    """The factor of the gradients: that of `scaler`, or 1 if there is none or it is disabled.

    Raises `UsageError` if `scaler` is no `torch.amp.GradScaler`.
    """

    def __init__(self, scaler: Any) -> None:
        if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
            kind = type(scaler).__name__
            raise UsageError(f"grad_scaler is a {kind}, not a torch.amp.GradScaler")
        self._scaler: GradScaler | None = scaler if scaler and scaler.is_enabled() else None
        # The tensor in which the scaler has its scale, and that tensor's version after the last
        # change that was allowed. Another tensor or version means that the script changed it.
        self._seen: tuple[torch.Tensor, int] | None = None
        if self._scaler is not None:
            self._state = {key: self._scaler.state_dict()[key] for key in _KEYS}
            self._keep(_single(self._state["scale"]), self._state["_growth_tracker"])

    @property
    def scale(self) -> float:
        """Return the factor by which this iteration's gradients are multiplied."""
        return float(self._state["scale"]) if self._scaler is not None else 1.0

    def watch(self) -> None:
        """Begin to note which scaler the script uses; what it used before does not matter."""
        if not _Scaled.installed:
            every: Any = torch.amp.GradScaler
            every.scale = _noted(every.scale)
            _Scaled.installed = True
        _Scaled.by = None

    def state(self) -> dict[str, Any] | None:
        """Return the scaler's scalars for the training state, None without a scaler."""
        return dict(self._state) if self._scaler is not None else None

    def check(self) -> None:
        """Raise `UsageError` if the script has not used the scaler as it must.

        It must scale each loss with the scaler that `Trainer` was given, and do nothing else with
        it. To be called once after each micro-batch.
        """
        scaler = self._scaler
        used, _Scaled.by = _Scaled.by, None
        if used is not None and used is not scaler:
            raise UsageError(
                "the script scales its loss with a GradScaler that Trainer() does not know, so its"
                " gradients would never be unscaled: give it to Trainer(grad_scaler=...)"
            )
        if scaler is None:
            return
        if used is None:
            raise UsageError(
                "Trainer() was given a grad_scaler that scaled no loss: call"
                " scaler.scale(loss).backward(), and update(loss) with the loss as it is"
            )
        if scaler._per_optimizer_states or self._was_changed(scaler):
            raise UsageError(
                "the script called unscale_, step or update of the grad_scaler: the trainer does"
                " that for the whole cluster, in update(); leave only scaler.scale(loss).backward()"
            )

    def stepped(self, finite: bool) -> None:
        """Let the scale grow or shrink after an iteration, as `GradScaler.update` does.

        `finite` says whether the cluster's gradients were finite.
        """
        if self._scaler is None:
            return
        state = self._state
        scale, count = state["scale"], state["_growth_tracker"] + 1
        if not finite:
            scale, count = _single(scale * state["backoff_factor"]), 0
        elif count >= state["growth_interval"]:
            grown = _single(scale * state["growth_factor"])
            scale, count = grown if math.isfinite(grown) else scale, 0
        self._keep(scale, count)

    def fits(self, state: dict[str, Any] | None) -> None:
        """Raise `EdgeAgentError` if the scalars of a state to adopt do not fit this scaler."""
        if (state is None) != (self._scaler is None):
            raise EdgeAgentError("the state to adopt was trained with another grad_scaler")
        if state is None:
            return
        numbers = [state.get(key) for key in _KEYS]
        sound = set(state) == set(_KEYS) and all(type(x) in (int, float) for x in numbers)
        if not sound or not 0 < float(state["scale"]) < math.inf:
            raise EdgeAgentError("the state to adopt has an impossible loss scale")

    def adopt(self, state: dict[str, Any] | None) -> None:
        """Go on with the scale of another replica, which `fits` has accepted."""
        if state is not None and self._scaler is not None:
            self._state = {key: state[key] for key in _KEYS}
            self._keep(_single(state["scale"]), state["_growth_tracker"])

    def _was_changed(self, scaler: GradScaler) -> bool:
        """Return whether the script has written to the scale.

        The tensor's version tells; reading its value would wait for the device.
        """
        tensor = scaler._scale
        if tensor is None:
            return True
        known, version = self._seen or (tensor, 0)  # the scaler makes it at its first `scale()`
        self._seen = (tensor, tensor._version)
        return tensor is not known or tensor._version != version

    def _keep(self, scale: float, count: int) -> None:
        """Make `scale` the present one, after `count` iterations in which it did not grow."""
        self._state |= {"scale": scale, "_growth_tracker": count}
        if self._scaler is not None:
            self._scaler.load_state_dict(dict(self._state))
            tensor = self._scaler._scale
            self._seen = None if tensor is None else (tensor, tensor._version)


def _noted(scale: Any) -> Any:
    """Return the method `GradScaler.scale` wrapped so that it notes which scaler was called."""

    @functools.wraps(scale)
    def noted(self: GradScaler, outputs: Any) -> Any:
        if self.is_enabled():
            _Scaled.by = self
        return scale(self, outputs)

    return noted


def _single(value: float) -> float:
    """Return `value` rounded to float32, infinity if it is too large for that."""
    try:
        rounded: float = _SINGLE.unpack(_SINGLE.pack(value))[0]
    except OverflowError:
        return math.inf
    return rounded
