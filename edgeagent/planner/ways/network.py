"""What plans of ways are made from: the links between members, and what each member can carry."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Whole = NDArray[np.int64]

DIVIDED = "the links do not connect all members"


@dataclass(frozen=True)
class Network:
    """Members 0 to n - 1 and the directed links between them.

    `rates[u, v]` is what the link from u to v carries in bytes/s, and there is no such link without
    an entry. `delays[u, v]` is its delay in seconds, 0 without an entry. `up_limits[v]` is what
    member v can send over all its links together and `down_limits[v]` what it can receive, in
    bytes/s and inf where no limit is known. `names` are for reasons in words.

    Raises ValueError if a link joins no two members, if a rate or a limit is not positive, or if a
    delay is negative or infinite.
    """

    rates: dict[tuple[int, int], float]
    delays: dict[tuple[int, int], float]
    up_limits: tuple[float, ...]
    down_limits: tuple[float, ...]
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.up_limits or len(self.up_limits) != len(self.down_limits):
            raise ValueError("give each of at least one member a limit for sending and receiving")
        for (u, v), rate in self.rates.items():
            if u == v or not (0 <= u < self.count and 0 <= v < self.count):
                raise ValueError(f"a link from {u} to {v} joins no two of {self.count} members")
            if not 0 < rate < math.inf:
                raise ValueError(f"the rate from {u} to {v} is {rate}, which is not positive")
        for (u, v), delay in self.delays.items():
            if not 0 <= delay < math.inf:
                raise ValueError(f"the delay from {u} to {v} is {delay}, which is no time")
        for limit in (*self.up_limits, *self.down_limits):
            if not limit > 0:
                raise ValueError(f"a member's limit is {limit}, which is not positive")

    @property
    def count(self) -> int:
        """How many members there are."""
        return len(self.up_limits)

    def name(self, member: int) -> str:
        """Return the name of a member, or words with its number if it has none."""
        return self.names[member] if member < len(self.names) else f"member {member}"

    @cached_property
    def per_byte(self) -> Floats:
        """`[u, v]`: seconds that a byte takes on the link from u to v, inf without a link."""
        found = np.full((self.count, self.count), math.inf)
        for (u, v), rate in self.rates.items():
            found[u, v] = 1 / rate
        return found

    @cached_property
    def slower(self) -> Floats:
        """`[u, v]`: bytes/s of the slower direction between u and v, 0 if either has no link."""
        return 1 / np.maximum(self.per_byte, self.per_byte.T)

    @cached_property
    def hops(self) -> Whole:
        """`[u, v]`: the fewest links on a path from u to v, the number of members if none leads
        there."""
        found = np.full((self.count, self.count), self.count, dtype=np.int64)
        reached = np.eye(self.count, dtype=np.bool_)
        near = np.isfinite(self.per_byte) | reached
        found[reached] = 0
        for distance in range(1, self.count):
            further = (reached @ near) & ~reached
            if not further.any():
                break
            found[further] = distance
            reached |= further
        return found

    @property
    def connected(self) -> bool:
        """Whether every member can reach every other."""
        return bool((self.hops < self.count).all()) or self.count == 1

    def check_connected(self) -> None:
        """Raise ValueError if some member cannot reach another."""
        if not self.connected:
            raise ValueError(DIVIDED)

    def hop_s(self, frame_bytes: float = 0.0) -> Floats:
        """Return `[u, v]`: seconds until a frame of this size from u is at v, inf without a link.

        That is the link's delay and the time for the frame, since it is passed on when all of it
        has arrived.
        """
        delay = np.zeros((self.count, self.count))
        for (u, v), value in self.delays.items():
            delay[u, v] = value
        linked = np.isfinite(self.per_byte)
        time = delay + frame_bytes * np.where(linked, self.per_byte, 0.0)
        return np.where(linked, time, math.inf)

    def part(self, members: Sequence[int]) -> Network:
        """Return the network of these members alone, numbered in the order given."""
        place = {old: new for new, old in enumerate(members)}

        def kept(values: dict[tuple[int, int], float]) -> dict[tuple[int, int], float]:
            return {
                (place[u], place[v]): value
                for (u, v), value in values.items()
                if u in place and v in place
            }

        return Network(
            kept(self.rates),
            kept(self.delays),
            tuple(self.up_limits[m] for m in members),
            tuple(self.down_limits[m] for m in members),
            tuple(self.name(m) for m in members) if self.names else (),
        )
