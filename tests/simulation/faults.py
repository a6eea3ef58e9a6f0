"""Which faults a random history has, and how many of them: drawn from the seed.

Law: each kind draws from a stream of its own, seeded by (seed, kind), so that turning one kind off
leaves all draws of the others as they are. A number is a probability for what happens to a control
frame, a count for what happens to links, devices and people. A real link is a TCP connection, which
loses or doubles nothing: those kinds stand for relays, retries and broken links, and are rare. What
is flooded runs over every path and is lost only with links.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields, replace

FRAME_KINDS = ("loss", "delay", "reorder", "duplicate", "truncate")
LINK_KINDS = ("stall", "cut", "small_frames")
PARTITION_KINDS = ("split", "one_way", "isolate", "bridge")
DEVICE_KINDS = ("crash", "power_off", "pause", "clock_step", "drift")
RESTART_KINDS = ("restart", "restart_blank")
AMBUSH_KINDS = ("ambush",)
PEOPLE_KINDS = ("leave", "join")
MEASURE_KINDS = ("measure",)
TRAINER_KINDS = ("hang", "away")
KINDS = (
    *FRAME_KINDS,
    *LINK_KINDS,
    *PARTITION_KINDS,
    *DEVICE_KINDS,
    *RESTART_KINDS,
    *AMBUSH_KINDS,
    *PEOPLE_KINDS,
    *MEASURE_KINDS,
    *TRAINER_KINDS,
)

HITTING_KINDS = (  # what takes somebody time to get over
    *LINK_KINDS,
    *PARTITION_KINDS,
    *DEVICE_KINDS,
    *RESTART_KINDS,
    *AMBUSH_KINDS,
)

_OFTEN = {
    "crash": 0.4,
    "ambush": 0.4,
    "leave": 0.3,
    "join": 0.3,
    "measure": 0.3,
    "restart": 0.7,
    "restart_blank": 0.3,
}
_RARELY = 0.16  # how likely a kind is to be there at all
_MOST = {"truncate": 0.002, "loss": 0.02}  # probabilities for one frame
_MOST_PROBABLE = 0.1
_MOST_TIMES = 3
_CHANCES = ("restart", "restart_blank", "drift")


@dataclass(frozen=True)
class Intensities:
    """How much of each kind a history has."""

    loss: float = 0.0  # a control frame is lost on one link
    delay: float = 0.0  # it and all behind it on that link come late
    reorder: float = 0.0  # it comes late, what follows does not
    duplicate: float = 0.0
    truncate: float = 0.0  # it comes in part, so the receiver closes the link
    stall: float = 0.0  # one direction of a link passes nothing for a while
    cut: float = 0.0  # a link breaks with all that is on its way
    split: float = 0.0  # a partition into two sides
    one_way: float = 0.0  # a partition through which one side hears the other, but not back
    isolate: float = 0.0  # one device reaches nobody
    bridge: float = 0.0  # two sides meet only in one device
    crash: float = 0.0  # an agent is killed; one time in four another one with it
    power_off: float = 0.0  # a device falls silent for good
    pause: float = 0.0  # a device sleeps for a while
    clock_step: float = 0.0  # a device's clock jumps ahead
    drift: float = 0.0  # most that clocks run fast or slow, as a fraction
    restart: float = 0.0  # how likely a dead device comes back with its disk
    restart_blank: float = 0.0  # how likely it comes back without
    ambush: float = 0.0  # something befalls the ends of a message of the negotiations
    leave: float = 0.0  # a user wants a device to leave
    join: float = 0.0  # a new device comes
    measure: float = 0.0  # a device finds its links and itself quite unlike before
    hang: float = 0.0  # a trainer answers nothing for a while
    away: float = 0.0  # its script does something else for a while, and says so
    small_frames: float = 0.0  # a path passes small frames only, for a while or for ever

    @property
    def active(self) -> tuple[str, ...]:
        """The kinds that there are."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) > 0)

    def without(self, kind: str) -> Intensities:
        """Return the same with a kind turned off."""
        return replace(self, **{kind: 0.0})


def stream(seed: int, kind: str) -> random.Random:
    """Return the random numbers of one kind."""
    return random.Random(f"{seed}:{kind}")


def draw(seed: int) -> Intensities:
    """Draw the intensities of a history."""
    return Intensities(**{kind: _amount(kind, stream(seed, f"intensity {kind}")) for kind in KINDS})


def _amount(kind: str, dice: random.Random) -> float:
    if dice.random() >= _OFTEN.get(kind, _RARELY):
        return 0.0
    if kind in FRAME_KINDS:
        return float(_MOST.get(kind, _MOST_PROBABLE) * 10 ** -dice.uniform(0, 2))
    if kind == "drift":
        return float(10 ** -dice.uniform(3, 5))
    if kind in _CHANCES:
        return dice.choice((0.3, 0.6, 1.0))
    return float(dice.randint(1, _MOST_TIMES))
