"""One turn of one contender: a cluster that trains, and one more node that wants the training
state.

A contender gets only what is defined here, so all work on the same network. It raises `Failed` if
it could not do what it should.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeagent.planner.bounds import fluid_bound

if TYPE_CHECKING:
    from tests.testbed.bench.strategies_agent import Truth
    from tests.testbed.network import Network

JOINER = "joiner"
MB = 1_000_000
LONGER = 1.5  # a step counts as held up if it takes this many times as long as usual


class Failed(Exception):
    """Raised by a contender that failed; the text says why."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What a contender is given. `truth`: goodput in bytes/s and delay in s towards the joiner."""

    net: Network
    folder: Path  # its own, empty
    members: tuple[str, ...]
    neighbours: tuple[str, ...]  # of the joiner
    truth: Truth
    state_mb: float
    gradient_mb: float
    compute_ms: float
    settle_s: float
    pythons: Mapping[str, str]  # contender -> the interpreter that has its package

    @property
    def state_bytes(self) -> int:
        """Size of the training state."""
        return int(self.state_mb * MB)

    @property
    def bound_s(self) -> float:
        """The shortest time in which the state can come over the neighbours' links."""
        links = [self.truth[name] for name in self.neighbours]
        return fluid_bound(self.state_bytes, [rate for rate, _ in links], [d for _, d in links])


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds by part; the part `pull` is there always. `notes` go to the JSON."""

    parts: dict[str, float]
    notes: dict[str, Any] = field(default_factory=dict)


def idle_s(ends: Sequence[float], began: float, ended: float, usual_s: float) -> float:
    """Return for how many seconds a member was held up: by how much those steps took longer than
    usual that touch the time from `began` to `ended` and took at least `LONGER` times as long.

    ends: when its steps ended, ascending.
    """
    gaps = [b - a for a, b in pairwise(ends) if b > began and a < ended]
    return sum(gap - usual_s for gap in gaps if gap > LONGER * usual_s)
