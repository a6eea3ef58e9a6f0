"""What all contenders of a benchmark have in common: the network, the order, the machine's load.

No contender begins on a network that differs from its description, and none is always the first.
How much of the processors' time was used is reported beside the times, since it may be the limit.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.testbed.calibrate import calibrate
from tests.testbed.namespaces import TestbedError

if TYPE_CHECKING:
    from tests.testbed.calibrate import Found
    from tests.testbed.network import Network, Pair

CALIBRATIONS = 3  # tries, as a busy machine spoils one now and then


def calibrated(net: Network) -> Mapping[Pair, Found]:
    """Return the measured rate and delay of each link. Raises `TestbedError` if one stays wrong."""
    for _ in range(CALIBRATIONS - 1):
        try:
            return calibrate(net)
        except TestbedError:
            continue
    return calibrate(net)


def turns(names: Sequence[str], repeat: int) -> list[str]:
    """Return the contenders in this repeat's order."""
    first = repeat % len(names)
    return [*names[first:], *names[:first]]


def say(text: str) -> None:
    """Print how far the benchmark is."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def why(error: BaseException) -> str:
    """Return the reason of a failed line: one line of what an error says."""
    return " ".join(str(error).split("\n", 1)[0].split()) or type(error).__name__


@dataclass(frozen=True, slots=True)
class Busy:
    """For how long the processors of this machine had been working and idle, in ticks."""

    working: float
    idle: float

    @classmethod
    def now(cls) -> Busy:
        """Return the present figures of the kernel."""
        first = Path("/proc/stat").read_text().split("\n", 1)[0]
        ticks = [float(word) for word in first.split()[1:9]]
        idle = ticks[3] + ticks[4]
        return cls(sum(ticks) - idle, idle)

    def since(self, before: Busy) -> float:
        """Return the part of the time since `before` in which processors worked, from 0 to 1."""
        working, idle = self.working - before.working, self.idle - before.idle
        return working / ((working + idle) or 1.0)
