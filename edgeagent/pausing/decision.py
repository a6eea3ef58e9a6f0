"""Whether a device pauses: facts about it and the time in, the reasons to pause out. Pure.

- A fact that is not known is no reason to pause: a device that helps is better than one that stands
  still because a program is not installed.
- A condition that comes and goes (a plug that is pushed in, a link that is renewed) changes nothing
  before it has lasted: `BEGIN_SECONDS` to pause, `END_SECONDS` to go on. Whether the device is used
  is told by how long ago that was, which needs no such delay.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

BEGIN_SECONDS = 3.0
END_SECONDS = 10.0
# For how long a device keeps work from its trainer while other members wait for it.
HOLD_SECONDS = 30.0


class Reason(StrEnum):
    """Why a device pauses."""

    BATTERY = "battery"
    ACTIVITY = "activity"
    METERED = "metered"


@dataclass(frozen=True, slots=True)
class Wishes:
    """When the user wants this device to pause. `activity_s`: while it was used within so many
    seconds; 0 for never."""

    battery: bool = False
    activity_s: int = 0
    metered: bool = False

    @property
    def any(self) -> bool:
        """Whether it is to pause at all."""
        return self.battery or self.activity_s > 0 or self.metered

    def text(self, reason: Reason) -> str:
        """Return a reason to pause in words, as the end of a sentence."""
        match reason:
            case Reason.BATTERY:
                return "this device runs on battery"
            case Reason.ACTIVITY:
                return f"this device was used within the last {self.activity_s} s"
            case Reason.METERED:
                return "this device's network connection is metered"


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a device; None for what is not. `idle_s`: for how many seconds nobody has
    used it."""

    on_battery: bool | None = None
    idle_s: float | None = None
    metered: bool | None = None


class Pausing:
    """The decision for one device."""

    def __init__(self, wishes: Wishes) -> None:
        self._wishes = wishes
        self._holds: dict[Reason, bool] = {}  # which conditions are reasons to pause
        self._other_since: dict[Reason, float] = {}  # since when a condition is not as it counts
        self.unknown: tuple[Reason, ...] = ()  # wishes that cannot be followed at present

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Why this device pauses; () if it does not."""
        return tuple(reason for reason in Reason if self._holds.get(reason))

    def see(self, now: float, facts: Facts) -> None:
        """Take note of `facts`, which are those of the time `now` (s)."""
        wishes, found = self._wishes, dict[Reason, bool | None]()
        if wishes.battery:
            found[Reason.BATTERY] = facts.on_battery
        if wishes.activity_s:
            idle = facts.idle_s
            found[Reason.ACTIVITY] = None if idle is None else idle < wishes.activity_s
        if wishes.metered:
            found[Reason.METERED] = facts.metered
        self.unknown = tuple(reason for reason, holds in found.items() if holds is None)
        for reason, holds in found.items():
            self._note(now, reason, bool(holds))

    def _note(self, now: float, reason: Reason, holds: bool) -> None:
        if holds is self._holds.get(reason, False):
            self._other_since.pop(reason, None)
            return
        since = self._other_since.setdefault(reason, now)
        lasts = BEGIN_SECONDS if holds else END_SECONDS
        if reason is Reason.ACTIVITY or now - since >= lasts:
            self._holds[reason] = holds
            del self._other_since[reason]


@dataclass(frozen=True, slots=True)
class Part:
    """What part a device has in its cluster: whether it wants to leave (`departs`), whether
    newcomers wait for the end of its iteration (`newcomers`), and whether it is not the only
    member (`others`)."""

    departs: bool = False
    newcomers: bool = False
    others: bool = False


class Keeping:
    """Whether the work of a device that pauses is kept from its trainer."""

    def __init__(self) -> None:
        self._since = 0.0  # since when work has been kept

    def keeps(self, reasons: tuple[Reason, ...], part: Part) -> bool:
        """Whether work is kept: it is not where a newcomer or this device itself waits for the end
        of the iteration. A device with a metered connection lets nobody in."""
        newcomers = part.newcomers and Reason.METERED not in reasons
        return bool(reasons) and not (part.departs or newcomers)

    def lets_out(self, now: float, part: Part, *, is_kept: bool) -> bool:
        """Whether what is kept is let out once, because the other members have waited for it for
        `HOLD_SECONDS` at the time `now`. `is_kept`: there is work that is kept."""
        if not is_kept:
            self._since = now
        if not part.others or now - self._since < HOLD_SECONDS:
            return False
        self._since = now
        return True
