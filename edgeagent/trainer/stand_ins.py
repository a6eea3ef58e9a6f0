"""What is not divided of a divided optimizer's memory: counts of steps, and whatever else is no
tensor of a parameter's shape.

It is the same for all pieces of a parameter, so every device keeps it, in the memory of a stand-in:
an optimizer of the same class over parameters without elements, which is stepped once in each
update. Where a part's slots were lost and have begun anew (`--on-lost fresh`), its count of steps
has, too: a count that is too large would make its first updates too long. So there are several
generations of stand-ins, and each stripe belongs to one; which one is a part of the training state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from edgeagent.trainer.layout import TensorSpec
from edgeagent.trainer.settings import NOT_SCALARS
from edgeagent.trainer.slots import lone_optimizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch.optim import Optimizer

# What the tensor of the stripes' generations is called in the training state.
NAME = "optimizer.generations"
# All stripes begin in the first generation. If none of the others is free, the stripes that begin
# anew take the youngest one with them, whose slots are forgotten, too.
GENERATIONS = 3


class StandIns:
    """The stand-ins for the parameters in `names` (in canonical order), of which the optimizer's
    state is divided into so many `stripes`."""

    def __init__(
        self, optimizer: Optimizer, names: Mapping[torch.nn.Parameter, str], stripes: int
    ) -> None:
        self._real = optimizer
        self._numbers = {p: n for n, p in enumerate(names)}
        self._members = [
            [self._numbers[p] for p in group["params"] if p in self._numbers]
            for group in optimizer.param_groups
        ]
        self._all = [
            [torch.nn.Parameter(torch.zeros(0)) for _ in names] for _ in range(GENERATIONS)
        ]
        # Names of all stand-ins in canonical order, for the layout of the state.
        self.names: dict[torch.nn.Parameter, str] = {}
        for generation, some in enumerate(self._all):
            mark = f"~{generation}" if generation else ""
            self.names |= {p: name + mark for p, name in zip(some, names.values(), strict=True)}
        self.optimizer = lone_optimizer(optimizer, self._groups())
        self._of = torch.zeros(stripes, dtype=torch.int32)  # stripe -> generation

    def _groups(self) -> list[dict[str, Any]]:
        """Return the optimizer's groups with stand-ins in place of its parameters."""
        return [
            {
                **{k: v for k, v in group.items() if k not in NOT_SCALARS},
                "params": [
                    some[self._numbers[p]]
                    for some in self._all
                    for p in group["params"]
                    if p in self._numbers
                ],
            }
            for group in self._real.param_groups
        ]

    @property
    def spec(self) -> TensorSpec:
        """Return name, dtype and shape of the tensor that the training state has of the stripes'
        generations."""
        return TensorSpec(NAME, "I32", (len(self._of),))

    def attach(self, view: torch.Tensor) -> None:
        """Keep the stripes' generations in `view`, int32 [stripes], from now on."""
        view.copy_(self._of)
        self._of = view

    def generations(self) -> list[int]:
        """Return the generation of each stripe."""
        found: list[int] = self._of.tolist()
        return found

    def memory(self, parameter: int, stripe: int) -> dict[str, Any]:
        """Return what the optimizer remembers of the parameter with this number in a stripe; what
        has the shape of a stand-in are slots of full size."""
        stand_in = self._all[int(self._of[stripe])][parameter]
        found: dict[str, Any] = self.optimizer.state.get(stand_in, {})
        return found

    def known(self) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """Yield the settings and the memory of each parameter, in each generation in use."""
        used = {0, *self.generations()}
        for group, of in zip(self._real.param_groups, self._members, strict=True):
            for generation in used:
                for number in of:
                    yield group, self.optimizer.state.get(self._all[generation][number], {})

    def with_these(self, stripes: Iterable[int]) -> tuple[int, ...]:
        """Return all stripes that begin anew if these do."""
        return self._next(tuple(stripes))[1]

    def begin_anew(self, stripes: Iterable[int]) -> None:
        """Have these stripes, and all others that do so with them, begin anew."""
        generation, chosen = self._next(tuple(stripes))
        if chosen:
            for stand_in in self._all[generation]:
                self.optimizer.state.pop(stand_in, None)
            self._of[list(chosen)] = generation

    def _next(self, stripes: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        """Return the generation in which these stripes begin anew, and all that then belong to
        it."""
        if not stripes:
            return 0, ()
        of = [int(g) for g in self._of]
        used = {g for s, g in enumerate(of) if s not in stripes}
        free = [g for g in range(1, GENERATIONS) if g not in used]
        youngest = min(range(1, GENERATIONS), key=lambda g: (self._age(g), g))
        generation = free[0] if free else youngest
        return generation, tuple(s for s, g in enumerate(of) if s in stripes or g == generation)

    def _age(self, generation: int) -> float:
        """Return a number that grows with each update of a generation, if the optimizer counts."""
        memories = (self.optimizer.state.get(p, {}) for p in self._all[generation])
        return max((float(m["step"]) for m in memories if "step" in m), default=0.0)

    def step(self, bitmap: bytes) -> None:
        """Step the stand-ins of all generations that are in use; `bitmap`: which parameters have
        gradients."""
        bits = int.from_bytes(bitmap, "little")
        used = {0, *(int(g) for g in self._of)}
        for generation, some in enumerate(self._all):
            for number, stand_in in enumerate(some):
                has = generation in used and bits >> number & 1
                stand_in.grad = torch.zeros(0) if has else None
        for mine, theirs in zip(self.optimizer.param_groups, self._real.param_groups, strict=True):
            mine.update({k: v for k, v in theirs.items() if k not in NOT_SCALARS})
        type(self.optimizer).step(self.optimizer)
        for stand_in in self.names:
            stand_in.grad = None
