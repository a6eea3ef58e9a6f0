"""The agent around a host's node, as far as it looks for a cluster and comes back after a loss.

Law: decides nothing; the real `protocols.founding` does, and this does what `edgeagent/search.py`
and `edgeagent/agent.py` do around it. Every device hears of every address, as by multicast DNS. A
device whose cluster went on without it, or whose join failed, looks again; if nobody is there it
founds from its own state, unless half a pull lies on it: then it gives up after a while.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from protocols.effects import YieldWanted
from protocols.founding import (
    Ask,
    Found,
    Founding,
    FoundingEffect,
    FoundingState,
    GiveUp,
    Heard,
    JoinAt,
)
from protocols.joining import JoiningState

if TYPE_CHECKING:
    from protocols.view import Member
    from tests.simulation.harsh import HarshWorld
    from tests.simulation.host import Host

TICK_SECONDS = 0.25
ANSWER_SECONDS = 1.0  # how long a question into the void takes
REJOIN_SECONDS = 0.5


class Seeker:
    """The search of one host's agent, as long as its process lives."""

    def __init__(self, world: HarshWorld, host: Host, *, first: bool) -> None:
        """`first`: it does not look around before it founds."""
        self.world = world
        self.host = host
        self.founding = Founding(host.me.node, (), not first, host.clock())
        self._sponsor: Member | None = None
        self._asking: dict[str, None] = {}
        world.later(0.0 if first else world.random.uniform(0.0, TICK_SECONDS), self.tick)

    def tick(self) -> None:
        """Look at the clock, for as long as the process lives."""
        host, world = self.host, self.world
        if host.gone is not None:
            return
        world.later(TICK_SECONDS, self.tick)
        if host.asleep:
            return
        joining = host.node.joining if host.node else None
        entered = joining is not None and joining.state is JoiningState.ENTERED
        if self.founding.state is FoundingState.JOINING and entered:
            self.founding.joined()
        now = host.clock()
        for other in world.hosts.values():
            if other is not host:
                self.founding.hint(now, other.me.addresses[0])
        self._perform(self.founding.tick(now, self.own().members, ready=True))

    def standing(self) -> Heard:
        """What this agent tells who asks."""
        node, me = self.host.node, self.host.me.node
        if node is None or node.context.policy is None or not node.context.is_member:
            return Heard(me, False, elder=self.founding.elder)
        context, members = node.context, len(node.context.policy.view.members)
        return Heard(me, True, context.samples, members, context.lineage)

    def own(self) -> Heard:
        """The same for itself: who reaches nobody counts as a cluster of one."""
        heard, node = self.standing(), self.host.node
        if node is None or not node.context.is_isolated:
            return heard
        return Heard(heard.node, heard.member, heard.samples, 1, b"", heard.elder)

    def _perform(self, wanted: list[FoundingEffect]) -> None:
        for effect in wanted:
            match effect:
                case Ask(address):
                    if address not in self._asking:
                        self._asking[address] = None
                        self.world.later(self.world.delay(), partial(self._ask, address))
                case JoinAt(address):
                    self.world.later(self.world.delay(), partial(self._admit, address))
                case Found():
                    self._found()
                case GiveUp():
                    self.world.departed(self.host, "given up")

    def _at(self, address: str) -> Host | None:
        """Who answers at `address`."""
        there = (h for h in self.world.hosts.values() if h.me.addresses[0] == address)
        other = next(there, None)
        return other if other and self.world.reachable(self.host, other) else None

    def _ask(self, address: str) -> None:
        other = self._at(address)
        heard = self.world.seekers[other.me.node].standing() if other is not None else None
        wait = self.world.delay() if heard is not None else ANSWER_SECONDS
        self.world.later(wait, partial(self._answered, address, heard))

    def _answered(self, address: str, heard: Heard | None) -> None:
        host = self.host
        if host.asleep:
            host.waiting.append(partial(self._answered, address, heard))
            return
        self._asking.pop(address, None)
        if host.gone is not None:
            return
        if heard is None:
            self.founding.silent(address)
        else:
            now, own = host.clock(), self.own()
            wanted = self.founding.standing(now, address, heard, own, ready=True)
            behind = (heard.samples, heard.members) < (own.samples, own.members)
            assert not (wanted and own.member and behind), "gave way to a cluster that is behind"
            self._perform(wanted)

    def _admit(self, address: str) -> None:
        """Prove the token once more, this time to be let in."""
        host, other = self.host, self._at(address)
        if host.asleep:
            host.waiting.append(partial(self._admit, address))
            return
        if host.gone is not None or self.founding.state is not FoundingState.JOINING:
            return
        policy = other.node.context.policy if other and other.node else None
        if other is None or policy is None or other.me.node not in policy.view.nodes:
            self._refused()
            return
        other.trusted[host.me.node] = None
        host.trusted |= dict.fromkeys(policy.view.nodes)
        self._sponsor = other.me
        if host.node is None:
            self.join()
        else:
            host.handle(YieldWanted())

    def join(self) -> None:
        """Join through the sponsor that has let us in."""
        host, world, sponsor = self.host, self.world, self._sponsor
        if sponsor is None or host.gone is not None:
            return
        host.perform(world.begin(host).join(host.clock(), sponsor))
        world.arm(host)

    def _found(self) -> None:
        host, world = self.host, self.world
        if host.node is None and not host.spoilt:
            lineage = world.random.randbytes(16)
            meta = b"meta %d" % host.iteration
            node = world.begin(host)
            host.perform(node.found(host.clock(), lineage, host.iteration, meta))
            world.arm(host)

    def join_again(self) -> None:
        """The cluster went on without us, or the join failed."""
        self.world.later(0.0, self._drop)

    def _drop(self) -> None:
        if self.host.gone is None:
            self.world.give_up(self.host)
            self.world.later(REJOIN_SECONDS, self._refused)

    def _refused(self) -> None:
        host = self.host
        if host.asleep:
            host.waiting.append(self._refused)
        elif host.gone is None:
            self.founding.refused(host.clock(), spoilt=host.spoilt)
