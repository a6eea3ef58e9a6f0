"""Finds what a script changes in the training state behind the trainer's back, and refuses it.

Between two updates nothing may change the training state, because a change on one device alone
would make its replica differ from all others. A change is found at the next `update()` and named to
the user. Checking must be cheap, so it never reads all values. It looks at
- the version counters that PyTorch keeps for in-place changes;
- which object is a parameter, and where its values lie;
- which parameters there are (`composition.py`);
- the optimizer's groups and slots, and the schedule's state;
- on the CPU, some words of the values, because writing through `.data` or numpy counts no version.
  On another device reading them would make the processor wait for it.
After the trainer's own changes it notes the state anew. Buffers are not checked: `forward()` may
change them, and the trainer gives every micro-batch the iteration's own.
"""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from edgeagent.errors import UsageError
from edgeagent.trainer.composition import Composition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from mmap import mmap

    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

    from edgeagent.trainer.layout import StateLayout

# How many 32-bit words of all tensors together are compared at each check: few enough to take no
# noticeable time. A model of very many tensors has more, because of the next limit.
_SAMPLED_WORDS = 4096
# How many words of each tensor are compared at least, so that none goes unwatched, ...
_LEAST_WORDS = 4
# ... and at most: who overwrites a tensor changes nearly all of it, so a few words show it.
_MOST_WORDS = 64
# After how many iterations in a row without any gradient the script is refused. The first may be a
# slip of a script that warms up; more would be training that teaches nothing.
_ITERATIONS_WITHOUT = 3


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor of the state can be found: `owner[key]` is `tensor`, and is called `name`."""

    name: str
    owner: dict[str, Any]
    key: str
    tensor: torch.Tensor


def module_places(prefix: str, module: torch.nn.Module, tensors: dict[str, Any]) -> list[Place]:
    """Return where `module` keeps `tensors`, which are by name; a tied one is in several places.

    `prefix` is put before the names that the user is shown.
    """
    names = {id(tensor): name for name, tensor in tensors.items()}
    return [
        Place(f"{prefix}{names[id(tensor)]}", owner, key, tensor)
        for part in module.modules()
        for owner in _owners(part)
        for key, tensor in owner.items()
        if tensor is not None and id(tensor) in names
    ]


def _owners(part: torch.nn.Module) -> list[dict[str, Any]]:
    """Return the dictionaries in which a module has its tensors.

    There are none for a TorchScript module, which keeps its tensors outside Python.
    """
    owners: tuple[Any, Any] = (part._parameters, part._buffers)
    return [owner for owner in owners if isinstance(owner, dict)]


def watched_words(
    layout: StateLayout, memory: mmap | None, unwatched: Collection[str]
) -> tuple[torch.Tensor | None, list[tuple[int, int]]]:
    """Return the flat state in `memory` as words for `Guards.watch`, None without `memory`, and the
    spans of all tensors in it but the `unwatched` ones."""
    words: torch.Tensor | None = None
    if memory is not None:
        words = torch.frombuffer(memory, dtype=torch.int32, count=max(1, layout.size // 4))
    spans = [
        (offset // 4, -(-length // 4))
        for name, offset, length in layout.tensors()
        if length and name not in unwatched
    ]
    return words, spans


class Guards:
    """Compares the state with what it was after the trainer's own last change.

    `schedule` returns the schedule's state as bytes. Neither `model` nor the groups of `optimizer`
    may get or lose a parameter from now on.
    """

    def __init__(
        self, optimizer: Optimizer, schedule: Callable[[], bytes], model: torch.nn.Module
    ) -> None:
        self._optimizer = optimizer
        self._composition = Composition(model, optimizer)
        self._schedule = schedule
        self._hook: RemovableHandle | None = None
        self._own = False
        self._fresh = False  # the script has not run since the last look
        self._places: list[Place] = []
        self._tensors: list[torch.Tensor] = []
        self._slots: list[tuple[torch.nn.Parameter, str, torch.Tensor]] = []
        self._words: torch.Tensor | None = None
        self._index = torch.zeros(0, dtype=torch.int64)

    def watch(
        self,
        places: Sequence[Place],
        words: torch.Tensor | None,
        spans: Sequence[tuple[int, int]],
    ) -> None:
        """Begin to watch: from now on only the trainer may change the tensors in `places`.

        `words` is the flat state, int32, or None where reading it would take too long. `spans` has,
        for each tensor of `places` in it, its first word and its number of words.
        """
        self._places = list(places)
        self._tensors = list({id(place.tensor): place.tensor for place in places}.values())
        self._words = words
        self._index = _sampled(spans)
        self._hook = self._optimizer.register_step_pre_hook(self._stepped)

    def release(self) -> None:
        """End the watch, because training is over and the script may change what it likes."""
        if self._hook is not None:
            self._hook.remove()
        self._hook = None

    @property
    def hooks(self) -> int:
        """How many hooks of the optimizer are this object's."""
        return int(self._hook is not None)

    @contextlib.contextmanager
    def own_change(self) -> Iterator[None]:
        """Allow the trainer to step the optimizer inside this context; `note` must follow."""
        self._own = True
        try:
            yield
        finally:
            self._own = False

    def note(self, slots: Sequence[tuple[torch.nn.Parameter, str, torch.Tensor]]) -> None:
        """Take the present state as the right one, with which `check` compares from now on.

        `slots` has the parameter, the name and the tensor of each slot of the optimizer.
        """
        self._groups = list(self._optimizer.param_groups)
        self._memory = self._optimizer.state
        self._slots = list(slots)
        self._slot_versions = [slot[2]._version for slot in self._slots]
        self._versions = [tensor._version for tensor in self._tensors]
        self._homes = [tensor.data_ptr() for tensor in self._tensors]
        self._state = self._schedule()
        self._sample = self._sampled_now()

    def script_ran(self) -> None:
        """Note that the script has run, so it may have changed something since the last check."""
        self._fresh = False

    def check(self) -> None:
        """Raise `UsageError`, saying what to do instead, if the script has changed the state.

        A second check in a row does nothing until the script has run again (`script_ran`).
        """
        if self._hook is None or self._fresh:
            return
        self._fresh = True
        self._check_optimizer()
        for place in self._places:
            if place.owner.get(place.key) is not place.tensor:
                raise UsageError(
                    f"{place.name} was replaced by another tensor while training: change the model"
                    " before Trainer() is made"
                )
        self._composition.check()
        versions = [tensor._version for tensor in self._tensors]
        if versions != self._versions:
            self._refuse_change(versions, self._versions)
        homes = [tensor.data_ptr() for tensor in self._tensors]
        if homes != self._homes:
            name = self._name(_first_difference(homes, self._homes))
            raise UsageError(
                f"{name} was moved or replaced after Trainer() was made (to(), half(), .data =):"
                " do that before"
            )
        if not torch.equal(self._sampled_now(), self._sample):
            raise UsageError(
                "parameters were changed by the script through .data or numpy: replicas would"
                " differ. Only the trainer changes them; what shall happen after every step belongs"
                " into trainer.replicate(..., update=)"
            )
        if self._schedule() != self._state:
            raise UsageError(
                "the script stepped or changed the lr_scheduler: the trainer steps it once an"
                " iteration, so take scheduler.step() out of the script"
            )

    def _check_optimizer(self) -> None:
        groups = self._optimizer.param_groups
        loaded = self._optimizer.state is not self._memory
        if loaded or any(a is not b for a, b in zip(groups, self._groups, strict=False)):
            raise UsageError(
                "the optimizer's state was replaced while training (optimizer.load_state_dict()):"
                " load it before Trainer(), or go on from a file with edgeagent run --resume"
            )
        memory = self._memory
        for (parameter, slot, tensor), version in zip(
            self._slots, self._slot_versions, strict=True
        ):
            if memory.get(parameter, {}).get(slot) is not tensor or tensor._version != version:
                raise UsageError(
                    "the script changed the optimizer's memory (optimizer.state): that is part of"
                    " the training state, which only the trainer changes"
                )

    def _refuse_change(self, now: list[int], before: list[int]) -> None:
        raise UsageError(
            f"{self._name(_first_difference(now, before))} was changed by the script while training"
            " (load_state_dict(), an in-place operation, a step of its own): replicas would differ."
            " Load weights before Trainer(); what shall happen after every step belongs into"
            " trainer.replicate(..., update=); what forward() changes has to be a buffer"
        )

    def _name(self, number: int) -> str:
        tensor = self._tensors[number]
        return next(place.name for place in self._places if place.tensor is tensor)

    def _sampled_now(self) -> torch.Tensor:
        if self._words is None:
            return self._index
        return self._words[self._index]

    def _stepped(self, *_: Any) -> None:
        """Raise `UsageError` if it was the script that called `optimizer.step()`."""
        if not self._own:
            raise UsageError(
                "the script called optimizer.step(): the trainer steps the optimizer, once an"
                " iteration and for the whole cluster, in update(). Take optimizer.step() (or"
                " scaler.step(optimizer)) out of the script"
            )


