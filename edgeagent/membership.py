"""How this agent becomes a member, and becomes one again: performs what `life.py` decides.

The machine of `protocols/cluster/life.py` connects the search, the node, the trainer and the user:
their reports go into it, and its effects are performed here, one after the other. Each membership
begins in an incarnation that no other node has seen yet.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, assert_never

from edgeagent import advice, handover
from edgeagent.network import member_of
from edgeagent.search import heard_from
from edgeagent.shell.trainer_side import OwnState
from protocols import events, limits
from protocols.cluster import life
from protocols.cluster.founding import Heard
from protocols.cluster.life import Life, LifeState
from protocols.member.joining_table import JoiningState

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from edgeagent.errors import EdgeAgentError, JobMismatch, JoinRefused
    from edgeagent.local.state_dir import StateDir
    from edgeagent.observer import Observer
    from edgeagent.search import Search
    from edgeagent.shared_memory import SharedMemory
    from edgeagent.shell import Shell
    from edgeagent.trainer_link import TrainerLink
    from edgeagent.transport.api import PeerInfo, Standing
    from edgeagent.transport.tcp import TcpTransport
    from protocols.cluster.ancestry import Past


OTHER_BATCH = "other batch"  # why an agent ends that begins again with the cluster's batch


class Surroundings(Protocol):
    """The agent, as far as its memberships need it."""

    shell: Shell | None
    search: Search | None
    transport: TcpTransport | None
    hello: handover.Hello | None
    memory: SharedMemory | None
    trainer_link: TrainerLink
    state_dir: StateDir
    observer: Observer
    origin: Past
    trainer_status: int
    takes_batch: bool
    other_batch: JobMismatch | None

    def make_shell(self, hello: handover.Hello, memory: SharedMemory) -> Shell:
        """Build what runs the node."""

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Start a task whose failure ends the agent."""

    def end(self, why: str, message: str = "", status: int = 0, *, told: bool = False) -> None:
        """End the agent."""

    def standing(self) -> Standing:
        """What to tell a proven joiner."""

    def compare_scripts(self, name: str, theirs: bytes) -> None:
        """Warn if `name` runs another script, `theirs`, than this device."""

    def same_identity(self, standing: Standing, address: str) -> None:
        """Handle the case that another agent has our key."""


