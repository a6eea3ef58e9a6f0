"""Standby: a device that costs the others more than it gives stays outside until its links are
better.

All gradients travel over the links of every member, so one slow link slows every step of all. A
device is worth its place if a step with it is not much longer than a step without it. Both are
predicted by the planner from what is measured. The limits for entering and for going lie apart, so
that a device whose links are near a limit does not come and go all the time. With fewer than three
members nobody stands by, because then nobody would be left to train with.

If its links carry the updates, a device that stands by follows from outside: it copies the state as
a joiner does, and then each update. Nobody waits for it. It enters as soon as it is worth its
place, without copying the state again, and if all others are lost it goes on from what it has.
"""

from __future__ import annotations

from dataclasses import dataclass

# A member goes if a step would take less than this part of what it takes now without it (and
# without those that cost as much). The planner's `costly` has the same limit.
SAVES = 1 / 3
# A newcomer is let in if a step with it takes at most this many times a step without it.
ENTERS = 1.25
# A device that stands by asks again after so long. Every time, its links are measured anew.
AGAIN_SECONDS = 6.0
# A device that has to stand by again within so long of being let in waits twice as long as the last
# time, because every join costs the others a little, ...
STEADY_SECONDS = 120.0
# ... but never longer than this.
MOST_AGAIN_SECONDS = 192.0
# A member goes when it has been too slow for so long.
PATIENCE_SECONDS = 2.0
# It waits so long for the end of the running step. Then it goes at once, and the others do again
# what it has contributed.
GO_SECONDS = 1.0
# A device that follows from outside enters when it was found to be worth its place so many times in
# a row, about once a second: a link that swings round the limit is good now and then.
WORTH_TIMES = 4
# Fewer members than this are never left behind.
LEAST_OTHERS = 2

# Why a device follows from outside whose user has chosen that.
WANTED = "it was started with --standby always"

_MBIT = 1e6 / 8


@dataclass(frozen=True, slots=True)
class Costly:
    """Without `left_out` a step would take about `without_s` instead of `step_s` seconds.

    `alone` is the device of the others that would even by itself be faster than all together, with
    a step of `alone_s`; b"" if there is none.
    """

    left_out: tuple[bytes, ...]
    step_s: float
    without_s: float
    alone: bytes = b""
    alone_s: float = 0.0


def reason(step_s: float, without_s: float, rate: float | None) -> str:
    """Return why a device stands by: a step takes `step_s` with it and `without_s` without it, and
    its fastest link carries `rate` bytes/s, None if that is not known."""
    link = f"; its fastest link carries {rate / _MBIT:.3g} Mbit/s" if rate else ""
    return (
        f"with it a step would take about {_seconds(step_s)} s instead of "
        f"{_seconds(without_s)} s{link}"
    )


def _seconds(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
