"""The optimizer's slots, which are its memory of each parameter, such as momentum.

They are part of the training state, so each needs a place in it before training begins, when the
optimizer has not made them yet. Which slots there will be, and with which shape and dtype, is found
out by dry steps on copies, one parameter at a time, which change nothing of the real optimizer.
After each real step every slot tensor is moved into the state's image (`rehome`). A slot that is on
another device is a stray (`image.py`) and copied. A slot that does not exist yet has zeros in the
state and a clear bit in `presence`.
"""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.trainer.layout import TensorSpec, tensor_spec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.optim import Optimizer

    from edgeagent.trainer.image import StateImage

# How many dry steps a copy of a parameter makes: two, because an optimizer may make a slot only
# once it has stepped before.
DRY_STEPS = 2
# Each element of the gradient in a dry step: a usual size, so that infinity or NaN after the step
# is the optimizer's doing and not the gradient's.
DRY_GRADIENT = 1e-3
# Where torch's optimizers keep the hooks that a user has registered.
HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
# The end of what a user is told of memory that is no parameter's.
_NOT_REPLICATED = (
    ", so devices that join would not have it: choose an optimizer that keeps what it remembers in"
    " state[parameter], or in its parameter groups"
)
# The types that a slot may have if it is no tensor.
_SCALARS = (bool, int, float, str, type(None))


@dataclass(frozen=True, slots=True)
class SlotSpec:
    """One slot that is a tensor: the number of its parameter, its name in the optimizer's memory,
    its name, shape and dtype in the layout, and the device on which the optimizer keeps it."""

    parameter: int
    slot: str
    spec: TensorSpec
    device: torch.device


def slot_name(parameter: str, slot: str) -> str:
    """Return the name that `slot` of the parameter called `parameter` has in the layout."""
    return f"optimizer.{parameter}.{slot}"


def lone_optimizer(optimizer: Optimizer, groups: list[dict[str, Any]]) -> Optimizer:
    """Return an optimizer of the same class and settings for `groups`, with empty memory.

    It shares nothing with `optimizer` that a step changes, and runs none of the user's hooks, so it
    can be stepped for a trial. Its class is not called: its arguments are not known here.
    """
    kind = type(optimizer)
    lone: Optimizer = object.__new__(kind)
    lone.__dict__.update(optimizer.__dict__)
    lone.__dict__.pop("step", None)  # a scheduler's wrapper around the real optimizer's step
    lone.__dict__.update({hook: OrderedDict() for hook in HOOKS})
    lone.state = defaultdict(dict)
    lone.param_groups = groups
    return lone


def discover_slots(
    optimizer: Optimizer,
    names: Mapping[torch.nn.Parameter, str],
    device: torch.device | None = None,
) -> tuple[SlotSpec, ...]:
    """Return the tensor slots that `optimizer` will keep, by parameter number and slot name.

    `names` has the model's trainable parameters in canonical order. They are stepped on `device`,
    or where they are if that is None. For a moment this takes memory for a copy of the largest
    parameter, its gradient and its slots; parameters of the same group, shape, dtype and device are
    tried once. Raises `UsageError` if a slot cannot be replicated or the optimizer cannot step.
    """
    check_memory(optimizer)
    numbers = {parameter: number for number, parameter in enumerate(names)}
    known: dict[tuple[Any, ...], dict[str, Any]] = {}
    found: list[SlotSpec] = []
    for group_number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if parameter not in names:
                continue
            key = (group_number, tuple(parameter.shape), parameter.dtype, parameter.device)
            if key not in known:
                known[key] = _dry_slots(optimizer, group, parameter, device)
            for slot, template in known[key].items():
                where = slot_name(names[parameter], slot)
                if isinstance(template, torch.Tensor):
                    spec = tensor_spec(where, template)
                    found.append(SlotSpec(numbers[parameter], slot, spec, template.device))
                elif not isinstance(template, _SCALARS):
                    raise UsageError(
                        f"{where} is a {type(template).__name__}, which cannot be replicated"
                    )
    return tuple(sorted(found, key=lambda s: (s.parameter, s.slot)))


def check_memory(optimizer: Optimizer) -> None:
    """Raise `UsageError` if `optimizer` remembers something that belongs to no parameter."""
    memory: dict[Any, Any] = optimizer.state
    for key, value in memory.items():
        if isinstance(key, torch.Tensor):
            continue
        if isinstance(value, torch.Tensor) or value:
            raise UsageError(
                f"{type(optimizer).__name__} keeps {key!r} in its state, which belongs to no"
                f" parameter{_NOT_REPLICATED}"
            )


