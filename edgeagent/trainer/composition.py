"""What a job is made of: the parameters of the model, and those of the optimizer's groups.

They are known when `Trainer()` is made. A parameter that comes later has no place in the training
state, so nothing would be trained of it, or only on one device; one that goes would be summed in
vain. Both are refused by name. Frozen parameters may come and go, such as those of a network that
only judges the results, as long as they stay frozen.

Looking must be cheap, because it is done at each micro-batch: as long as all modules have the same
children and parameters, no parameter is looked at.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from edgeagent.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection

    import torch
    from torch.optim import Optimizer


class Composition:
    """What `model` and `optimizer` have now, to be compared with what they have later."""

    def __init__(self, model: torch.nn.Module, optimizer: Optimizer) -> None:
        self._model = model
        self._optimizer = optimizer
        self._known = {id(p): (name, p) for name, p in model.named_parameters()}
        self._members = [list(group["params"]) for group in optimizer.param_groups]
        self._shape = _shape(model)
        self._frozen: list[tuple[str, torch.nn.Parameter]] = []  # those that have come since

    def check(self) -> None:
        """Raise `UsageError` if a parameter has come or gone."""
        groups = self._optimizer.param_groups
        if len(groups) != len(self._members) or not all(
            _are_same(group["params"], members)
            for group, members in zip(groups, self._members, strict=True)
        ):
            self._refuse_groups()
        if not all(_are_same(owner.values(), kept) for owner, kept in self._shape):
            self._look()
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                self._refuse_new(name)

    def _refuse_groups(self) -> None:
        names = {id(p): name for name, p in self._model.named_parameters()}
        before = {id(p) for members in self._members for p in members}
        groups = self._optimizer.param_groups
        new = [p for group in groups for p in group["params"] if id(p) not in before]
        said = ", ".join(names.get(id(p), "one that is not in the model") for p in new[:3])
        raise UsageError(
            "the optimizer's parameter groups were changed after Trainer() was made"
            f" (optimizer.add_param_group()){'; new: ' + said if new else ''}: give it all"
            " parameters before; what is to be trained later only can have lr 0 until then"
        )

    def _look(self) -> None:
        """Compare the parameters themselves: modules may come and go that have none."""
        now = {id(p): (name, p) for name, p in self._model.named_parameters()}
        new = [(name, p) for number, (name, p) in now.items() if number not in self._known]
        for name, parameter in new:
            if parameter.requires_grad:
                self._refuse_new(name)
        self._frozen = new
        trained = {id(p) for members in self._members for p in members}
        for number, (name, parameter) in self._known.items():
            if number not in now and (parameter.requires_grad or number in trained):
                raise UsageError(
                    f"parameter {name} is no longer in the model, as it was when Trainer() was"
                    " made: change the model before"
                )
        self._shape = _shape(self._model)

    def _refuse_new(self, name: str) -> None:
        raise UsageError(
            f"parameter {name} was added to the model after Trainer() was made, so it would"
            " not be trained, nor sent to devices that join: build the whole model before"
        )


def _are_same(now: Collection[Any], before: list[Any]) -> bool:
    """Return whether both have the same objects in the same order."""
    return len(now) == len(before) and all(map(operator.is_, now, before))


def _shape(model: torch.nn.Module) -> list[tuple[dict[str, Any], list[Any]]]:
    """Return where each module keeps its parameters and its children, and these themselves.

    A TorchScript module keeps them outside Python, so it is left out.
    """
    owners: list[Any] = [
        owner for module in model.modules() for owner in (module._parameters, module._modules)
    ]
    return [(owner, list(owner.values())) for owner in owners if isinstance(owner, dict)]
