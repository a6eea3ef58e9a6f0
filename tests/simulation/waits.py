"""Nobody waits without limit: looked at all through a history, not only at its end.

Law: whoever runs goes on within a stated time of the world's clock, counted from its last step and
from the last fault that began or ended anywhere. A member goes on with each iteration; a device
that is none becomes one. Longer waits only those for whom one of these holds, each of which has an
end that the history itself brings about:

- the device is asleep;
- no trainer answers, of all the members that this one can reach;
- the trainer of one of them does not, and may take that long (`protocols/member/trainer_debt.py`);
- the trainer of a joiner that may have been named does not, and may take that long;
- it is a member without a quorum in reach, and members are told to pause then;
- it is no member, and there is none that it can reach over paths that pass whole frames, or its own
  trainer does not answer.

While a member keeps its state unchanged for a joiner that copies it, `JOIN_PROGRESS_SECONDS` more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocols import limits
from protocols.cluster.view import is_quorum
from protocols.member.cycle import CycleState

if TYPE_CHECKING:
    from tests.simulation.harsh import HarshWorld
    from tests.simulation.host import Host

LOOK_SECONDS = 1.0
MEMBER_SECONDS = 35.0  # 10 for silent members, 8 for a half, fences and elections that fail
NARROW_SECONDS = 15.0  # more where frames are swallowed: three stalls, then another way
JOINER_SECONDS = 90.0  # several joins may fail, one after the other


@dataclass
class Standing:
    """Where one stands, since when, what it has waited for meanwhile and how long it may."""

    mark: tuple[object, ...]
    since: float
    what: str
    most: float


class Waits:
    """Since when everybody of one world waits."""

    def __init__(self, world: HarshWorld) -> None:
        self._world = world
        self._look_at = 0.0
        self.disturbed_at = 0.0  # when a fault began or ended last
        self._standing: dict[bytes, Standing] = {}
        self.longest: dict[str, float] = {}  # that anybody has waited, by what for

    def disturb(self) -> None:
        """A fault begins or ends."""
        self.disturbed_at = self._world.now

    def look(self) -> None:
        """Some time has passed."""
        now = self._world.now
        if now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        for host in list(self._world.hosts.values()):
            here, what, most = self._mark(host), *self._limit(host)
            known = self._standing.get(host.me.node)
            moved = known is None or known.mark != here or known.since < self.disturbed_at
            if known is None or moved or host.gone is not None or self._is_excused(host):
                known = self._standing[host.me.node] = Standing(here, now, what, most)
            if most > known.most:
                known.what, known.most = what, most
            self._judge(host, known, now - known.since)

    def _mark(self, host: Host) -> tuple[object, ...]:
        """What changes when `host` goes on."""
        if not host.is_member or host.node is None:
            return (id(host), "out")
        context = host.node.context
        return (id(host), host.life, context.lineage, context.iteration)

    def _judge(self, host: Host, standing: Standing, waited: float) -> None:
        what = standing.what
        self.longest[what] = max(waited, self.longest.get(what, 0.0))
        assert waited <= standing.most, (
            f"{host.me.name} waits without limit: {what}, for {waited:.0f} s\n"
            f"{self._world.describe()}"
        )

    def _limit(self, host: Host) -> tuple[str, float]:
        """What `host` may wait for, and how long."""
        if not host.is_member:
            return "to become a member", JOINER_SECONDS
        most = MEMBER_SECONDS + (NARROW_SECONDS if self._world.narrow.active else 0.0)
        hosts = self._world.hosts.values()
        cycles = [h.node.cycle for h in hosts if h.is_member and h.node is not None]
        if any(cycle.state is CycleState.HOLDING for cycle in cycles):
            return "for the copy of a joiner", most + limits.JOIN_PROGRESS_SECONDS
        return "for an iteration", most

    def _is_excused(self, host: Host) -> bool:
        world = self._world
        if host.asleep:
            return True
        others = [h for h in world.hosts.values() if h is not host and h.is_member]
        near = [h for h in others if world.passes(host, h) and world.passes(h, host)]
        if not host.is_member or host.node is None:
            return host.hangs or not near or any(h.has_time for h in near)
        policy = host.node.context.policy
        nodes = policy.view.nodes if policy is not None else ()
        here = [h for h in (host, *near) if h.me.node in nodes]
        if any(h.has_time for h in world.hosts.values() if h.gone is None and not h.is_member):
            return True
        if all(h.hangs for h in here) or any(h.has_time for h in here):
            return True
        return world.pauses and not is_quorum(nodes, [h.me.node for h in here])