def _attributes(optimizer: Optimizer) -> dict[str, tuple[Any, int]]:
    """Return the attributes that may be memory: numbers, and tensors with their versions."""
    return {
        name: (value, value._version if isinstance(value, torch.Tensor) else 0)
        for name, value in vars(optimizer).items()
        if isinstance(value, int | float | torch.Tensor) and not isinstance(value, bool)
    }


def _check_attributes(optimizer: Optimizer, before: Mapping[str, tuple[Any, int]]) -> None:
    """Raise `UsageError` if a step of `optimizer` has changed what it remembers in attributes."""
    for name, (value, version) in _attributes(optimizer).items():
        was, then = before.get(name, (None, 0))
        if isinstance(value, torch.Tensor) or isinstance(was, torch.Tensor):
            same = value is was
        else:
            same = value == was or value != value
        if not same or version != then:
            raise UsageError(
                f"each step of {type(optimizer).__name__} changes its attribute {name!r}, which"
                f" belongs to no parameter{_NOT_REPLICATED}"
            )


def _dry_slots(
    optimizer: Optimizer,
    group: dict[str, Any],
    parameter: torch.nn.Parameter,
    device: torch.device | None,
) -> dict[str, Any]:
    """Return the slots that a copy of `parameter` has after dry steps on `device`, or where it is.

    The tensors are stand-ins with the shape, dtype and device, and one element of storage.
    """
    zeros = torch.zeros_like(parameter, memory_format=torch.contiguous_format, device=device)
    copy = torch.nn.Parameter(zeros)
    lone = lone_optimizer(optimizer, [{**group, "params": [copy]}])
    lone.state[copy] = {
        slot: value.clone() if isinstance(value, torch.Tensor) else value
        for slot, value in optimizer.state.get(parameter, {}).items()
    }
    before: dict[str, tuple[Any, int]] = {}
    for _ in range(DRY_STEPS):
        before = _attributes(lone)
        copy.grad = torch.full_like(copy, DRY_GRADIENT)
        try:
            type(lone).step(lone)
        except Exception as error:
            raise UsageError(
                f"{type(optimizer).__name__} cannot step a parameter of shape"
                f" {tuple(parameter.shape)}: {error}"
            ) from error
    check_memory(lone)
    _check_attributes(lone, before)
    _check_result(lone, group, copy)
    return {
        slot: torch.empty((), dtype=value.dtype, device=value.device).expand(value.shape)
        if isinstance(value, torch.Tensor)
        else value
        for slot, value in lone.state.get(copy, {}).items()
    }


def _check_result(lone: Optimizer, group: dict[str, Any], copy: torch.nn.Parameter) -> None:
    """Raise `UsageError` if dry steps left infinity or NaN, as those of Adam in float16 do."""
    if copy.is_meta or bool(torch.isfinite(copy.detach()).all()):
        return
    kind, dtype, eps = type(lone).__name__, str(copy.dtype).removeprefix("torch."), group.get("eps")
    hint = ""
    if isinstance(eps, float) and float(torch.tensor(eps, dtype=copy.dtype)) == 0.0:
        hint = f"; its eps={eps} is 0 in {dtype}, so choose a larger one, such as 1e-4"
    raise UsageError(
        f"{kind} leaves infinity or NaN in {dtype} parameters after steps with gradients of"
        f" {DRY_GRADIENT}{hint}; or keep the parameters in float32 and compute under autocast"
    )


