"""Steps of divided slots that are made while the trainer waits, after the update they belong to.

An update gives a device the new weights from their owners. That its own slots, and those of which
it keeps copies, follow is needed only when the next sums are here, so they are stepped while this
trainer waits for these (`slot_steps.py`). What cannot be put off `Shards` steps at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from edgeagent.errors import EdgeAgentError
from edgeagent.marks import (
    MARK_OWED,
    MARK_STEPPED_CHUNKS,
    OWES_NOTHING,
    OWES_STEP,
    STEPS_NOW,
)
from edgeagent.slot_steps import ADAM, AMSGRAD, SGD, SLOTS, SlotStep, chunks_to_step, step_chunks
from edgeagent.trainer.block_steps import TRIAL_ELEMENTS, BlockSteps, is_ready, trial_numbers
from edgeagent.trainer.image import CPU
from edgeagent.trainer.mean import Mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch.optim import Optimizer

    from edgeagent.held_memory import HeldLayout
    from edgeagent.trainer.stand_ins import StandIns

# Elements after which it is looked whether the agent wants something: a millisecond or two.
AT_ONCE = 1 << 20
_TRIAL_STEPS = 3


class OwedSlots:
    """Steps the slots of `optimizer` that are called `names`, with the sums beside them.

    `owed` is the step that is put off, None if there is none; once it is made, `done` is called.
    `blocks` steps slots at once, and shows whether the bits are the same.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        blocks: BlockSteps | None,
        layout: HeldLayout,
        names: Sequence[str],
        gradient_chunks: int,
    ) -> None:
        self.owed: SlotStep | None = None
        self.done: Callable[[], None] = lambda: None
        self._optimizer = optimizer
        self._blocks = blocks
        self._layout = layout
        self._names = names
        self._gradient_chunks = gradient_chunks
        self._rest: Iterator[int] = iter(())
        self._is_broken = False  # a step has ended in the middle of a chunk
        self._tried: dict[tuple[Any, ...], bool] = {}  # kind of step -> whether bits agree
        self._ready: object = None  # for what all slots were found to be there

    def attach(self, held: torch.Tensor, marks: Any) -> None:
        """Step slots in the region `held`, and say in `marks` whether that is still to be done."""
        self._held = held.numpy()
        self._marks = marks
        self._marks[MARK_OWED] = OWES_NOTHING

    def step_for(self, mean: Mean, stand_ins: StandIns, *, all_have: bool) -> SlotStep | None:
        """Return the step that may be put off, None if this one has to be made at once.

        `all_have`: each parameter has a gradient. The slots have to exist already, and their step
        must not depend on the weights, which the update replaces.
        """
        steps = {_step(self._optimizer, g, mean) for g in self._optimizer.param_groups}
        step = steps.pop() if len(steps) == 1 else None
        if step is None or not all_have or not self._agrees(step):
            return None
        ready_for = (step.rule, tuple(stand_ins.generations()))
        if self._ready != ready_for:
            if not all(is_ready(self._optimizer, *known) for known in stand_ins.known()):
                return None
            self._ready = ready_for
        return step

    def forget(self) -> None:
        """Look again whether all slots exist, before the next step is put off."""
        self._ready = None

    def owe(self, step: SlotStep, stripes: Iterable[int]) -> None:
        """Put `step` of the slots of `stripes` off."""
        chunks = chunks_to_step(self._layout, stripes, self._gradient_chunks)
        self._rest = step_chunks(self._held, self._layout, chunks, self._names, step)
        self.owed = step
        self._marks[MARK_STEPPED_CHUNKS] = 0
        self._marks[MARK_OWED] = OWES_STEP

    @property
    def told(self) -> tuple[str, tuple[float, ...]]:
        """What `Applied` says of the step that is owed: its rule and its numbers."""
        return (self.owed.rule, self.owed.encode()) if self.owed is not None else ("", ())

    def some(self) -> None:
        """Make a part of the step that is owed, in whole chunks. Raises `EdgeAgentError` if an
        earlier part has ended in the middle of one, as by a signal of the script's own."""
        if self.owed is None:
            return
        if self._is_broken:
            raise EdgeAgentError("a step of the optimizer's slots was broken off")
        left = AT_ONCE
        self._is_broken = True
        self._marks[MARK_OWED] = STEPS_NOW
        for count in self._rest:
            self._marks[MARK_STEPPED_CHUNKS] += 1
            left -= count
            if left <= 0:
                self._marks[MARK_OWED] = OWES_STEP
                self._is_broken = False
                return
        self._marks[MARK_OWED] = OWES_NOTHING
        self._is_broken = False
        self.owed = None
        self.done()

    def all(self) -> None:
        """Make the whole step that is owed."""
        while self.owed is not None:
            self.some()

    def _agrees(self, step: SlotStep) -> bool:
        """Return whether a few steps of fixed numbers leave the bits that they leave at once."""
        # Schedules may change the numbers in each step. They change the operations only here.
        key = (step.rule, abs(1 - step.numbers[0]) < 0.5, step.maximize)
        if key not in self._tried:
            settings = self._optimizer.param_groups[0]
            self._tried[key] = self._blocks is not None and _same(self._blocks, step, settings)
        return self._tried[key]


def _step(optimizer: Optimizer, group: Mapping[str, Any], mean: Mean) -> SlotStep | None:
    """Return the step of a group's slots, None if it depends on the weights or is not known."""
    about = (bool(group.get("maximize")), mean.weight, mean.scale, mean.coefficient)
    decay = group.get("weight_decay", 0)
    if type(optimizer) in (torch.optim.Adam, torch.optim.AdamW):
        if decay != 0 and not group.get("decoupled_weight_decay"):
            return None
        return SlotStep(AMSGRAD if group["amsgrad"] else ADAM, tuple(group["betas"]), *about)
    if type(optimizer) is torch.optim.SGD and group["momentum"] and not decay:
        return SlotStep(SGD, (group["momentum"], group["dampening"]), *about)
    return None


def _same(blocks: BlockSteps, step: SlotStep, settings: Mapping[str, Any]) -> bool:
    draw = torch.Generator().manual_seed(5)
    mean = Mean(step.weight, step.scale, step.coefficient)
    one = {name: torch.zeros(TRIAL_ELEMENTS, device=CPU) for name in SLOTS[step.rule]}
    two = [slot.clone().numpy() for slot in one.values()]
    for count in range(1, _TRIAL_STEPS + 1):
        total = trial_numbers(draw)
        with torch.no_grad():
            blocks.step(trial_numbers(draw), total, mean, one, settings, count)
        step.step(total.numpy(), two)
    return all(torch.equal(a, torch.from_numpy(b)) for a, b in zip(one.values(), two, strict=True))
