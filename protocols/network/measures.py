"""What is known of links and members, in the form in which planners get it.

What has not been measured is absent and never zero, so that planners cannot take "not known" for
"infinitely slow".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum


class KeepingUp(IntEnum):
    """How a member's trainer keeps up with the iterations. The numbers are sent in messages, so
    they must never change; new ones may be added."""

    PROMPT = 0
    SLOW = 1  # it takes longer than usual, and the others wait for it
    LATE = 2  # the others no longer wait for it and do its work
    AWAY = 3  # the same, because its script has said that it is away


@dataclass(frozen=True, slots=True)
class Rate:
    """One direction of one link: `delay_s` one way, `rate` in bytes/s.

    Raises ValueError unless the rate is positive, the delay not negative, both finite.
    """

    delay_s: float
    rate: float

    def __post_init__(self) -> None:
        if not (0 < self.rate < math.inf and 0 <= self.delay_s < math.inf):
            raise ValueError("a rate must be positive, a delay not negative, both finite")


@dataclass(frozen=True, slots=True)
class Times:
    """How many seconds a member needed for its share of the last iteration (`compute_s`), and
    waited for the round after that (`sync_s`)."""

    compute_s: float
    sync_s: float


@dataclass(frozen=True, slots=True)
class Measures:
    """All measurements. `links`: (from, to) -> `Rate`; `speeds`: node -> seconds per micro-batch;
    `up`, `down`: node -> bytes/s that it can send and receive over all its links together, if
    something limits that.

    Raises ValueError unless every speed and limit is positive and finite.
    """

    links: Mapping[tuple[bytes, bytes], Rate] = field(default_factory=dict)
    speeds: Mapping[bytes, float] = field(default_factory=dict)
    up: Mapping[bytes, float] = field(default_factory=dict)
    down: Mapping[bytes, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not all(0 < speed < math.inf for speed in self.speeds.values()):
            raise ValueError("a speed must be positive and finite")
        if not all(0 < x < math.inf for x in (*self.up.values(), *self.down.values())):
            raise ValueError("a limit must be positive and finite")


NOTHING_KNOWN = Measures()
