"""Which faults a random history has, and how many of them; drawn from the seed.

Each kind draws from a random stream of its own, seeded by (seed, kind), so that all draws of the
other kinds stay the same if one kind is turned off; `shrink` needs that. For control frames the
number is a probability, for links, devices and people it is a count.

A real link is a TCP connection, which neither loses nor doubles frames. These kinds stand for
relays, retries and broken links, and are rare. Flooded messages travel over every path and are lost
only together with links.
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

HITTING_KINDS = (  # kinds from which members need time to recover: waits may then be longer
    *LINK_KINDS,
    *PARTITION_KINDS,
    *DEVICE_KINDS,
    *RESTART_KINDS,
    *AMBUSH_KINDS,
)

# How likely these kinds are to be in a history at all.
_OFTEN = {
    "crash": 0.4,
    "ambush": 0.4,
    "leave": 0.3,
    "join": 0.3,
    "measure": 0.3,
    "restart": 0.7,
    "restart_blank": 0.3,
}
_RARELY = 0.16  # the same for all other kinds
_MOST = {"truncate": 0.002, "loss": 0.02}  # the largest probabilities for one frame
_MOST_PROBABLE = 0.1  # the same for all other kinds of frames
_MOST_TIMES = 3  # how often a kind that is counted happens at most
_CHANCES = ("restart", "restart_blank", "drift")  # neither counted nor drawn for a frame


@dataclass(frozen=True)
class Intensities:
    """How much of each kind of fault a history has."""

    loss: float = 0.0  # a control frame is lost on one link
    delay: float = 0.0  # a control frame and all behind it on that link come late
    reorder: float = 0.0  # a control frame comes late, but those behind it do not
    duplicate: float = 0.0  # a control frame comes twice
    truncate: float = 0.0  # a control frame comes in part, so the receiver closes the link
    stall: float = 0.0  # one direction of a link carries nothing for a while
    cut: float = 0.0  # a link breaks, and all that is on its way is lost
    split: float = 0.0  # a partition into two sides
    one_way: float = 0.0  # a partition in which one side hears the other, but not the reverse
    isolate: float = 0.0  # one device reaches no other
    bridge: float = 0.0  # a partition in which only one device reaches both sides
    crash: float = 0.0  # an agent is killed; one time in four another one at the same time
    power_off: float = 0.0  # a device falls silent for good
    pause: float = 0.0  # a device sleeps for a while
    clock_step: float = 0.0  # a device's clock jumps ahead
    drift: float = 0.0  # by how much clocks run fast or slow at most, as a fraction
    restart: float = 0.0  # how likely a dead device comes back with its disk
    restart_blank: float = 0.0  # how likely it comes back without its disk
    ambush: float = 0.0  # a fault hits the sender or receiver of a message of a negotiation
    leave: float = 0.0  # a user wants a device to leave
    join: float = 0.0  # a new device comes
    measure: float = 0.0  # a device measures links and speeds that differ much from before
    hang: float = 0.0  # a trainer does not answer for a while
    away: float = 0.0  # a trainer's script says that it is away for a while
    small_frames: float = 0.0  # a path carries small frames only, for a while or for ever

    @property
    def active(self) -> tuple[str, ...]:
        """The kinds of faults that this history has."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) > 0)

    def without(self, kind: str) -> Intensities:
        """Return the same intensities with one kind turned off."""
        return replace(self, **{kind: 0.0})


def stream(seed: int, kind: str) -> random.Random:
    """Return the random stream of one kind of fault."""
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
