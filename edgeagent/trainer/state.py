"""The training state of one replica: model, optimizer, schedule, iteration, and its one update.

Law: the state changes in `apply` and `adopt` only, and in `apply` only from bytes that are the same
on all replicas. A micro-batch reads it and adds to this node's own sum. On the CPU parameters and
optimizer slots *are* views of the shared state; on other devices (`mirror`) the shared state is a
copy that is brought up to date within `apply` and read within `adopt`.
"""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.handover import Applied, Contributed
from edgeagent.trainer.buffers import ModelBuffers
from edgeagent.trainer.gradients import (
    GradientSum,
    clip_coefficient,
    is_finite,
    plan_vector,
    set_gradients,
)
from edgeagent.trainer.layout import plan_layout, tensor_spec
from edgeagent.trainer.meta import StateMeta, adopt_value, decode_meta
from edgeagent.trainer.slots import OptimizerSlots, discover_slots

if TYPE_CHECKING:
    from mmap import mmap

    from torch.optim import Optimizer

    from edgeagent.handover import Reduced
    from edgeagent.shared_memory import SharedMemory

_NOT_SCALARS = ("params", "param_names")


class TrainingState:
    """One replica. `mirror` forces the way of other devices on the CPU (for tests)."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Optimizer,
        scheduler: Any = None,
        max_grad_norm: float | None = None,
        *,
        mirror: bool = False,
    ) -> None:
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._max_grad_norm = max_grad_norm
        self._mirror = mirror
        self.parameters = dict(sorted(model.named_parameters()))
        self._trainable = {p: name for name, p in self.parameters.items() if p.requires_grad}
        self._frozen = {n: p for n, p in self.parameters.items() if p not in self._trainable}
        self.buffers = ModelBuffers(model)
        self._slot_specs = discover_slots(optimizer, self._trainable)
        model_tensors = {**self.parameters, **self.buffers.tensors()}
        self.layout = plan_layout(
            [tensor_spec(f"model.{name}", tensor) for name, tensor in model_tensors.items()]
            + [slot.spec for slot in self._slot_specs]
        )
        wide = any(p.dtype == torch.float64 for p in self.parameters.values())
        self.vector = plan_vector(
            [p.numel() for p in self._trainable],
            self.buffers.sizes(),
            torch.float64 if wide else torch.float32,
        )
        self.iteration = 0
        self.skipped = 0
        self._micro_batches: list[int] = []
        self._loss_sum = 0.0
        self._compute_seconds = 0.0
        self._started = 0.0

    def attach(self, memory: SharedMemory) -> None:
        """Move into `memory`, which this replica uses from now on."""
        self._views = self.layout.views(memory.state.memory)
        self._reduced = tuple(self._flat(region.memory) for region in memory.reduced)
        own = self._flat(memory.contribution.memory)
        names = list(self._trainable.values())
        self._sum = GradientSum(self.vector, own, list(self._trainable), names)
        for name, parameter in self.parameters.items():
            view = self._views[f"model.{name}"]
            view.copy_(parameter.detach())
            if not self._mirrored(parameter):
                parameter.data = view
        self._buffer_views = {name: self._views[f"model.{name}"] for name in self.buffers.names}
        self.buffers.attach(self._buffer_views, self.vector, own)
        self._slots = OptimizerSlots(
            self._optimizer, self._trainable, self._slot_specs, self._views, self._mirror
        )
        self._slots.rehome()

    def meta(self) -> bytes:
        """Return the scalars of the state, canonical; raise `UsageError` if one has no bytes."""
        return StateMeta(
            self.iteration,
            self.skipped,
            tuple(self._group_scalars()),
            self._slots.presence(),
            self._slots.scalars(),
            None if self._scheduler is None else self._scheduler.state_dict(),
        ).encode()

    def schedule_bytes(self) -> bytes:
        """Return the schedule's state in canonical bytes."""
        schedule = None if self._scheduler is None else self._scheduler.state_dict()
        return StateMeta(0, 0, (), b"", (), schedule).encode()

    def start_iteration(self) -> None:
        """Start this node's sum at zero: the agent gave work of a new iteration."""
        self._sum.clear()
        self.buffers.clear()
        self._micro_batches = []
        self._loss_sum = 0.0
        self._compute_seconds = 0.0

    def start_micro_batch(self) -> None:
        """Give the model the iteration's buffers; computing starts now."""
        self.buffers.restore()
        self._started = time.monotonic()

    def collect(self, micro_batch: int, loss: float) -> None:
        """Add the gradients and buffers that `micro_batch` left to this node's sum."""
        for name, parameter in self._frozen.items():
            if parameter.grad is not None:
                raise UsageError(f"{name} was frozen when Trainer() was made and has a gradient")
        with torch.no_grad():
            self._sum.add()
            self.buffers.collect()
        self._micro_batches.append(micro_batch)
        self._loss_sum += loss
        self._compute_seconds += time.monotonic() - self._started

    @property
    def micro_batches(self) -> tuple[int, ...]:
        """Return the micro-batches in this node's sum."""
        return tuple(self._micro_batches)

    def contribution(self) -> Contributed:
        """Say what this node's sum holds."""
        return Contributed(
            iteration=self.iteration,
            micro_batches=self.micro_batches,
            loss_sum=self._loss_sum,
            gradient_bitmap=self._sum.bitmap(),
            integer_buffers=self.buffers.exact,
            integer_buffers_agree=self.buffers.exact_agree,
            compute_seconds=self._compute_seconds,
        )

    def apply(self, reduced: Reduced) -> Applied:
        """Step from the round's sums; the one place where training changes the state.

        Raises `EdgeAgentError` if the sums cannot be those of this iteration.
        """
        if reduced.iteration != self.iteration or reduced.weight < 1:
            raise EdgeAgentError("the agent reduced another iteration than the trainer computes")
        if not reduced.integer_buffers_agree:
            names = self.buffers.disagreeing()
            raise EdgeAgentError(f"micro-batches left different values in buffers {names}")
        loss = reduced.loss_sum / reduced.weight
        finite = is_finite(reduced.square_sums, self.vector)
        if finite:
            self._check_homes()
            with torch.no_grad():
                self._step(reduced)
        else:
            self.skipped += 1
            self._drop_gradients()
        self._step_schedule(loss)
        self.iteration += 1
        return Applied(reduced.iteration, loss, not finite, self.meta())

    def adopt(self, iteration: int, data: bytes) -> None:
        """Become the replica whose tensors lie in the shared state and whose scalars are `data`.

        Raises `EdgeAgentError`, before anything changes, if they do not fit this job.
        """
        meta = decode_meta(data)
        if meta.iteration != iteration:
            raise EdgeAgentError("the state to adopt belongs to another iteration")
        if (meta.schedule is None) != (self._scheduler is None):
            raise EdgeAgentError("the state to adopt has another lr_scheduler")
        groups = self._adopted_groups(meta)
        schedule = None
        if self._scheduler is not None:
            mine = self._scheduler.state_dict()
            schedule = adopt_value(mine, meta.schedule, "lr_scheduler")
        self._slots.check(meta.presence, meta.scalar_slots)
        for group, values in zip(self._optimizer.param_groups, groups, strict=True):
            group.update(values)
        if schedule is not None:
            self._scheduler.load_state_dict(schedule)
        with torch.no_grad():
            self._slots.adopt(meta.presence, meta.scalar_slots)
            for name, parameter in self.parameters.items():
                if self._mirrored(parameter):
                    parameter.copy_(self._views[f"model.{name}"])
        self.buffers.restore()
        self._drop_gradients()
        self.iteration = iteration
        self.skipped = meta.skipped

    def view(self, name: str) -> torch.Tensor:
        """Return a tensor of the shared state by its name in the layout."""
        return self._views[name]

    def _step(self, reduced: Reduced) -> None:
        vector = self._reduced[reduced.buffer]
        coefficient = clip_coefficient(
            reduced.square_sums, self.vector, reduced.weight, self._max_grad_norm
        )
        set_gradients(
            self.vector,
            vector,
            list(self._trainable),
            reduced.gradient_bitmap,
            reduced.weight,
            coefficient,
        )
        self._optimizer.step()
        self._drop_gradients()
        self._slots.rehome()
        for name, parameter in self.parameters.items():
            if self._mirrored(parameter):
                self._views[f"model.{name}"].copy_(parameter)
        sums = self.buffers.section(self.vector, vector)
        self.buffers.apply(sums, reduced.weight, reduced.integer_buffers)

    def _step_schedule(self, loss: float) -> None:
        if isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.step(loss)
        elif self._scheduler is not None:
            with warnings.catch_warnings():  # torch warns if the very first step was skipped
                warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
                self._scheduler.step()

    def _drop_gradients(self) -> None:
        for parameter in self.parameters.values():
            parameter.grad = None

    def _group_scalars(self) -> list[dict[str, Any]]:
        return [
            {key: value for key, value in group.items() if key not in _NOT_SCALARS}
            for group in self._optimizer.param_groups
        ]

    def _adopted_groups(self, meta: StateMeta) -> list[dict[str, Any]]:
        mine = self._group_scalars()
        if len(mine) != len(meta.groups):
            raise EdgeAgentError("the state to adopt has another number of parameter groups")
        return [
            adopt_value(own, other, f"parameter group {n}")
            for n, (own, other) in enumerate(zip(mine, meta.groups, strict=True))
        ]

    def _check_homes(self) -> None:
        for name, parameter in self.parameters.items():
            home = self._views[f"model.{name}"]
            if not self._mirrored(parameter) and parameter.data_ptr() != home.data_ptr():
                raise UsageError(f"{name} was moved or replaced after Trainer() was made")

    def _mirrored(self, parameter: torch.Tensor) -> bool:
        return self._mirror or parameter.device.type != "cpu"

    def _flat(self, memory: mmap) -> torch.Tensor:
        count = max(1, self.vector.elements)
        return torch.frombuffer(memory, dtype=self.vector.dtype, count=count)[
            : self.vector.elements
        ]


def mean_loss(loss: Any) -> float:
    """Return the script's loss as a number; raise `UsageError` if it is not one."""
    value = loss.detach() if isinstance(loss, torch.Tensor) else loss
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise UsageError("update() takes the micro-batch's mean loss, a single number") from None
