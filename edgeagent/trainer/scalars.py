"""The scalars of the training state: everything in it that is no tensor.

They are the settings of the optimizer's groups, its slots that are no tensors, which slots exist,
the learning-rate schedule and the loss scale. `meta.py` says how they are encoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgeagent.errors import EdgeAgentError
from edgeagent.trainer.meta import StateMeta, adopt_value, decode_meta
from edgeagent.trainer.settings import adopted_groups, group_scalars

if TYPE_CHECKING:
    from edgeagent.trainer.scaling import LossScale
    from edgeagent.trainer.settings import HasGroups
    from edgeagent.trainer.slots import OptimizerSlots


class StateScalars:
    """The scalars of the replica whose optimizer has the groups of `grouped` and keeps `slots`,
    with its schedule, None without one, and its loss `scaling`."""

    def __init__(
        self, grouped: HasGroups, slots: OptimizerSlots, scheduler: Any, scaling: LossScale
    ) -> None:
        self._grouped = grouped
        self._slots = slots
        self._scheduler = scheduler
        self._scaling = scaling

    def encode(self, iteration: int, skipped: int) -> bytes:
        """Return them in canonical bytes, with the number of updates and of those left out. Raises
        `UsageError` if one of them cannot be encoded."""
        return StateMeta(
            iteration,
            skipped,
            tuple(group_scalars(self._grouped)),
            self._slots.presence(),
            self._slots.scalars(),
            None if self._scheduler is None else self._scheduler.state_dict(),
            self._scaling.state(),
        ).encode()

    def check(
        self, iteration: int, data: bytes
    ) -> tuple[StateMeta, list[dict[str, Any]], dict[str, Any] | None]:
        """Return the scalars in `data`, and what becomes of the parameter groups and the schedule
        with them, without changing anything. Raises `EdgeAgentError` if they do not fit this job or
        are not those of `iteration`."""
        meta = decode_meta(data)
        if meta.iteration != iteration:
            raise EdgeAgentError("the state to adopt belongs to another iteration")
        if (meta.schedule is None) != (self._scheduler is None):
            raise EdgeAgentError("the state to adopt has another lr_scheduler")
        self._scaling.fits(meta.loss_scale)
        groups = adopted_groups(self._grouped, meta.groups)
        schedule = None
        if self._scheduler is not None:
            mine = self._scheduler.state_dict()
            schedule = adopt_value(mine, meta.schedule, "lr_scheduler")
        self._slots.check(meta.presence, meta.scalar_slots)
        return meta, groups, schedule

    def put(self, groups: list[dict[str, Any]], schedule: dict[str, Any] | None) -> None:
        """Set the parameter groups and the schedule to what `check` has returned."""
        for group, values in zip(self._grouped.param_groups, groups, strict=True):
            group.update(values)
        if schedule is not None:
            self._scheduler.load_state_dict(schedule)