class Membership:
    """The memberships of one agent, one after another. Implements the search's `Outcome`."""

    def __init__(
        self,
        agent: Surroundings,
        *,
        goes_on: bool = True,
        waits: bool = False,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`goes_on`: if the others are out of reach, found a cluster from what was trained here.
        `waits`: if this device founds, its training waits for others (`--wait-for`)."""
        self.life = Life(lambda: self.whole_state, goes_on=goes_on)
        self._agent = agent
        self._waits = waits
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._sponsor: Standing | None = None
        self._incarnation_used = False  # by a node of this agent, so others may know it
        self._wanted: deque[life.LifeEffect] = deque()  # effects that wait for links to close
        self._closing = False  # links are being closed
        self._aside = False  # the node leaves because the user wants this device to stand aside

    # --- what happens -----------------------------------------------------------------------------

    def departed(self, why: str, message: str) -> None:
        """The node has departed, for the reason `why`."""
        self._perform(self.life.departed(self._clock(), why, message))

    def join_failed(self, reason: str, pause_s: float, stands_by: bool) -> None:
        """The node's join has failed; `stands_by`: because the others are faster without it."""
        wanted = self.life.join_failed(self._clock(), reason, pause_s, stands_by=stands_by)
        self._perform(wanted)

    def stands_by(self, reason: str) -> None:
        """The node follows the others from outside for now."""
        self._perform(self.life.follows(reason))

    def saved(self, path: str, error: str) -> None:
        """The trainer is idle and has saved what it was asked to keep."""
        self._perform(self.life.saved(self._clock(), path, error))

    def leave(self, *, trainer_gone: bool = False) -> None:
        """The user wants this device to leave, or its trainer has ended."""
        self._perform(self.life.leave(trainer_gone=trainer_gone))

    def stand_aside(self) -> None:
        """Leave the cluster until the trainer is free to answer again; then join again. A device
        that is alone has nobody to leave."""
        node = self._agent.shell.node if self._agent.shell is not None else None
        if node is None or node.over or not node.context.is_member or node.context.is_alone:
            return
        if not node.context.departs and self._agent.shell is not None:
            self._aside = True
            self._agent.shell.handle(events.StandAside())

    def _tick(self) -> None:
        self._perform(self.life.tick(self._clock()))

    # --- what follows -----------------------------------------------------------------------------

    def _perform(self, wanted: Iterable[life.LifeEffect]) -> None:
        """Perform effects in order; those after a `DropNode` wait until the links are closed."""
        self._wanted.extend(wanted)
        while self._wanted and not self._closing:
            effect = self._wanted.popleft()
            if isinstance(effect, life.DropNode):
                if self._agent.shell is not None:
                    self._closing = True
                    self._agent.spawn(self._drop(self._agent.shell))
            else:
                self._perform_one(effect)
        if self.life.deadline is not None and not self._closing:
            wait = max(0.0, self.life.deadline - self._clock())
            asyncio.get_running_loop().call_later(wait, self._tick)

    async def _drop(self, shell: Shell) -> None:
        try:
            await shell.drop_links()
        finally:
            self._closing = False
        self._perform(())

    def _perform_one(self, effect: life.LifeEffect) -> None:
        agent = self._agent
        match effect:
            case life.Say(note=life.Note.STANDBY | life.Note.FOLLOWS, text=reason):
                agent.observer.stands_by(reason, self._text(effect))
            case life.Say():
                agent.observer.say(self._text(effect))
            case life.KeepState(whole):
                agent.trainer_link.send(handover.SaveAside(whole))
            case life.BeginJoin():
                if self.life.state is LifeState.JOINING:  # the user may have left meanwhile
                    self._begin_join()
            case life.FoundCluster():
                self._found()
            case life.GiveWay():
                if agent.shell is not None:
                    agent.shell.give_way()
            case life.LeaveNode(orphaned):
                self._leave_node(orphaned)
            case life.LookAround(pause_s):
                if agent.search is not None:
                    agent.search.refused(pause_s)
            case life.End(why, say, message, failed):
                text = self._text(say) if say is not None else message
                agent.end(why, text, 1 if failed else agent.trainer_status)
            case life.DropNode():
                pass  # performed by `_perform`, where the effects after it can wait for it
            case _:
                assert_never(effect)

    def _text(self, say: life.Say) -> str:
        if self._aside and say.note in (life.Note.HUNG, life.Note.ANSWERS):
            self._aside = say.note is life.Note.HUNG
            return advice.ASIDE if self._aside else advice.ASIDE_NO_MORE
        samples = [self._samples(iteration) for iteration in say.iterations]
        return advice.of_life(say, samples)

    def _leave_node(self, orphaned: bool) -> None:
        shell = self._agent.shell
        if shell is None or shell.node is None:  # its links are being closed
            self.departed("left", "")
        elif orphaned:
            shell.orphaned()
        else:
            self._agent.trainer_link.send(handover.LeaveAsked())
            shell.leave()

    def _found(self) -> None:
        shell = self._shell()
        if shell is not None:
            shell.found(secrets.token_bytes(limits.LINEAGE_BYTES), self._unused_incarnation())

    def _begin_join(self) -> None:
        shell = self._shell()
        if shell is not None and self._sponsor is not None:
            shell.join(member_of(self._sponsor.me), self._unused_incarnation())

    def _unused_incarnation(self) -> int:
        """Return the incarnation for another membership: a new one if the present one was used
        before, so that nobody takes this agent for the member that it was, or its orders in the
        cluster that it founds now for orders in that one."""
        agent = self._agent
        if self._incarnation_used and agent.transport is not None:
            agent.transport.begin_anew(agent.state_dir.begin_anew())
        self._incarnation_used = True
        return agent.state_dir.incarnation

    def _shell(self) -> Shell | None:
        """Return the shell, making it if there is none; None before the trainer has told its
        job."""
        agent = self._agent
        if agent.hello is None or agent.memory is None:
            return None
        return agent.shell or agent.make_shell(agent.hello, agent.memory)

    # --- the state --------------------------------------------------------------------------------

    @property
    def whole_state(self) -> OwnState | None:
        """The trainer's state; None if it is partly overwritten, or if the trainer has not told yet
        what to train."""
        if self._agent.shell is not None:
            return self._agent.shell.trainer.whole_state()
        hello = self._agent.hello
        return None if hello is None else OwnState(self._agent.origin, hello.meta)

    def _samples(self, iteration: int) -> int:
        hello = self._agent.hello
        return 0 if hello is None else iteration * hello.micro_batches * hello.micro_batch_size

    # --- Outcome (of the search) ------------------------------------------------------------------

    def own(self) -> Heard:
        """Return what this agent would answer if it were asked.

        A member that waits for the rest of its cluster counts as a cluster of one, which yields to
        any that is ahead. An agent that is no member counts with what it has trained or resumed
        from, and yields only to a cluster that has trained as much.
        """
        node = self._agent.shell.node if self._agent.shell is not None else None
        if node is not None and (node.context.is_isolated or node.recovery.is_cut_off):
            context = node.context
            return Heard(context.node, True, context.samples, 1, past=context.past)
        heard, own = heard_from(self._agent.standing()), self.whole_state
        if heard.member or own is None:
            return heard
        return replace(heard, samples=self._samples(own.past.iteration), past=own.past)

    def located(self, peer: PeerInfo, lineage: bytes) -> None:
        """Tell the node the addresses, the incarnation and the lineage of `peer`, which may have
        moved or started again."""
        if self._agent.shell is not None:
            where = (peer.node, peer.addresses, peer.incarnation)
            self._agent.shell.handle(events.Located(*where, lineage))

    def linked(self) -> tuple[bytes, ...]:
        """Return the members of this agent's cluster to which a link is open; nobody while it is
        cut off from the cluster, which may go on without it then."""
        node = self._agent.shell.node if self._agent.shell is not None else None
        if node is None or not node.context.is_member or node.recovery.is_cut_off:
            return ()
        return node.context.near

    def found_cluster(self) -> None:
        """Found a cluster."""
        if self._lacks_parts:  # this device wants to be alone, so nobody has the rest
            self.given_up()
            return
        self._perform(self.life.found())

    def entered(self) -> bool:
        """Return whether the last join has made this agent a member."""
        node = self._agent.shell.node if self._agent.shell is not None else None
        joining = node.joining if node is not None else None
        if joining is None or joining.state is not JoiningState.ENTERED:
            return False
        self.life.entered(self._clock())
        return True

    def may_found(self) -> bool:
        """Return whether this agent has a state from which it may found a cluster."""
        return not self._lacks_parts and (self.life.may_found or self._has_lost_nothing)

    @property
    def _lacks_parts(self) -> bool:
        """Whether this device goes on from a file that has not all of a divided optimizer's state,
        and has not been a member since."""
        hello, own = self._agent.hello, self.whole_state
        return hello is not None and hello.lacking > 0 and not (own is not None and own.trained)

    @property
    def _has_lost_nothing(self) -> bool:
        """Whether this device was no member yet, the cluster that let it in last had trained
        nothing then which this device lacks, and training here waits for others. Whoever waits so
        with a founder that is lost must be able to found in its place; should that cluster be only
        out of reach, nothing is trained beside it, as this device waits again, and the two clusters
        become one."""
        own, sponsor = self.whole_state, self._sponsor
        if not self._waits or own is None or own.trained or sponsor is None:
            return False
        return sponsor.past.iteration <= own.past.iteration

    def given_up(self) -> None:
        """Note that this agent may not found a cluster and that there is none to join."""
        hello = self._agent.hello
        if hello is not None and self._lacks_parts:
            self._agent.end("error", advice.lacking_parts(hello.lacking), 1)
            return
        self._perform(self.life.given_up())

    def job_known(self) -> bool:
        """Return whether the trainer has told what to train."""
        return self._agent.hello is not None

    def join_through(self, sponsor: Standing) -> None:
        """Join the cluster of `sponsor`, which has admitted this agent."""
        agent = self._agent
        if self._shell() is None or agent.transport is None or self.life.leaving:
            return
        for peer in sponsor.known:
            agent.transport.trust(peer.certificate)
        agent.transport.trust(sponsor.me.certificate)
        agent.compare_scripts(sponsor.me.name, sponsor.script)
        wanted = self.life.admitted(sponsor.past)
        if wanted:
            self._sponsor = sponsor
        self._perform(wanted)

    def other_job(self, error: JobMismatch) -> bool:
        """End the agent if the cluster that was found trains another job; return whether it
        ends."""
        if not self.life.has_node and error.batch is not None and self._agent.takes_batch:
            self._agent.other_batch = error
            self._agent.end(OTHER_BATCH, str(error), error.exit_status, told=True)
            return True
        return self._not_let_in(error)

    def not_let_in(self, error: JoinRefused) -> bool:
        """End the agent, because the user did not want it to train alone; return whether it
        ends."""
        return self._not_let_in(error)

    def _not_let_in(self, error: EdgeAgentError) -> bool:
        if self.life.has_node:
            return False
        self._agent.end("error", str(error), error.exit_status)
        return True

    def same_identity(self, standing: Standing, address: str) -> None:
        """Handle the case that another agent has our key."""
        self._agent.same_identity(standing, address)
