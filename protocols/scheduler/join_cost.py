"""How long a join makes the others stand, and whether that is too long.

Law: while a joiner copies the state the others hold their update, for as long as its links take to
carry the state and a round's gradients. That must not be longer than what is allowed, or than a few
usual steps if those are longer. It is estimated before the pull begins and watched while it lasts;
whoever is refused is told why, with the figures, and asks again later.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median

USUAL_STEPS = 3  # a join may stop the others for as long as so many of their steps
LEAST_PACES = 3  # steps after which what is usual counts as known
PACES = 20
RECENT = 5
SEEN_S = 3.0  # a pull has told how fast it is after so long
SLACK = 1.5  # and is given up if it will take so many times what is allowed
SMALL_BYTES = 4_000_000  # a state that takes any link a moment only
MBIT = 1e6 / 8  # bytes/s


@dataclass(slots=True)
class Pace:
    """How long this node's steps take."""

    _times: deque[float] = field(default_factory=lambda: deque(maxlen=PACES))
    _last: float | None = None

    def applied(self, now: float) -> None:
        """An update is done."""
        if self._last is not None:
            self._times.append(now - self._last)
        self._last = now

    @property
    def usual_s(self) -> float:
        """The median step, 0 while it is not known."""
        return median(self._times) if len(self._times) >= LEAST_PACES else 0.0

    @property
    def recent_s(self) -> float:
        """The median of the last few steps, 0 while it is not known."""
        return median(list(self._times)[-RECENT:]) if len(self._times) >= LEAST_PACES else 0.0

    def since(self, now: float) -> float:
        """Seconds since the last update, 0 while there was none."""
        return 0.0 if self._last is None else max(0.0, now - self._last)


@dataclass(frozen=True, slots=True)
class JoinCost:
    """`state_bytes`: what a joiner copies, and `gradient_bytes` of a round that it needs then;
    `allowed_s`: how long the others may stand for that, 0 for as long as it takes; `pace`: their
    steps."""

    state_bytes: int = 0
    gradient_bytes: int = 0
    allowed_s: float = 0.0
    pace: Pace = field(default_factory=Pace)

    @property
    def most_s(self) -> float:
        """How long the others may stand."""
        if not self.allowed_s:
            return math.inf
        return max(self.allowed_s, USUAL_STEPS * self.pace.usual_s)

    def has_to_know(self, rates: tuple[int, ...]) -> bool:
        """Whether nothing is known of the links of a joiner, and it matters."""
        matters = self.allowed_s > 0 and self.state_bytes > SMALL_BYTES
        return matters and bool(rates) and not any(rates)

    def refusal(self, name: str, rates: tuple[int, ...]) -> str:
        """Return why a joiner whose links carry `rates` (bytes/s, 0: not known) is not let in, ""
        if it is. What is not known is taken for the mean of what is."""
        known = [rate for rate in rates if rate]
        if not known:
            return ""
        rate = sum(known) * len(rates) / len(known)
        seconds = (self.state_bytes + self.gradient_bytes) / rate
        if seconds <= self.most_s:
            return ""
        links = "the link" if len(rates) == 1 else "the links"
        verb = "carries" if len(rates) == 1 else "carry"
        return (
            f"joining would stop the others for about {seconds:.0f} s: the state is "
            f"{self.state_bytes / 1e6:.3g} MB, the gradients {self.gradient_bytes / 1e6:.3g} MB, "
            f"and {links} to {name} {verb} {rate / MBIT:.3g} Mbit/s. {self._how_to_allow}"
        )

    def too_slow(self, name: str, seconds: float, pulled_bytes: int) -> str:
        """Return why a joiner that pulled so much in `seconds` is given up, "" if it is not."""
        if seconds < SEEN_S or pulled_bytes == 0:
            return ""
        whole = seconds * (self.state_bytes + self.gradient_bytes) / pulled_bytes
        if whole <= SLACK * self.most_s:
            return ""
        return (
            f"joining would stop the others for about {whole:.0f} s: {name} copied "
            f"{pulled_bytes / 1e6:.3g} of {self.state_bytes / 1e6:.3g} MB in {seconds:.0f} s. "
            f"{self._how_to_allow}"
        )

    def too_long(self, name: str) -> str:
        """Return why a joiner is given up that is still pulling after all that time."""
        return f"{name} has stopped the others for {self.most_s:.0f} s. {self._how_to_allow}"

    @property
    def _how_to_allow(self) -> str:
        return (
            f"At most {self.most_s:.0f} s are allowed; use a faster link, or start the others with "
            f"--join-stall SECONDS"
        )
