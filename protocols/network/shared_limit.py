"""What a device can carry over all its links together, if that is less than they could alone.

While several links have more to carry, what they carry together is compared with what each of them
was seen to carry alone. If it is much less, the device has a limit. Which of its links a plan uses
then matters less than how much it has the device send or receive, so plans are made with the limit
(NetStorm knows links only).

What a link carries beside others says little about the link itself once there is a limit, so plans
are then made with what it carries alone. Otherwise the rates would sink to a part of the limit, the
limit would seem to be gone, and plans would swing to and fro.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from protocols.network.together import Shared

BELOW = 0.85  # together they carry less than this part of what they could alone
WINDOWS = 5  # the limit is the best of so many
LEAST_WINDOWS = 2  # before there is one
FREE_WINDOWS = 3  # in a row without a limit, after which there is none any more


class SharedLimit:
    """The limit of one device in one direction."""

    def __init__(self) -> None:
        self._seen: deque[float] = deque(maxlen=WINDOWS)  # bytes/s of all links together
        self._free = 0

    @property
    def value(self) -> float | None:
        """Payload bytes/s, None if there is no limit, or none is known. Of several windows the best
        counts: a receiver that pauses, or a busy processor, makes one too low, and hardly anything
        makes one too high."""
        return max(self._seen) if len(self._seen) >= LEAST_WINDOWS else None

    def saw(self, shared: Shared, alone: Mapping[bytes, float]) -> None:
        """Take what links have carried together; `alone`: what each of them carries by itself, in
        payload bytes/s, as far as is known."""
        rates = [alone.get(node, 0.0) for node, _ in shared.carried]
        if len(rates) < 2 or not all(rates):
            return
        together, apart = sum(size for _, size in shared.carried) / shared.seconds, sum(rates)
        if together < BELOW * apart:
            self._seen.append(together)
            self._free = 0
        elif self.value is None or apart > self.value:
            # With slower links than the limit it would not have shown whether there still is one.
            self._free += 1
            if self._free >= FREE_WINDOWS:
                self._seen.clear()
