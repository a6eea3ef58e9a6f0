"""How a joiner copies the state, how long that stops the other members, and whether that is too
long.

A joiner can copy beside the training: nobody waits, but the joiner also receives every update since
its snapshot, so it catches up only if its links carry more than the members' updates. Or the others
hold their update while it copies, for as long as its links take to carry the state and the
gradients of one round. That is simpler, and does as well for a state that is copied in a moment.

The time for which the others hold must not exceed what the user allows, or a few usual steps if
those take longer. It is estimated before the pull begins, and watched while the pull lasts. A
joiner that is refused is told why, with the figures, and asks again later.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

from protocols import limits

# In any case a join may stop the others for as long as this many of their steps.
USUAL_STEPS = 3
# For how many seconds at least a joiner may stop them that has copied beside the training.
REST_S = 5.0
# So many updates it lacks at most, as a rule.
REST_UPDATES = 2
# The usual time of a step is known after this many steps.
LEAST_PACES = 3
# It is the median of this many steps.
PACES = 20
# The recent time of a step is the median of this many steps.
RECENT = 5
# Seconds after which the speed of a pull is judged; before, it is not known well enough.
SEEN_S = 3.0
# A pull is given up if by its speed it will take this many times what is allowed.
SLACK = 1.5
# Bytes of a state that is so small that even a slow link carries it in a few seconds, 8 s at
# 1 Mbit/s: nothing is measured.
SMALL_BYTES = 1_000_000
# Gradients up to this size hardly slow a step down, whatever the links of a joiner carry.
SMALL_GRADIENT_BYTES = 65_536
# Bytes/s of one megabit/s.
MBIT = 1e6 / 8


# A joiner copies beside the training only if the updates take at most this part of what its
# links carry: with the rest it has to copy the state, and to catch up.
MOST_UPDATE_SHARE = 0.5
# After so many copies that have failed a joiner makes the others hold their update. One may have
# failed for reasons that have nothing to do with it, such as a source that was killed.
MOST_FAILED_COPIES = 2
# While a state is copied that takes no longer than this, the others may as well hold their update.
MOMENT_S = 0.25


class JoinWay(StrEnum):
    """How joiners copy the state, as the scheduler's user wants it."""

    # AUTO: beside the training where that works and saves the others more than a moment. BESIDE:
    # beside the training, always. PAUSE: the others hold their update meanwhile, always.
    AUTO = "auto"
    BESIDE = "log"
    PAUSE = "pause"


@dataclass(slots=True)
class Pace:
    """How long this node's steps take, in seconds from one update to the next."""

    _times: deque[float] = field(default_factory=lambda: deque(maxlen=PACES))
    _last: float | None = None

    def applied(self, now: float) -> None:
        """Note that an update was applied at the time `now`."""
        if self._last is not None:
            self._times.append(now - self._last)
        self._last = now

    @property
    def usual_s(self) -> float:
        """The median time of the last `PACES` steps, 0 while it is not known."""
        return median(self._times) if len(self._times) >= LEAST_PACES else 0.0

    @property
    def recent_s(self) -> float:
        """The median time of the last `RECENT` steps, 0 while it is not known."""
        return median(list(self._times)[-RECENT:]) if len(self._times) >= LEAST_PACES else 0.0

    def is_long(self, now: float, seconds: float) -> bool:
        """Whether the running step, or the one before it, takes at least so many seconds, or no
        update was applied yet."""
        if self._last is None:
            return True
        return now - self._last >= seconds or (bool(self._times) and self._times[-1] >= seconds)

    def since(self, now: float) -> float:
        """Seconds since the last update, 0 while there was none."""
        return 0.0 if self._last is None else max(0.0, now - self._last)

    def longest_s(self, now: float) -> float:
        """The longer of the last step and of what the running one has taken, 0 while there was no
        update. The median says nothing of steps that have just become long."""
        return max(self.since(now), self._times[-1] if self._times else 0.0)


