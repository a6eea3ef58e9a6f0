"""The steps that one device takes by itself within a round of local steps.

With local steps an iteration is a round, and each micro-batch of it is one step of the device that
it was dealt to. The model that the script trains then has weights of its own, which these steps
change. The weights that all devices share are other tensors with the same names: they lie in the
training state and are stepped once a round by the outer optimizer (`outer.py`). So the state never
holds anything but whole rounds, whenever the agent reads it, and nothing has to be put back before
it may be read.

What this device adds to the round's sum is `n * (start - own)`: how far its own weights have come
from the shared ones, times the number n of micro-batches with which they came there. The sum over
all devices divided by the number of all micro-batches, which the control word counts, is the mean
of what the devices did, weighted by their samples. Each micro-batch counts once, because it is a
step of one device that is counted in that device's n alone.

- A device that is dealt more micro-batches of a round after it has contributed, because another one
  was lost or has handed them back, goes on from where its own weights are, and its whole
  contribution is made anew with the larger n. The round is then the one that would have been, had
  these micro-batches been dealt to it at once.
- If what it has computed is dealt to others, its own weights go back to the start of the round, and
  the inner optimizer begins with an empty memory, so that no sample is in that memory twice.
- The memory of the inner optimizer stays on the device from round to round. It is not part of the
  training state: a joiner, and a device that resumes from a file, begin with an empty one. Its
  scalars (rates and the like) and the schedule are part of it, and change between rounds alone.
- A step whose gradient is not finite is left out, on this device alone.
"""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import torch

from edgeagent.errors import UsageError
from edgeagent.trainer.gradients import dense_gradient
from edgeagent.trainer.guards import Guards, module_places
from edgeagent.trainer.outer import outer_optimizer
from edgeagent.trainer.slots import DRY_GRADIENT, DRY_STEPS, lone_optimizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.optim import Optimizer

    from edgeagent.trainer.buffers import ModelBuffers
    from edgeagent.trainer.gradients import GradientSum


def check_local_steps(grad_scaler: Any, caller: str) -> None:
    """Raise `UsageError` if a trainer cannot take local steps that has this scaler and was made by
    `caller`, "" for the script itself."""
    if caller:
        raise UsageError(
            f"local steps are not for {caller}, which counts its epochs in updates of the cluster:"
            " use a loop of your own with Trainer(local_steps=...)"
        )
    if grad_scaler is not None:
        raise UsageError(
            "local steps cannot be had with a grad_scaler: each device would need a scale of its"
            " own. Use bfloat16 under autocast, which needs none"
        )


def check_groups_stay(optimizer: Optimizer) -> None:
    """Raise `UsageError` if steps of `optimizer` change scalars of its parameter groups, as those
    of schedule-free optimizers do. They belong to the training state, in which they may change
    between rounds alone, so that all devices have the same."""
    groups = []
    for group in optimizer.param_groups:
        trained = [parameter for parameter in group["params"] if parameter.requires_grad]
        if trained:
            smallest = min(trained, key=torch.Tensor.numel).detach().clone().requires_grad_()
            smallest.grad = torch.full_like(smallest, DRY_GRADIENT)
            groups.append({**group, "params": [smallest]})
    before = [{**group, "params": None} for group in groups]
    try:
        lone = lone_optimizer(optimizer, groups)
        for _ in range(DRY_STEPS):
            lone.step()
    except Exception:  # it does not step alone, so nothing can be told
        return
    for was, now in zip(before, groups, strict=True):
        for key, value in was.items():
            if value is not None and isinstance(value, bool | int | float) and now[key] != value:
                raise UsageError(
                    f"local steps cannot be had with {type(optimizer).__name__}, which counts"
                    f" {key!r} in its parameter groups: choose an optimizer that keeps what it"
                    " remembers in state[parameter]"
                )


class BothOptimizers:
    """The parameter groups of two optimizers as if they were one's: first the inner one's, which
    the script knows by these numbers, then the outer one's. `step` is the inner one's."""

    def __init__(self, inner: Optimizer, outer: Optimizer) -> None:
        self.param_groups: list[dict[str, Any]] = [*inner.param_groups, *outer.param_groups]
        self.step: Any = inner.step


