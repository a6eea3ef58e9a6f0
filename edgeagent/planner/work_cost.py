"""What computing a share of the work costs.

In ordinary training, and with local steps, a share takes as long as it has micro-batches. In a
round of subnets the micro-batches are cells of the model. A matrix between two divided layers then
costs the square of a device's part, one with an undivided side the part itself, and what is not
divided costs the same however small the part is. AdapTrain has two rules for how large parts follow
from speeds: its square-root rule is the right one if `square` is 1, its linear rule if both parts
are 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkCost:
    """Which parts of the cost of all micro-batches grow how: `fixed` is the same for every share
    but none, `square` grows with the square of the share, and the rest in proportion to it. Both
    are at least 0 and together at most 1.
    """

    fixed: float = 0.0
    square: float = 0.0

    @property
    def is_possible(self) -> bool:
        """Whether these are parts of a whole, and some of it depends on the share."""
        return self.fixed >= 0 and self.square >= 0 and self.fixed + self.square <= 1 > self.fixed

    def units(self, share: int, of: int) -> float:
        """Return what computing `share` of `of` micro-batches costs, as a number between 0 and
        `of`, which all of them cost."""
        if not share or not of:
            return 0.0
        return self._linear * share + self.fixed * of + self.square * share * share / of

    def affordable(self, units: float, of: int) -> float:
        """Return how many of `of` micro-batches cost so much, with a fraction."""
        over = units - self.fixed * of
        if over <= 0:
            return 0.0
        root = math.sqrt(self._linear**2 + 4 * self.square * over / of)
        return 2 * over / (self._linear + root)

    @property
    def _linear(self) -> float:
        return 1.0 - self.fixed - self.square


IN_PROPORTION = WorkCost()  # of a sum in every step, and of local steps
