"""The agent around a host's node, as far as it looks for a cluster and comes back after a loss.

Law: decides nothing; the real `protocols.cluster.founding` does, and this does what
`edgeagent/search.py` and `edgeagent/agent.py` do around it. Every device hears of every address, as
by multicast DNS. A device whose cluster went on without it, or whose join failed, looks again; if
nobody is there it founds from its own state if it has trained that, else it gives up after a while.
What it has trained is put aside before it joins a cluster that has not all of it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from protocols.cluster.ancestry import Past
from protocols.cluster.founding import (
    SOMEBODY_HAS_FOUNDED,
    Ask,
    Found,
    Founding,
    FoundingEffect,
    FoundingState,
    GiveUp,
    Heard,
    JoinAt,
)
from protocols.events import YieldWanted
from protocols.member.joining import JoiningState
from tests.simulation.world import SAMPLES

if TYPE_CHECKING:
    from protocols.cluster.view import Member
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
        self._sponsor_past = Past()
        self._admitted = False
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
        if node.recovery.is_cut_off:
            return Heard(me, False, elder=SOMEBODY_HAS_FOUNDED)
        context, members = node.context, len(node.context.policy.view.members)
        return Heard(me, True, context.samples, members, context.lineage, past=context.past)

    def standing_for(self, host: Host) -> Heard:
        """The same, and whether its view has `host` as it is now."""
        policy = self.host.node.context.policy if self.host.node else None
        them = policy.view.member(host.me.node) if policy is not None else None
        counts = them is not None and them.incarnation == host.me.incarnation
        return replace(self.standing(), counts_us=counts)

    def own(self) -> Heard:
        """The same for itself: who waits for the rest of its cluster counts as a cluster of one,
        who is no member has what it trained before."""
        host, node = self.host, self.host.node
        if node is not None and (node.context.is_isolated or node.recovery.is_cut_off):
            return Heard(host.me.node, True, node.context.samples, 1, past=node.context.past)
        standing = self.standing()
        if standing.member or host.spoilt:
            return standing
        return replace(standing, samples=host.iteration * SAMPLES, past=host.past)

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
        heard = self.world.seekers[other.me.node].standing_for(self.host) if other else None
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
            members = own.members if own.member else heard.members
            behind = (heard.samples, heard.members) < (own.samples, members)
            stays = own.member or not self.founding.must_join
            assert not (wanted and stays and behind), "gave way to a cluster that is behind"
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
        member = other is not None and self.world.seekers[other.me.node].standing().member
        if other is None or policy is None or not member:
            self._refused()
            return
        other.trusted[host.me.node] = None
        host.trusted |= dict.fromkeys(policy.view.nodes)
        self._sponsor = other.me
        self._sponsor_past = other.node.context.past if other.node else Past()
        self._admitted = True
        if host.node is None:
            self.join()
        else:
            host.handle(YieldWanted())

    def join(self) -> None:
        """Join through the sponsor that has let us in."""
        host, world, sponsor = self.host, self.world, self._sponsor
        if sponsor is None or host.gone is not None:
            return
        node = world.begin(host)
        if not host.spoilt and not self._sponsor_past.contains(host.past):
            host.aside.append(host.iteration)
        host.perform(node.join(host.clock(), sponsor))
        world.arm(host)

    def _found(self) -> None:
        host, world = self.host, self.world
        if host.node is None and not host.spoilt:
            lineage = world.random.randbytes(16)
            meta = b"meta %d" % host.iteration
            assert self._may_found, "one that was let in founded from nothing"
            node = world.begin(host)
            host.perform(node.found(host.clock(), lineage, host.past, meta, host.commit))
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
            self.founding.refused(host.clock(), may_found=self._may_found)

    @property
    def _may_found(self) -> bool:
        host = self.host
        if host.node is not None and host.node.context.is_member:
            return True
        return not host.spoilt and (host.trained or not self._admitted)
