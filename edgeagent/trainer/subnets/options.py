"""How the rounds of independent subnets are divided: what a script or `edgeagent run` chooses.

All of it belongs to the job. The scale and the period decide what a device computes; the least part
and the weight of the last round decide how large its subnet is, and each device may become the
scheduler, which deals out the cells. So devices that choose otherwise are refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgeagent.config import SUBNET_SCALES
from edgeagent.dataplane.gauges import LAST_ROUND_COUNTS
from edgeagent.errors import UsageError
from edgeagent.trainer.loader import is_number
from edgeagent.trainer.subnets.cells import CELLS_VERSION
from edgeagent.trainer.subnets.layers import Division
from protocols import limits

if TYPE_CHECKING:
    from collections.abc import Mapping

# How far a product of a decimal fraction and a number of cells may lie above the whole number that
# is meant: 0.07 * 100 is 7.000000000000001, and 7 cells are enough.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class SubnetOptions:
    """What is divided, and how.

    `scale` is one of `SUBNET_SCALES`. `minimum`, from 0 to 1, is the smallest part of the model
    that a device gets, `period` after how many rounds the units are put into another order, and
    `ewma`, above 0 and up to 1, by which part the last round counts in a device's speed.
    """

    division: Division
    scale: str = SUBNET_SCALES[0]
    minimum: float = 0.0
    period: int = 1
    ewma: float = LAST_ROUND_COUNTS

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the job's fingerprint, by name."""
        return {
            "subnets": f"{self.division}, scale {self.scale}, cells {CELLS_VERSION}",
            "subnet minimum": self.minimum,
            "subnet period": self.period,
            "subnet ewma": self.ewma,
        }

    def least_cells(self, cells: int) -> int:
        """Return how many of `cells` a device gets at least: the fewest that are no less than the
        minimum."""
        return math.ceil(self.minimum * cells - _ROUNDING)


def subnet_options(division: Any, settings: Mapping[str, Any]) -> SubnetOptions:
    """Return the options that hold for `division`; raise `UsageError` naming one that cannot be.

    `settings` are arguments of `Trainer` by their names; None leaves the default.
    """
    if not isinstance(division, Division):
        raise UsageError(
            "subnets takes what edgeagent.subnets.fully_connected(model), residual(model, ...) or"
            " transformer(model) returns"
        )
    given = {name: value for name, value in settings.items() if value is not None}
    scale = given.get("subnet_scale", SUBNET_SCALES[0])
    if scale not in SUBNET_SCALES:
        raise UsageError(f"subnet_scale is {scale!r}; it must be one of {', '.join(SUBNET_SCALES)}")
    minimum = given.get("subnet_minimum", 0.0)
    if not _is_part(minimum):
        raise UsageError(
            f"subnet_minimum is {minimum!r}; it must be a part of the model, from 0 to 1"
        )
    ewma = given.get("subnet_ewma", LAST_ROUND_COUNTS)
    if not _is_part(ewma) or not ewma:
        raise UsageError(f"subnet_ewma is {ewma!r}; it must be above 0 and at most 1")
    period = given.get("subnet_period", 1)
    if not is_number(period, 1) or period > limits.MAX_ITERATION:
        raise UsageError(f"subnet_period is {period!r}; it must be a number of rounds, 1 or more")
    return SubnetOptions(division, scale, float(minimum), int(period), float(ewma))


def _is_part(value: Any) -> bool:
    """Whether `value` is a number from 0 to 1; NaN is not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