class OptimizerSlots:
    """Keeps the optimizer's slots in the state's image.

    Slot s is `specs[s]`; that numbering is the one of the bits in `presence`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        names: Mapping[torch.nn.Parameter, str],
        specs: Sequence[SlotSpec],
        image: StateImage,
    ) -> None:
        self._optimizer = optimizer
        self._parameters = list(names)
        self._names = list(names.values())
        self._specs = tuple(specs)
        self._image = image
        self._views = [image.views[spec.spec.name] for spec in specs]
        self._empty = [False for _ in specs]  # whether the view is known to be zeros
        self._known: list[set[str]] = [set() for _ in self._parameters]
        for spec in specs:
            self._known[spec.parameter].add(spec.slot)

    def rehome(self) -> None:
        """Move the slot tensors that the last step created or replaced into the image.

        Raises `EdgeAgentError` if the optimizer made a slot that the dry steps did not show, one of
        another shape or dtype, or one that is no parameter's: the state has no place for it.
        """
        check_memory(self._optimizer)
        for number, parameter in enumerate(self._parameters):
            for slot, value in self._optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor) and slot not in self._known[number]:
                    name = slot_name(self._names[number], slot)
                    raise EdgeAgentError(f"the optimizer made {name} only while training")
        for place, (spec, view) in enumerate(zip(self._specs, self._views, strict=True)):
            value = self._value(spec)
            if value is None:
                if not self._empty[place]:
                    view.zero_()
                self._empty[place] = True
                continue
            self._empty[place] = False
            if value.data_ptr() == view.data_ptr() and value.numel():
                continue
            if value.dtype != view.dtype or value.shape != view.shape:
                raise EdgeAgentError(f"the optimizer changed the shape of {spec.spec.name}")
            if self._image.holds(value.device):
                view.copy_(value)
                self._optimizer.state[self._parameters[spec.parameter]][spec.slot] = view

    def strays(self) -> dict[str, torch.Tensor]:
        """Return the slots that exist and cannot lie in the image, by name."""
        values = [(spec, self._value(spec)) for spec in self._specs]
        return {
            spec.spec.name: value
            for spec, value in values
            if value is not None and not self._image.holds(value.device)
        }

    def _value(self, spec: SlotSpec) -> torch.Tensor | None:
        memory = self._optimizer.state.get(self._parameters[spec.parameter], {})
        value: torch.Tensor | None = memory.get(spec.slot)
        return value

    def tensors(self) -> list[tuple[torch.nn.Parameter, str, torch.Tensor]]:
        """Return parameter, slot and tensor of the slots that exist."""
        found = []
        for spec in self._specs:
            parameter = self._parameters[spec.parameter]
            value = self._optimizer.state.get(parameter, {}).get(spec.slot)
            if isinstance(value, torch.Tensor):
                found.append((parameter, spec.slot, value))
        return found

    def presence(self) -> bytes:
        """Return which tensor slots exist, one bit each, little-endian."""
        bits = 0
        for number, spec in enumerate(self._specs):
            memory = self._optimizer.state.get(self._parameters[spec.parameter], {})
            if isinstance(memory.get(spec.slot), torch.Tensor):
                bits |= 1 << number
        return bits.to_bytes(math.ceil(len(self._specs) / 8), "little")

    def scalars(self) -> tuple[tuple[int, str, Any], ...]:
        """Return (parameter number, slot, value) of the slots that are no tensors, ascending."""
        return tuple(
            (number, slot, value)
            for number, parameter in enumerate(self._parameters)
            for slot, value in sorted(self._optimizer.state.get(parameter, {}).items())
            if not isinstance(value, torch.Tensor)
        )

    def check(self, presence: bytes, scalars: Sequence[tuple[int, str, Any]]) -> None:
        """Raise `EdgeAgentError` if a state to adopt does not fit this optimizer."""
        bits = int.from_bytes(presence, "little")
        if len(presence) != math.ceil(len(self._specs) / 8) or bits >> len(self._specs):
            raise EdgeAgentError("the state to adopt has another number of optimizer slots")
        for number, slot, value in scalars:
            fits = number < len(self._parameters) and isinstance(value, _SCALARS)
            if not fits or slot in self._known[number]:
                raise EdgeAgentError(f"the state to adopt has an unknown optimizer slot {slot!r}")

    def adopt(self, presence: bytes, scalars: Sequence[tuple[int, str, Any]]) -> None:
        """Rebuild the optimizer's slots from the shared state; those that it had are dropped.

        Raises `EdgeAgentError`, before anything changes, if they do not fit this optimizer.
        """
        self.check(presence, scalars)
        bits = int.from_bytes(presence, "little")
        for parameter in self._parameters:
            self._optimizer.state.pop(parameter, None)
        for number, (spec, view) in enumerate(zip(self._specs, self._views, strict=True)):
            self._empty[number] = False
            if bits >> number & 1:
                value = view
                if not self._image.holds(spec.device):
                    value = self._image.at_home(spec.spec.name).to(spec.device, copy=True)
                self._optimizer.state[self._parameters[spec.parameter]][spec.slot] = value
        for number, slot, value in scalars:
            self._optimizer.state[self._parameters[number]][slot] = value