class GradientWatch:
    """Notices a script that computes no gradients, or loses them before `update()`."""

    def __init__(self) -> None:
        self._since = -1  # the first iteration of which no micro-batch here had a gradient
        self._warned = False
        self._warned_of_zeros = False

    def computed(self, iteration: int, has_gradient: bool) -> None:
        """Take in whether a micro-batch left a gradient.

        Warns the first time there is none, and raises `UsageError` after three iterations in which
        none of this node's micro-batches had one.
        """
        if has_gradient:
            self._since = -1
            return
        self._since = iteration if self._since < 0 else self._since
        reason = (
            "no parameter had a gradient at update(): is loss.backward() missing, or is there a"
            " zero_grad() between backward() and update()? The trainer clears the gradients itself"
        )
        if iteration - self._since >= _ITERATIONS_WITHOUT - 1:
            raise UsageError(f"in {_ITERATIONS_WITHOUT} iterations in a row {reason}")
        if not self._warned:
            self._warned = True
            warnings.warn(reason, stacklevel=4)  # where the script calls update()

    def reduced(self, squares: float, has_gradients: bool) -> None:
        """Take in the whole cluster's gradient: the sum of its squares, and whether there is one.

        Warns once if it is exactly zero, which is what clearing the gradients too early leaves.
        """
        if has_gradients and squares == 0.0 and not self._warned_of_zeros:
            self._warned_of_zeros = True
            warnings.warn(
                "every gradient of an iteration was exactly 0: is there a"
                " zero_grad(set_to_none=False) between backward() and update()?",
                stacklevel=2,
            )


def _sampled(spans: Sequence[tuple[int, int]]) -> torch.Tensor:
    """Return which words of the state to compare, int64: spread evenly over each of `spans`."""
    each = min(_MOST_WORDS, max(_LEAST_WORDS, _SAMPLED_WORDS // max(1, len(spans))))
    index: list[int] = []
    for first, count in spans:
        taken = min(count, each)
        index += [first + k * count // taken for k in range(taken)]
    return torch.tensor(index, dtype=torch.int64)


def _first_difference(a: list[int], b: list[int]) -> int:
    return next(n for n, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