@dataclass(frozen=True, slots=True)
class JoinCost:
    """What a join costs the others. `state_bytes`: what a joiner copies; `gradient_bytes`: what it
    then receives of the running round; `allowed_s`: how long it may stop the others, 0 for as long
    as it takes; `pace`: how long their steps take. `constant_bytes` of the state never change while
    training; a joiner that has them, as their digest `constants` shows, need not copy them.
    `stands_by`: whether a joiner that would slow the others down is not let in (`standby.py`).
    `update_bytes`: what a joiner that copies beside the training receives of each update, 0 if
    joiners cannot copy in that way; `way`: how they copy."""

    state_bytes: int = 0
    gradient_bytes: int = 0
    allowed_s: float = 0.0
    pace: Pace = field(default_factory=Pace)
    constant_bytes: int = 0
    constants: bytes = b""
    update_bytes: int = 0
    way: JoinWay = JoinWay.AUTO
    stands_by: bool = False

    def goes_beside(self, rates: tuple[int, ...], constants: bytes = b"", failed: int = 0) -> bool:
        """Whether a joiner whose links carry `rates` (bytes/s, 0: not known) copies beside the
        training. `constants` is the digest of those that it has, and so many of its copies have
        `failed` before."""
        if not self.update_bytes or self.way is JoinWay.PAUSE:
            return False
        if self.way is JoinWay.BESIDE:
            return True
        if failed >= MOST_FAILED_COPIES:
            return False
        rate, size = self._rate(rates), self._size(constants)
        if not rate:
            return size > SMALL_BYTES
        step = self.pace.recent_s
        if (size + self.gradient_bytes) / rate <= max(MOMENT_S, step):
            return False
        return not step or self.update_bytes / step <= MOST_UPDATE_SHARE * rate

    def can_follow(self, rates: tuple[int, ...], failed: int = 0) -> bool:
        """Whether a device whose links carry `rates` can follow the training from outside: they
        carry every update, as far as that is known. `failed` as in `goes_beside`."""
        if not self.update_bytes or self.way is JoinWay.PAUSE or failed >= MOST_FAILED_COPIES:
            return False
        rate, step = self._rate(rates), self.pace.recent_s
        return not rate or not step or self.update_bytes / step <= MOST_UPDATE_SHARE * rate

    def waits_s(
        self, rates: tuple[int, ...], constants: bytes = b"", *, beside: bool = True
    ) -> tuple[float, float]:
        """For how many seconds a joiner waits for others, so that all copy together: (if none is
        known to come, while others are on the way). `beside`: it copies beside the training; if the
        others hold their update for it, and only for a moment, it need not wait."""
        rate = self._rate(rates)
        copy_s = self._size(constants) / rate if rate else 0.0
        if not beside and copy_s < MOMENT_S:
            return 0.0, 0.0
        gather = min(limits.JOIN_GATHER_PART * copy_s, limits.JOIN_GATHER_SECONDS)
        batch = min(limits.JOIN_BATCH_PART * copy_s, limits.MOST_BATCH_SECONDS)
        return gather, max(limits.JOIN_BATCH_SECONDS, batch)

    def _rate(self, rates: tuple[int, ...]) -> float:
        """Return what links with these rates carry together, in bytes/s, 0.0 if no rate is known. A
        link whose rate is not known is assumed to carry the mean of the others."""
        known = [rate for rate in rates if rate]
        return sum(known) * len(rates) / len(known) if known else 0.0

    def _size(self, constants: bytes) -> int:
        """Return how many bytes of the state a joiner with these `constants` copies."""
        has_them = bool(constants) and constants == self.constants
        return self.state_bytes - (self.constant_bytes if has_them else 0)

    @property
    def most_s(self) -> float:
        """For how many seconds a join may stop the others."""
        if not self.allowed_s:
            return math.inf
        return max(self.allowed_s, USUAL_STEPS * self.pace.usual_s)

    def most_of_rest_s(self, rates: tuple[int, ...] = ()) -> float:
        """For how many seconds a joiner whose links carry `rates` may stop the others that has
        copied the state beside the training and lacks a few updates. It applies them in less than a
        few steps, unless its trainer hangs, and its links need time for them if they are large."""
        rate = self._rate(rates)
        copies_s = SLACK * REST_UPDATES * self.update_bytes / rate if rate else 0.0
        return min(self.most_s, max(REST_S, USUAL_STEPS * self.pace.usual_s, copies_s))

    def has_to_know(self, rates: tuple[int, ...]) -> bool:
        """Whether the rates of a joiner's links have to be measured before it is let in: none is
        known, and it matters for how long the copy, or each step with it, takes."""
        pauses = self.allowed_s > 0 and self.state_bytes > SMALL_BYTES
        slows = self.stands_by and self.gradient_bytes > SMALL_GRADIENT_BYTES
        return (pauses or slows) and bool(rates) and not any(rates)

    def refusal(self, name: str, rates: tuple[int, ...], constants: bytes = b"") -> str:
        """Return why a joiner whose links carry `rates` (bytes/s, 0: not known) is not let in, ""
        if it is. `constants` is the digest of those that it has."""
        rate, size = self._rate(rates), self._size(constants)
        if not rate:
            return ""
        seconds = (size + self.gradient_bytes) / rate
        if seconds <= self.most_s:
            return ""
        links = "the link" if len(rates) == 1 else "the links"
        verb = "carries" if len(rates) == 1 else "carry"
        return (
            f"joining would stop the others for about {seconds:.0f} s: the state is "
            f"{size / 1e6:.3g} MB, the gradients {self.gradient_bytes / 1e6:.3g} MB, "
            f"and {links} to {name} {verb} {rate / MBIT:.3g} Mbit/s. {self._how_to_allow}"
        )

    def feed_s(self, rate: int) -> float:
        """For how many seconds a parent whose link to a joiner carries `rate` bytes/s sends it the
        result of one round."""
        return self.gradient_bytes / rate

    def too_slow(self, name: str, seconds: float, pulled_bytes: int, total_bytes: int) -> str:
        """Return why a joiner that pulled `pulled_bytes` of `total_bytes` in `seconds` is given up,
        "" if it is not given up."""
        if seconds < SEEN_S or pulled_bytes == 0:
            return ""
        whole = seconds * (total_bytes + self.gradient_bytes) / pulled_bytes
        if whole <= SLACK * self.most_s:
            return ""
        return (
            f"joining would stop the others for about {whole:.0f} s: {name} copied "
            f"{pulled_bytes / 1e6:.3g} of {total_bytes / 1e6:.3g} MB in {seconds:.0f} s. "
            f"{self._how_to_allow}"
        )

    def too_long(self, name: str, seconds: float) -> str:
        """Return why a joiner is given up that has stopped the others for so many seconds."""
        if seconds >= self.most_s:
            return f"{name} has stopped the others for {seconds:.0f} s. {self._how_to_allow}"
        return (
            f"{name} has stopped the others for {seconds:.0f} s after it had copied the state, and "
            "has not caught up: its trainer or its link is too slow at present"
        )

    @property
    def _how_to_allow(self) -> str:
        return (
            f"At most {self.most_s:.0f} s are allowed: use a faster link, or start the others with "
            "a larger --join-stall SECONDS (0: no limit)"
        )
