"""The loss scale of mixed precision: a `torch.amp.GradScaler` as part of the training state.

Law: the scale is the same on all replicas throughout an iteration. Gradients are summed scaled;
the update divides by the scale, is skipped on all replicas alike if they are not finite, and then
lets the scale grow or shrink by GradScaler's own rule (its settings, float32). The script scales
the loss and does nothing else with the scaler: its `step`, `unscale_` and `update` see one device's
gradients only.
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

_KEYS = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
_SINGLE = struct.Struct("<f")


class _Scaled:
    """Process-wide: the scaler that scaled something last; scaled gradients look like others."""

    installed = False
    by: GradScaler | None = None


class LossScale:
    """What the gradients are multiplied by; 1 without a scaler."""

    def __init__(self, scaler: Any) -> None:
        if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
            kind = type(scaler).__name__
            raise UsageError(f"grad_scaler is a {kind}, not a torch.amp.GradScaler")
        self._scaler: GradScaler | None = scaler if scaler and scaler.is_enabled() else None
        self._seen: tuple[torch.Tensor, int] | None = None  # its scale, and what wrote there last
        if self._scaler is not None:
            self._state = {key: self._scaler.state_dict()[key] for key in _KEYS}
            self._keep(_single(self._state["scale"]), self._state["_growth_tracker"])

    @property
    def scale(self) -> float:
        """Return the scale that this iteration's gradients have."""
        return float(self._state["scale"]) if self._scaler is not None else 1.0

    def watch(self) -> None:
        """Begin: from now on it matters which scaler scales."""
        if not _Scaled.installed:
            every: Any = torch.amp.GradScaler
            every.scale = _noted(every.scale)
            _Scaled.installed = True
        _Scaled.by = None

    def state(self) -> dict[str, Any] | None:
        """Return the scalars of it, None without a scaler."""
        return dict(self._state) if self._scaler is not None else None

    def check(self) -> None:
        """Raise `UsageError` if the script does with a scaler what only the trainer can do."""
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
        """Grow or shrink after an iteration, as `GradScaler.update` does."""
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
        """Raise `EdgeAgentError` if a state to adopt has no such scale."""
        if (state is None) != (self._scaler is None):
            raise EdgeAgentError("the state to adopt was trained with another grad_scaler")
        if state is None:
            return
        numbers = [state.get(key) for key in _KEYS]
        sound = set(state) == set(_KEYS) and all(type(x) in (int, float) for x in numbers)
        if not sound or not 0 < float(state["scale"]) < math.inf:
            raise EdgeAgentError("the state to adopt has an impossible loss scale")

    def adopt(self, state: dict[str, Any] | None) -> None:
        """Go on with the scale of another replica; `fits` has accepted it."""
        if state is not None and self._scaler is not None:
            self._state = {key: state[key] for key in _KEYS}
            self._keep(_single(state["scale"]), state["_growth_tracker"])

    def _was_changed(self, scaler: GradScaler) -> bool:
        """Whether the script has written to the scale; reading it would wait for the device."""
        tensor = scaler._scale
        if tensor is None:
            return True
        known, version = self._seen or (tensor, 0)  # the first `scale()` has made it
        self._seen = (tensor, tensor._version)
        return tensor is not known or tensor._version != version

    def _keep(self, scale: float, count: int) -> None:
        self._state |= {"scale": scale, "_growth_tracker": count}
        if self._scaler is not None:
            self._scaler.load_state_dict(dict(self._state))
            tensor = self._scaler._scale
            self._seen = None if tensor is None else (tensor, tensor._version)


def _noted(scale: Any) -> Any:
    """Return `GradScaler.scale` that also notes who scaled."""

    @functools.wraps(scale)
    def noted(self: GradScaler, outputs: Any) -> Any:
        if self.is_enabled():
            _Scaled.by = self
        return scale(self, outputs)

    return noted


def _single(value: float) -> float:
    """Return `value` rounded to float32, as the scaler's own tensor holds it."""
    try:
        rounded: float = _SINGLE.unpack(_SINGLE.pack(value))[0]
    except OverflowError:
        return math.inf
    return rounded
