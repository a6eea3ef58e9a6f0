"""What a simulated device adds to the sum of a round, in each of the ways to train.

With a sum in every step, `Sums`, each micro-batch has a contribution of its own, so that only which
micro-batches count matters. With local steps and with subnets it matters who computed them: a
device's contribution is one vector that follows from all that it has computed in the round. What
was computed by two devices, or in two attempts, then shows in the sum where it must not be mixed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.numbers import VECTOR, contribution

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Numbers = Sequence[int]

PRIME = 1_000_003


class Sums:
    """A device's contribution is the sum of those of its micro-batches."""

    def __init__(self, micro_batches: int) -> None:
        """`micro_batches`: how many a round has."""
        self._in_all = micro_batches
        self.begin()

    def begin(self) -> None:
        """Forget what was computed of the round: another one begins, or the same one anew."""

    def add(self, own: Numbers, at: int, batches: Numbers, state: Numbers) -> list[int]:
        """Compute these micro-batches of iteration `at`, too, from the `state` at its start. Return
        what the device contributes then, if it was `own` before."""
        parts = [contribution(at, m) for m in batches]
        return [sum(column) for column in zip(own, *parts, strict=True)]


class LocalSteps(Sums):
    """A device steps weights of its own, each time in a way that depends on where they are, and
    contributes how far they have come, times the number of its micro-batches."""

    def begin(self) -> None:
        self._weights: list[int] | None = None  # None: those of the start
        self._steps = 0

    def add(self, own: Numbers, at: int, batches: Numbers, state: Numbers) -> list[int]:
        weights = list(state if self._weights is None else self._weights)
        for m in batches:
            moves = contribution(at, m)
            weights = [(3 * w + g) % PRIME for w, g in zip(weights, moves, strict=True)]
        self._weights = weights
        self._steps += len(batches)
        far = [(w - start) % PRIME for w, start in zip(weights, state, strict=True)]
        return [self._steps * way for way in far]


class Subnets(Sums):
    """The first micro-batches of a round, its cells, make a device's subnet: it changes the numbers
    that belong to them, all others stay. Cells that come later count as done and change nothing."""

    def begin(self) -> None:
        self._cells: tuple[int, ...] = ()

    def add(self, own: Numbers, at: int, batches: Numbers, state: Numbers) -> list[int]:
        changes = list(own)
        if self._cells or not batches:
            return changes
        self._cells = tuple(batches)
        for k in range(VECTOR):
            if cell_of(at, k, self._in_all) in self._cells:
                # What a number becomes depends on all that is trained together with it.
                together = sum(contribution(at, m)[k] for m in self._cells)
                changes[k] = self._in_all * ((3 * state[k] + together) % PRIME)
        return changes


def cell_of(iteration: int, number: int, cells: int) -> int:
    """Return to which cell a number of the state belongs in a round, another one in the next."""
    return (iteration * 5 + number * 3) % cells


Training = Sums
KINDS: dict[str, Callable[[int], Training]] = {
    "sums": Sums,
    "local steps": LocalSteps,
    "subnets": Subnets,
}
