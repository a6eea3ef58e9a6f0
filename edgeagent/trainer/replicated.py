"""Tensors beside the model that belong to the training state: an EMA copy, a teacher, statistics.

They lie in the flat state like parameters, so that a joiner pulls them, replicas compare digests of
them, and they are saved and resumed with the model. The script's own function changes them, which
every replica calls after every step. Nothing else may change them, because the replicas would then
differ; `guards.py` finds such changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from edgeagent.errors import UsageError
from edgeagent.trainer.exact_arithmetic import ExactArithmetic
from edgeagent.trainer.guards import Place, module_places
from edgeagent.trainer.layout import TensorSpec, tensor_spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeagent.trainer.image import StateImage

    Update = Callable[[torch.nn.Module], Any]


@dataclass(frozen=True, slots=True)
class _Entry:
    """What one call of `Trainer.replicate` was given."""

    name: str
    tensors: dict[str, torch.Tensor]  # by their names in the layout
    places: list[Place]
    update: Update | None


class ReplicatedTensors:
    """All that `Trainer.replicate` was given; the updates are called with `model`."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._entries: list[_Entry] = []
        self._image: StateImage | None = None  # the state's image, once `attach` was called
        # Where the values of each tensor begin, to notice one that shares memory with another.
        self._homes: set[int] = {
            tensor.data_ptr()
            for tensor in (*model.parameters(), *model.buffers())
            if tensor.numel()
        }

    def add(
        self, name: str, what: Any, update: Update | None, device: torch.device | None = None
    ) -> None:
        """Take in a module, which is moved to `device` unless that is None, or a dictionary of
        tensors; raise `UsageError` if it cannot be part of the state."""
        if not name or not name.isprintable():
            raise UsageError(f"replicate() wants a name to call the tensors by, not {name!r}")
        if any(entry.name == name for entry in self._entries):
            raise UsageError(f"replicate() was called twice for {name!r}")
        if update is not None and not callable(update):
            raise UsageError(f"the update of {name!r} is no function of the model")
        if isinstance(what, torch.nn.Module):
            if device is not None:
                what.to(device)
            found = dict(sorted([*what.named_parameters(), *what.named_buffers()]))
            places = module_places(f"{name}.", what, found)
        elif isinstance(what, dict) and all(isinstance(key, str) for key in what):
            found = dict(sorted(what.items()))
            places = [Place(f"{name}.{key}", what, key, tensor) for key, tensor in found.items()]
        else:
            raise UsageError(f"{name!r} is neither a module nor a dictionary of tensors by name")
        for key, tensor in found.items():
            self._check(f"{name}.{key}", tensor)
        tensors = {f"replicated.{name}.{key}": tensor for key, tensor in found.items()}
        self._entries.append(_Entry(name, tensors, places, update))

    def specs(self) -> list[TensorSpec]:
        """Return name, dtype and shape of each tensor, for the layout."""
        return [tensor_spec(name, tensor) for name, tensor in self.tensors().items()]

    def constants(self) -> set[str]:
        """Return the names in the layout of the tensors that no update changes."""
        return {name for entry in self._entries if entry.update is None for name in entry.tensors}

    def fields(self) -> list[tuple[str, str]]:
        """Return a field of the job's fingerprint for each entry; shapes are in the layout's."""
        return [
            (f"replicated {entry.name}", f"{len(entry.tensors)} tensors, {_named(entry.update)}")
            for entry in self._entries
        ]

    def places(self) -> list[Place]:
        """Return where the script keeps each tensor."""
        return [place for entry in self._entries for place in entry.places]

    @property
    def are_updated(self) -> bool:
        """Whether any of them is changed by a function of the script."""
        return any(entry.update is not None for entry in self._entries)

    def holds(self, module: torch.nn.Module) -> bool:
        """Return whether at least one tensor of `module` is among them."""
        known = {id(tensor) for tensor in self.tensors().values()}
        return any(id(t) in known for t in (*module.parameters(), *module.buffers()))

    def attach(self, image: StateImage) -> None:
        """Move the tensors into the state's image; those on another device stay there."""
        self._image = image
        for name, tensor in self.tensors().items():
            if image.holds(tensor.device):
                image.views[name].copy_(tensor.detach())
                tensor.data = image.views[name]

    def strays(self) -> dict[str, torch.Tensor]:
        """Return the tensors that cannot lie in the image, by name."""
        image = self._image
        return {
            name: tensor.detach()
            for name, tensor in self.tensors().items()
            if image is not None and not image.holds(tensor.device)
        }

    def apply(self) -> None:
        """Call every update, so that it rounds alike everywhere, and see to it that its results are
        in the state.

        Raises `UsageError` if an update moved a tensor or replaced it by one of another shape.
        """
        for entry in self._entries:
            if entry.update is not None:
                with ExactArithmetic():
                    entry.update(self._model)
                for place in entry.places:
                    _back_in_place(place)
        for name, tensor in self.tensors().items():
            view = self._image.views[name] if self._image is not None else tensor
            moved = tensor.numel() and tensor.data_ptr() != view.data_ptr()
            if moved and name not in self.strays():
                raise UsageError(f"{name} was moved while training; an update writes in place")

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return all tensors by their names in the layout."""
        return {name: t for entry in self._entries for name, t in entry.tensors.items()}

    def _check(self, name: str, tensor: Any) -> None:
        if not isinstance(tensor, torch.Tensor):
            raise UsageError(f"{name} is a {type(tensor).__name__}, not a tensor")
        if tensor.layout != torch.strided or not tensor.is_leaf:
            raise UsageError(f"{name} is sparse or part of a computation; replicate a plain tensor")
        if tensor.numel() and tensor.data_ptr() in self._homes:
            raise UsageError(f"{name} shares memory with the model or is replicated already")
        tensor_spec(name, tensor)
        self._homes.add(tensor.data_ptr())


def _back_in_place(place: Place) -> None:
    """Copy what the update has put into this place into the state's own tensor, and put that back.

    An update may put another tensor into a dictionary or a module instead of writing into the one
    that was there. Raises `UsageError` if that is no tensor of the same shape.
    """
    value = place.owner.get(place.key)
    if value is place.tensor:
        return
    if not isinstance(value, torch.Tensor) or value.shape != place.tensor.shape:
        raise UsageError(f"the update of {place.name} left no tensor of the same shape there")
    place.tensor.detach().copy_(value.detach())
    place.owner[place.key] = place.tensor


def _named(update: Update | None) -> str:
    if update is None:
        return "never updated"
    return f"updated by {getattr(update, '__qualname__', type(update).__qualname__)}"
