"""How fast a training state can be copied at all.

A bound holds for any scheme, so it is never above the time that a real one takes. Sizes are bytes
as sent, rates bytes/s, times seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def fluid_bound(
    size: float,
    rates: Sequence[float],
    offsets_s: Sequence[float],
    down_rate: float = math.inf,
) -> float:
    """Return the earliest time at which a joiner can hold `size` bytes.

    `rates[u]` is the rate at which source u can send to the joiner, and `offsets_s[u]` the time at
    which its first byte can arrive: its propagation delay and the time until it may begin (Chaos,
    P2: t_prop + tau_sync).

    The bound is the theta with `integral_0^theta min(down_rate, sum of rates[u] with offsets_s[u]
    <= t) dt = size`. With an unlimited `down_rate` that is `sum_u max(0, theta - offsets_s[u]) *
    rates[u] = size`, the relaxation of Chaos's P3 in which shards may be cut anywhere. It is
    infinite if no source has a rate. Raises ValueError if `down_rate` is not positive.
    """
    if not down_rate > 0:
        raise ValueError("the joiner's own rate must be positive")
    if size <= 0:
        return 0.0
    arrived, at, rate = 0.0, 0.0, 0.0
    for offset, more in sorted(zip(offsets_s, rates, strict=True)):
        if more <= 0:
            continue
        gained = min(rate, down_rate) * (offset - at)
        if arrived + gained >= size:
            break
        arrived, at, rate = arrived + gained, offset, rate + more
    return at + (size - arrived) / min(rate, down_rate) if rate > 0 else math.inf
