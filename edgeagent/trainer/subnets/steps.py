"""What one device does in a round of independent subnets (IST; AdapTrain for unequal devices).

The model is divided at random, in each round or after some of them anew, and each device trains a
subnet by itself for `local_steps` steps; then what they have changed is put together. The
micro-batches of a round are cells (`cells.py`): a device that is dealt k of M cells has a subnet of
that part of each layer, so the plan's shares decide how large the subnets are. All devices take as
many steps, each on samples of its own, with an optimizer of the script's kind that begins with an
empty memory.

What a device adds to the round's sum is M * (start - own) where a number is its own alone, and
k * (start - own) where all devices have it, such as the bias of the last layer. The sum over all
devices divided by M is then the change of each number of a subnet, and for the others the mean of
the changes weighted by the size of the subnets. A number that no device had keeps its value.

- Cells that are dealt to a device after its first ones of a round, because the device that had them
  was lost or has handed them back, are not trained: that would take as long as the round again.
  They count as done and change nothing, so a lost device costs what it has learned in this round.
- If what a device has computed is dealt to others, it begins the round anew with other cells.
- The loss of a round is the mean of the devices' own, weighted by the size of their subnets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgeagent.config import SUBNET_SCALES
from edgeagent.errors import UsageError
from edgeagent.trainer.gradients import dense_gradient
from edgeagent.trainer.guards import Guards
from edgeagent.trainer.local_steps import BothOptimizers, take_step
from edgeagent.trainer.outer import outer_optimizer
from edgeagent.trainer.subnets.cells import units_of
from edgeagent.trainer.subnets.cut_model import CutModel
from edgeagent.trainer.subnets.first_step import FirstStep

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch.optim import Optimizer

    from edgeagent.planner.work_cost import WorkCost
    from edgeagent.trainer.buffers import ModelBuffers
    from edgeagent.trainer.gradients import GradientSum
    from edgeagent.trainer.subnets.layers import Division


class SubnetSteps:
    """The device's subnet `net` of `model`, and the steps that it takes with it.

    `optimizer` is the script's, of which the steps have the class and the settings. `steps`: how
    many a device takes in a round, `cells`: the micro-batches of a round, `period`: for how many
    rounds a cell stands for the same units, `scale` as of `CutModel`. Raises `UsageError` for a
    division that does not fit the model, and for an optimizer that cannot be made anew.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Optimizer,
        division: Division,
        *,
        steps: int,
        cells: int,
        seed: int,
        max_grad_norm: float | None = None,
        scale: str = SUBNET_SCALES[0],
        period: int = 1,
    ) -> None:
        self._division = division
        self._template = optimizer
        self._steps, self._cells, self._seed = steps, cells, seed
        self._period = period
        self._max_grad_norm = max_grad_norm
        self._cut = CutModel(model, division, scale)
        self.net = self._cut.net
        self._first_step: FirstStep | None = FirstStep(model, self.net, division, self._cut.places)
        self._cost: WorkCost | None = None  # that has not been told yet
        self.parameters = dict(sorted(model.named_parameters()))
        self._trainable = [n for n, p in self.parameters.items() if p.requires_grad]
        self._names = {id(parameter): name for name, parameter in self.parameters.items()}
        whole = [self.parameters[name] for name in self._trainable]
        self.outer = outer_optimizer(None, whole)
        self.optimizers = BothOptimizers(optimizer, self.outer)
        self._guards = Guards(optimizer, lambda: b"", model)
        self._mine: list[int] = []  # the cells of the subnet
        self._dropped: list[int] = []  # cells that count as done and are not trained
        self._has_work = False  # whether the agent has dealt out the work of this round
        self._taken = 0  # steps of this round
        self.last_loss = 0.0  # the cluster's, of the last round; 0 before the first
        self._moved: set[str] = set()  # parameters that had a gradient in this round
        self._written = False  # what `contribute` writes is there
        self._optimizer = self._fresh({name: self._cut.own(name) for name in self._trainable})

    # --- work -------------------------------------------------------------------------------------

    def deal(self, number: int, cells: Sequence[int]) -> list[int]:
        """Take cells of round `number`; return the numbers of the steps that they bring. The
        samples of a step follow from its number, which no other device of the round has."""
        first_work, self._has_work = not self._has_work, True
        if not first_work or not cells:
            self._dropped += cells
            return []
        self._mine = list(cells)
        if not self._become(number):  # there are fewer units than cells, and none falls to these
            self._mine, self._dropped = [], list(cells)
            return []
        first = min(cells) * self._steps
        return list(range(first, first + self._steps))

    @property
    def done(self) -> list[int]:
        """The cells that count as computed: those of the subnet after its first step."""
        return [*(self._mine if self._taken else ()), *self._dropped]

    @property
    def trained(self) -> int:
        """How many cells the steps were for that have been taken."""
        return len(self._mine) if self._taken else 0

    @property
    def progress(self) -> int:
        """How many cells' worth of the steps is taken."""
        return len(self._mine) * self._taken // self._steps + len(self._dropped)

    def new_cost(self) -> WorkCost | None:
        """Return once what a part of the model costs, when a step has shown it."""
        cost, self._cost = self._cost, None
        return cost

    def loss_of(self, total: float) -> float:
        """Return what the device adds to the sum of losses if those of its steps add up to
        `total`: as if each cell that it has, dropped ones too, had its mean loss. Without a step
        that is the loss of the last round."""
        mean = total / self._taken if self._taken else self.last_loss
        return mean * len(self.done)

    def step(self) -> bool:
        """Take one step with the gradients that the script has left in `net`, and drop them; return
        whether there were any.

        Raises `UsageError` for a sparse gradient, and if the script has trained the whole model or
        stepped its optimizer.
        """
        self._guards.script_ran()
        self._guards.check()
        if any(self.parameters[name].grad is not None for name in self._trainable):
            raise UsageError(
                "the loop has computed gradients of the whole model: with subnets it must use"
                " trainer.model, which is another subnet in each round"
            )
        found = []
        for name in self._trainable:
            own = self._cut.own(name)
            if name not in self._cut.holdings:  # borrowed: it takes part and does not change
                own.grad = None
            elif dense_gradient(name, own) is not None:
                self._moved.add(name)
                found.append(own)
        take_step(self._optimizer, found, self._max_grad_norm)
        self._taken += 1
        if self._first_step is not None and (cost := self._first_step.cost()) is not None:
            self._first_step, self._cost = None, cost
        return bool(found)

    def contribute(self, sums: GradientSum, buffers: ModelBuffers, _micro_batches: int) -> None:
        """Write into `sums` what the device has changed in this round, and changes of `buffers`.

        What is there already is not written again, because the agent may be reading it.
        """
        if self._written or not self._taken:
            return
        self._written = True
        mine = len(self._mine)
        for number, name in enumerate(self._trainable):
            if name in self._moved:
                holding, whole = self._cut.holdings[name], self.parameters[name]
                weight = self._cells if holding.is_own else mine
                start = whole.detach()[holding.index] if holding.index else whole.detach()
                own = self._cut.own(name).detach()
                sums.put_change(number, start, own, weight, holding.index)
        for name in buffers.averaged_names():
            if (held := self._cut.holdings.get(name)) is not None:
                weight = self._cells if held.is_own else mine
                buffers.put_change(name, self._cut.own(name), weight, held.index)

    # --- rounds -----------------------------------------------------------------------------------

    def share_own(self) -> None:
        """Do nothing: the shared weights are those of the script's model."""

    def watch(self) -> None:
        """From now on the script may not step its optimizer."""
        self._guards.watch([], None, [])
        self._guards.note([])

    def release(self) -> None:
        """End the watch: training is over."""
        self._guards.release()

    def begin(self) -> None:
        """Begin a round, in which no cell is dealt yet."""
        self._mine, self._dropped, self._taken = [], [], 0
        self._has_work = False
        self._moved, self._written = set(), False
        self._guards.note([])

    def begin_anew(self) -> None:
        """Forget what was computed of this round."""
        self.begin()

    def _become(self, number: int) -> bool:
        """Make `net` the subnet of the device's cells in round `number`; return whether there is
        anything in it that this device is to train.

        Nothing of the rounds before is needed for it, so a device that joins or resumes in the
        middle of a period divides the model as the others do. For the same reason the optimizer
        begins anew even if the subnet is the one before: such a device lacks its memory.
        """
        order = number // self._period
        sizes = {layer.name: layer.units for layer in self._division.layers}
        sizes |= {blocks.name: len(blocks.modules) for blocks in self._division.blocks}
        self._cut.become(
            {
                name: units_of(self._mine, self._cells, size, self._seed, order, name)
                for name, size in sizes.items()
            }
        )
        held = [name for name in self._trainable if name in self._cut.holdings]
        if held:
            self._optimizer = self._fresh({name: self._cut.own(name) for name in held})
        return bool(held)

    def _fresh(self, own: dict[str, torch.Tensor]) -> Optimizer:
        """Return an optimizer of these tensors with the present settings of the script's."""
        groups: list[dict[str, Any]] = []
        for group in self._template.param_groups:
            named = [self._names[id(parameter)] for parameter in group["params"]]
            settings = {k: v for k, v in group.items() if k not in ("params", "param_names")}
            groups.append({**settings, "params": [own[name] for name in named if name in own]})
        kind: Any = type(self._template)
        try:
            made: Optimizer = kind([group for group in groups if group["params"]])
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"subnets: each round makes a new {kind.__name__} of the subnet's parameters, which"
                f" it does not take alone: {error}"
            ) from None
        return made
