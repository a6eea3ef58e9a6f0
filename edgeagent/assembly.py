"""Until when a device that has founded a cluster keeps its first work from its trainer, because its
user wants others to be there before training begins (`--wait-for`). Who is there and the time in,
whether work is kept and what is to be told out. Pure.

- Devices become members between two steps only, so before the first step is done the founder is the
  only one. Those count that are let in and linked: they need nothing more than a step.
- Work is kept from the trainer, and not from the node. For the protocol this device is a member
  whose trainer takes its time, so that others find it, are let in, and wait at no cost.
- Once work was given, a device that is lost stops nothing. Until the first newcomer is a member the
  next steps wait only for those that copy the state beside the training, which they can do without
  a step; the founder would train alone for as long as the copy of a large state takes.
- The number is a matter of the founder alone. A device that joins keeps no work; if it has to found
  a cluster itself before any step was done, its own number counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

# A number of devices that is no new high is told at most this often, because the links of a device
# may break and be made again and again.
TELL_AGAIN_SECONDS = 10.0


class Stage(StrEnum):
    """Where the device stands."""

    OUTSIDE = "outside"  # it has founded no cluster
    WAITING = "waiting"  # too few devices are there
    ENTERING = "entering"  # enough are there; the first steps let them in
    OVER = "over"  # nothing is kept any more


@dataclass(frozen=True, slots=True)
class Present:
    """Who is there: `members`, this device included, and the newcomers that are `linked`, so that a
    step brings them on. `copying`: one of these gets on without a step, since it copies the state
    beside the training, or waits for others with which it will."""

    members: int = 1
    linked: int = 0
    copying: bool = False


class Assembly:
    """The wait of one device for others; `wanted` counts the device itself, so 1 is no wait."""

    def __init__(self, wanted: int) -> None:
        self.stage = Stage.OUTSIDE if wanted > 1 else Stage.OVER
        self.wanted = wanted
        self.here = 1
        self._copying = False
        self._given = False  # since this cluster was founded, work was given to the trainer
        self._stepped = False  # the trainer has applied an update, with whomever
        self._told: int | None = None  # what was told last, and when,
        self._told_at = 0.0
        self._most_told = 0  # and the highest number that was told

    @property
    def looks(self) -> bool:
        """Whether it matters who is there."""
        return self.stage in (Stage.WAITING, Stage.ENTERING)

    @property
    def waits(self) -> bool:
        """Whether training does not begin because too few devices are there."""
        return self.stage is Stage.WAITING

    @property
    def keeps_work(self) -> bool:
        """Whether work is kept from the trainer."""
        return self.waits or (self.stage is Stage.ENTERING and self._copying)

    def founded(self) -> None:
        """This device founds a cluster."""
        if self.stage is Stage.OUTSIDE:
            self.stage = Stage.WAITING
            self.here, self._given, self._told, self._most_told = 1, False, None, 0

    def gone(self) -> None:
        """This device has no part in a cluster any more."""
        if self.stage is not Stage.OVER:
            self.stage = Stage.OVER if self._stepped else Stage.OUTSIDE

    def stepped(self) -> None:
        """An update is in the state here."""
        self._stepped = True
        if self.stage is Stage.OUTSIDE:
            self.stage = Stage.OVER

    def look(self, now: float, present: Present) -> bool:
        """Take note of who is there at the time `now` (s); return whether to tell the user of
        `here`."""
        if not self.looks:
            return False
        self.here, self._copying = present.members + present.linked, present.copying
        if not self._given:
            self.stage = Stage.ENTERING if self.here >= self.wanted else Stage.WAITING
            tells = self._tells(now)
            self._given = not self.keeps_work
            return tells
        if present.members > 1 or not present.linked:
            self.stage = Stage.OVER
        return False

    def _tells(self, now: float) -> bool:
        """Whether to tell how many are here; a new high is told at once."""
        if self.here == self._told:
            return False
        if self.here <= self._most_told and now - self._told_at < TELL_AGAIN_SECONDS:
            return False
        self._told, self._told_at = self.here, now
        self._most_told = max(self._most_told, self.here)
        return True
