"""Checks that no device waits without limit, all through a random history and not only at its end.

A device that hangs for an hour and then goes on would end its history well, so the end shows
nothing. Every device that runs has to make progress within a stated time of the world's clock: a
member finishes an iteration, and a device that is not a member becomes one. The time counts from
the device's last progress or from the last moment at which a fault began or ended anywhere,
whichever is later. A device may wait longer only while one of these holds, each of which ends in
the course of the history:

- The device is asleep.
- It is a member, and no trainer answers of all the members that it can reach, itself included.
- It is a member, the trainer of a member that it can reach does not answer, and the protocol still
  allows that trainer time (`protocols/member/trainer_debt.py`).
- It is a member, and the same holds for a device that is joining and that a plan may name already.
- It is a member that cannot reach a quorum, and members pause in that case.
- It is not a member, and either it reaches no member over paths that pass whole frames, or its own
  trainer or that of a member in reach does not answer. A link that a member has given up, since it
  stood still again and again, is no such path.
- It is not a member, and its user wants it to follow from outside.

A truncated frame ends its link, and each such link costs a fence, so members may take
`BREAK_SECONDS` more for each one that ended meanwhile, and others `JOIN_BREAK_SECONDS`, because a
fence ends their joins.

While any member keeps its state unchanged for a joiner that copies it, all members may take
`JOIN_PROGRESS_SECONDS` more. Members that lack a part of a divided optimizer's state may wait for
it for ever or, if they are to go on or stop without it, `PARTS_WAIT_SECONDS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocols import limits
from protocols.cluster.stripes import OnLost
from protocols.cluster.view import is_quorum
from protocols.member.cycle_table import CycleState
from tests.simulation.sharding import holds_alone, lost_stripes

if TYPE_CHECKING:
    from tests.simulation.harsh import HarshWorld
    from tests.simulation.host import Host

# All times are seconds of the world's clock.
# How often the devices are looked at: more often would slow down the histories.
LOOK_SECONDS = 1.0
# How long a member may take for an iteration. About 10 pass until a silent member is expelled and 8
# until the half of a divided cluster goes on; the rest is for fences and elections that fail.
MEMBER_SECONDS = 35.0
# How much longer it may take where large frames are swallowed: three stalls of a link pass until
# another way is tried.
NARROW_SECONDS = 15.0
# How long a device may take to become a member: several joins may fail, one after the other.
JOINER_SECONDS = 90.0
# How much longer for each device beyond `FEW_DEVICES`: a join takes several rounds, and where many
# devices are in one line a round lasts seconds, since it passes all of them twice.
FEW_DEVICES = 8
JOIN_DEVICE_SECONDS = 5.0
# How much longer where members train in rounds of local steps or of subnets: a round lasts several
# seconds there, and a join several rounds.
LONG_ROUNDS_SECONDS = 90.0
# How much longer a device may take for each link that ended because a frame was truncated. Where
# many members talk much, one ends every half second, and fences hardly come to an end. A fence ends
# all joins under way, and the next one takes some seconds, in a large and slow network more.
BREAK_SECONDS = 1.0
JOIN_BREAK_SECONDS = 10.0


@dataclass
class Standing:
    """How far one device is.

    `mark` changes whenever the device makes progress, and `since` is when it last did, or when a
    fault last began or ended. `what` is what it waits for, in words, and `most` how many seconds it
    may, beside those for links that broke; `breaks` of them had broken by `since`.
    """

    mark: tuple[object, ...]
    since: float
    what: str
    most: float
    breaks: int


class Waits:
    """Watches the progress of all devices of `world`."""

    def __init__(self, world: HarshWorld) -> None:
        self._world = world
        self._look_at = 0.0
        self.disturbed_at = 0.0  # when a fault last began or ended
        self.breaks = 0  # number of links that have ended because of a truncated frame
        self._standing: dict[bytes, Standing] = {}
        self.longest: dict[str, float] = {}  # the longest wait of any device, by what it was for

    def disturb(self) -> None:
        """Note that a fault begins or ends now, which gives everybody time anew."""
        self.disturbed_at = self._world.now

    def look(self) -> None:
        """Look at all devices if `LOOK_SECONDS` have passed since the last time.

        Raises AssertionError, naming the device, if one has waited for too long.
        """
        now = self._world.now
        if now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        for host in list(self._world.hosts.values()):
            here, what, most = self._mark(host), *self._limit(host)
            known = self._standing.get(host.me.node)
            moved = known is None or known.mark != here or known.since < self.disturbed_at
            if known is None or moved or host.gone is not None or self._is_excused(host):
                known = Standing(here, now, what, most, self.breaks)
                self._standing[host.me.node] = known
            if most > known.most:  # what allowed a longer wait once does so until it is over
                known.what, known.most = what, most
            self._judge(host, known, now - known.since)

    def _mark(self, host: Host) -> tuple[object, ...]:
        """Return a value that changes when `host` makes progress."""
        if not host.is_member or host.node is None:
            return (id(host), "out")
        context = host.node.context
        return (id(host), host.life, context.lineage, context.iteration)

    def _judge(self, host: Host, standing: Standing, waited: float) -> None:
        what = standing.what
        self.longest[what] = max(waited, self.longest.get(what, 0.0))
        each = BREAK_SECONDS if host.is_member else JOIN_BREAK_SECONDS
        more = each * (self.breaks - standing.breaks)
        assert waited <= standing.most + more, (
            f"{host.me.name} waits without limit: {what}, for {waited:.0f} s\n"
            f"{self._world.describe()}"
        )

    def _limit(self, host: Host) -> tuple[str, float]:
        """Return what `host` waits for, in words, and how many seconds it may."""
        gives_up = self._world.stripes and self._world.on_lost is not OnLost.WAIT
        more = limits.PARTS_WAIT_SECONDS if gives_up else 0.0
        if not host.is_member:
            more += LONG_ROUNDS_SECONDS if self._world.gathering is not None else 0.0
            more += JOIN_DEVICE_SECONDS * max(0, len(self._world.hosts) - FEW_DEVICES)
            return "to become a member", JOINER_SECONDS + more
        most = MEMBER_SECONDS + more + (NARROW_SECONDS if self._world.narrow.active else 0.0)
        hosts = self._world.hosts.values()
        cycles = [h.node.cycle for h in hosts if h.is_member and h.node is not None]
        if any(cycle.state is CycleState.HOLDING for cycle in cycles):
            return "for the copy of a joiner", most + limits.JOIN_PROGRESS_SECONDS
        return "for an iteration", most

    def _is_excused(self, host: Host) -> bool:
        """Return whether `host` may wait for longer, for a reason that the module names."""
        world = self._world
        if host.asleep:
            return True
        if host.me.node in world.outside and not host.is_member:
            return True
        present = [h for h in world.hosts.values() if h.gone is None]
        if world.on_lost is OnLost.WAIT and any(lost_stripes(h) for h in present):
            return True
        if any(h.hangs and holds_alone(h) for h in world.hosts.values() if h.is_member):
            return True  # nobody else can make its results
        others = [h for h in world.hosts.values() if h is not host and h.is_member]
        near = [h for h in others if world.passes(host, h) and world.passes(h, host)]
        if not host.is_member or host.node is None:
            near = [h for h in near if h.node and not h.node.recovery.gives_up(host.me.node)]
            return host.hangs or not near or any(h.has_time for h in near)
        policy = host.node.context.policy
        nodes = policy.view.nodes if policy is not None else ()
        here = [h for h in (host, *near) if h.me.node in nodes]
        if any(h.has_time for h in world.hosts.values() if h.gone is None and not h.is_member):
            return True
        if all(h.hangs for h in here) or any(h.has_time for h in here):
            return True
        return world.pauses and not is_quorum(nodes, [h.me.node for h in here])
