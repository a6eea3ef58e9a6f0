"""The agent around a host's node: it looks for a cluster, and joins again after a loss.

It decides nothing. The real `protocols.cluster.founding` and `protocols.cluster.life` decide, and
this module performs their effects, as `edgeagent/search.py` and `edgeagent/membership.py` do. Every
device hears of every address, as by multicast DNS.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
from protocols.cluster.life import (
    BeginJoin,
    DropNode,
    End,
    FoundCluster,
    GiveWay,
    KeepState,
    LeaveNode,
    Life,
    LifeEffect,
    LookAround,
    Note,
)
from protocols.events import LeaveWanted, YieldWanted
from protocols.member.joining_table import JoiningState
from tests.simulation.world import SAMPLES

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.cluster.view import Member
    from tests.simulation.harsh import HarshWorld
    from tests.simulation.host import Host

TICK_SECONDS = 0.25
ANSWER_SECONDS = 1.0  # after how long a question that nobody answers counts as unanswered


@dataclass(frozen=True, slots=True)
class Own:
    """The whole state of a device's trainer."""

    past: Past
    trained: bool


class Seeker:
    """The search of one host's agent, as long as its process lives."""

    def __init__(self, world: HarshWorld, host: Host, *, first: bool) -> None:
        """`first`: this agent does not look for others before it founds."""
        self.world = world
        self.host = host
        self.founding = Founding(host.me.node, (), not first, host.clock())
        # A device that keeps only a part of the optimizer's state can found nothing from it.
        self.life = Life(self._whole_state, goes_on=not world.stripes)
        self._sponsor: Member | None = None
        self._admitted = False  # whether any cluster has ever let it in
        self._asking: dict[str, None] = {}
        world.later(0.0 if first else world.random.uniform(0.0, TICK_SECONDS), self.tick)

    def tick(self) -> None:
        """Let the search look at the clock, again and again as long as the process lives."""
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
            self.life.entered(host.clock())
        now = host.clock()
        for other in world.hosts.values():
            if other is not host:
                self.founding.hint(now, other.me.addresses[0])
        linked = self._linked()
        self._perform(self.founding.tick(now, self.own().members, ready=True, linked=linked))

    def standing(self) -> Heard:
        """Return what this agent answers when another one asks."""
        node, me = self.host.node, self.host.me.node
        if node is None or node.context.policy is None or not node.context.is_member:
            return Heard(me, False, elder=self.founding.elder)
        if node.recovery.is_cut_off:
            return Heard(me, False, elder=SOMEBODY_HAS_FOUNDED)
        context, members = node.context, len(node.context.policy.view.members)
        return Heard(me, True, context.samples, members, context.lineage, past=context.past)

    def standing_for(self, host: Host) -> Heard:
        """Return the same, with whether its view has the present incarnation of `host`."""
        policy = self.host.node.context.policy if self.host.node else None
        them = policy.view.member(host.me.node) if policy is not None else None
        counts = them is not None and them.incarnation == host.me.incarnation
        return replace(self.standing(), counts_us=counts)

    def own(self) -> Heard:
        """Return what this agent compares with the answers of others. A member that is cut off from
        its cluster counts as a cluster of one; an agent that is no member has the samples that it
        trained with before."""
        host, node = self.host, self.host.node
        if node is not None and (node.context.is_isolated or node.recovery.is_cut_off):
            return Heard(host.me.node, True, node.context.samples, 1, past=node.context.past)
        standing = self.standing()
        if standing.member or host.spoilt:
            return standing
        return replace(standing, samples=host.iteration * SAMPLES, past=host.past)

    def _linked(self) -> tuple[bytes, ...]:
        """Return the members of this agent's cluster to which it has a link."""
        node = self.host.node
        if node is None or not node.context.is_member or node.recovery.is_cut_off:
            return ()
        return node.context.near

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
                    self._on(self.life.found)
                case GiveUp():
                    self._on(self.life.given_up)

    def _at(self, address: str) -> Host | None:
        """Return the host that answers at `address`, None if nobody does."""
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
            may_found = self.life.may_found
            self.founding.refused(host.clock(), may_found=may_found)
            return
        other.trusted[host.me.node] = None
        host.trusted |= dict.fromkeys(policy.view.nodes)
        past = other.node.context.past if other.node else Past()
        if wanted := self.life.admitted(past):
            self._sponsor, self._admitted = other.me, True
            self._on(lambda: wanted)

    def _whole_state(self) -> Own | None:
        host, node = self.host, self.host.node
        if node is not None and node.was_member:  # a late trainer lacks some updates
            return Own(replace(node.context.past, iteration=host.iteration), True)
        return None if host.spoilt else Own(host.past, host.trained)

    def departed(self, why: str) -> None:
        """The node's part is over."""
        self._later(partial(self._on, lambda: self.life.departed(self.host.clock(), why)))

    def stands_by(self, reason: str) -> None:
        """The node follows from outside for now."""
        self._later(partial(self._on, lambda: self.life.follows(reason)))

    def join_failed(self) -> None:
        """The node's join has failed."""
        self._later(partial(self._on, lambda: self.life.join_failed(self.host.clock(), "", 0.0)))

    def leave(self) -> None:
        """The user wants this device to leave."""
        self._on(self.life.leave)

    def _saved(self, whole: bool) -> None:
        """The trainer is idle, and has saved its state if it was asked to (`whole`)."""
        if whole:
            self.host.aside.append(self.host.iteration)
        self._on(lambda: self.life.saved(self.host.clock(), "", ""))

    def _on(self, happens: Callable[[], list[LifeEffect]]) -> None:
        """Perform the effects of `happens()`, which tells this agent's life of something, as soon
        as its process runs."""
        host = self.host
        if host.asleep:
            host.waiting.append(partial(self._on, happens))
        elif host.gone is None:
            for effect in happens():
                self._live(effect)
            if (due := self.life.deadline) is not None and host.gone is None:
                self.world.later(max(TICK_SECONDS / 100, due - host.clock()), self._look)

    def _live(self, effect: LifeEffect) -> None:
        host, world = self.host, self.world
        match effect:
            case KeepState(whole):
                self._later(partial(host.work, partial(self._saved, whole)))
            case DropNode():
                world.give_up(host)
            case BeginJoin():
                self._join()
            case FoundCluster():
                self._found()
            case GiveWay():
                host.handle(YieldWanted())
            case LeaveNode():
                host.handle(LeaveWanted())
            case LookAround(pause_s):
                now, may_found = host.clock(), self.life.may_found
                self.founding.refused(now, may_found=may_found, pause_s=pause_s)
            case End(why, say):
                nobody = say is not None and say.note in (Note.NOBODY, Note.BROKEN_OFF)
                world.ended(host, "given up" if nobody else why)

    def _look(self) -> None:
        """Let the life look at the clock: it may be time to look around again."""
        self._on(lambda: self.life.tick(self.host.clock()))

    def _later(self, what: Callable[[], None]) -> None:
        """Call `what` after the event that the node handles now."""
        self.world.later(0.0, what)

    def _join(self) -> None:
        """Join through the sponsor that has let us in."""
        host, world, sponsor = self.host, self.world, self._sponsor
        assert sponsor is not None
        node = world.begin(host)
        host.perform(node.join(host.clock(), sponsor))
        world.arm(host)

    def _found(self) -> None:
        host, world = self.host, self.world
        assert host.trained or not self._admitted, "one that was let in founded from nothing"
        lineage = world.random.randbytes(16)
        meta = b"meta %d" % host.iteration
        node = world.begin(host)
        host.perform(node.found(host.clock(), lineage, host.past, meta, host.commit))
        world.arm(host)