class LocalSteps:
    """The device's own weights, which are those of `model`, and its own optimizer, `inner`.

    `outer` is what `outer_optimizer` takes. `max_grad_norm` clips the gradient of each step.
    `parameters` has the shared weights by name, as new tensors, and the frozen parameters of
    `model` themselves, in the order of the names. Raises `UsageError` for an outer optimizer that
    cannot be used.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        inner: Optimizer,
        outer: Any = None,
        max_grad_norm: float | None = None,
    ) -> None:
        named = sorted(model.named_parameters())
        self._model = model
        self._inner = inner
        self._max_grad_norm = max_grad_norm
        self._own = {name: parameter for name, parameter in named if parameter.requires_grad}
        self.parameters = {
            name: torch.nn.Parameter(parameter.detach().clone()) if name in self._own else parameter
            for name, parameter in named
        }
        self._shared = [self.parameters[name] for name in self._own]
        self.outer = outer_optimizer(outer, self._shared)
        self.optimizers = BothOptimizers(inner, self.outer)
        self._guards = Guards(inner, lambda: b"", model)
        check_groups_stay(inner)
        # What some optimizers put into their memory when they are made, and need in their steps.
        made = [parameter for parameter in self._own.values() if parameter in inner.state]
        self._empty = {parameter: copy.deepcopy(inner.state[parameter]) for parameter in made}
        self._moved: set[int] = set()  # numbers of parameters that had a gradient in this round
        self._contributed = 0  # micro-batches in what `contribute` has written in this round

    def share_own(self) -> None:
        """Make the shared weights those that the script has given its model."""
        with torch.no_grad():
            for shared, own in zip(self._shared, self._own.values(), strict=True):
                shared.copy_(own)

    def watch(self) -> None:
        """From now on the script may change neither its own weights nor step its optimizer."""
        self._guards.watch(module_places("", self._model, self._own), None, [])
        self._guards.note([])

    def release(self) -> None:
        """End the watch, and leave the shared weights in the script's model: training is over."""
        self.begin()
        self._guards.release()

    def begin(self) -> None:
        """Begin a round: the device's own weights become the shared ones."""
        self._moved = set()
        self._contributed = 0
        with torch.no_grad():
            for shared, own in zip(self._shared, self._own.values(), strict=True):
                own.copy_(shared)
                own.grad = None
        self._guards.note([])

    def begin_anew(self) -> None:
        """Begin a round with an empty memory of the inner optimizer."""
        for parameter in self._own.values():
            self._inner.state.pop(parameter, None)
            if parameter in self._empty:
                self._inner.state[parameter] = copy.deepcopy(self._empty[parameter])
        self.begin()

    def step(self) -> bool:
        """Take one step with the gradients that the script has left, and drop them; return whether
        there were any.

        Raises `UsageError` for a sparse gradient, and if the script has changed weights or stepped
        its optimizer since the last step.
        """
        self._guards.script_ran()
        self._guards.check()
        found = []
        for number, (name, parameter) in enumerate(self._own.items()):
            if dense_gradient(name, parameter) is not None:
                self._moved.add(number)
                found.append(parameter)
        with self._guards.own_change():
            take_step(self._inner, found, self._max_grad_norm)
        self._guards.note([])
        return bool(found)

    def contribute(self, sums: GradientSum, _buffers: ModelBuffers, micro_batches: int) -> None:
        """Write into `sums` how far the device has come with so many micro-batches of this round.

        What is there already is not written again, because the agent may be reading it.
        """
        if micro_batches == self._contributed:
            return
        self._contributed = micro_batches
        pairs = list(zip(self._shared, self._own.values(), strict=True))
        for number in sorted(self._moved):
            shared, own = pairs[number]
            sums.put_change(number, shared, own, micro_batches)


def take_step(
    optimizer: Optimizer, parameters: Sequence[torch.Tensor], max_norm: float | None
) -> None:
    """Take a step of `optimizer` with the gradients of `parameters`, which are clipped together to
    `max_norm` unless it is None, and drop them. No step is taken without gradients, nor if they
    are not finite."""
    if parameters and math.isfinite(clipped(parameters, max_norm)):
        optimizer.step()
    for parameter in parameters:
        parameter.grad = None


def clipped(parameters: Sequence[torch.Tensor], max_norm: float | None) -> float:
    """Clip the gradients together to `max_norm` unless it is None; return the 2-norm that they
    had."""
    if max_norm is not None:
        return float(torch.nn.utils.clip_grad_norm_(parameters, max_norm))
    norms = [torch.linalg.vector_norm(p.grad) for p in parameters if p.grad is not None]
    device = norms[0].device
    return float(torch.linalg.vector_norm(torch.stack([norm.to(device) for norm in norms])))
