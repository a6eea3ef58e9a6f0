"""How this agent becomes a member, and becomes one again: founding, joining, giving way.

Law: it does what the search (`protocols.cluster.founding`) and the node have decided, in an order
that keeps what was trained: before another cluster's state may replace the trainer's own, that is
put aside, unless that cluster has all of it; each membership begins in an incarnation that nobody
knows yet.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

from edgeagent import advice, handover
from edgeagent.network import member_of
from edgeagent.search import heard_from
from edgeagent.trainer_side import OwnState
from protocols import events, limits
from protocols.cluster.founding import Heard
from protocols.member.joining import JoiningState

if TYPE_CHECKING:
    from edgeagent.agent import Agent
    from edgeagent.errors import EdgeAgentError, JobMismatch, JoinRefused
    from edgeagent.shell import Shell
    from edgeagent.transport.api import PeerInfo, Standing
    from protocols.cluster.view import Member

REJOIN_SECONDS = 0.5
DIVERGED_AGAIN_STEPS = 1000  # a state that differs twice within so many steps will do so again
KEEP_AGAIN_SECONDS = 10.0  # between attempts to put aside what was trained


class Membership:
    """The memberships of one agent, one after the other. Implements the search's `Outcome`."""

    def __init__(self, agent: Agent, *, goes_on: bool = True) -> None:
        """`goes_on`: where the others are out of reach, it founds from what it has trained."""
        self._agent = agent
        self._goes_on = goes_on
        self._sponsor: Standing | None = None
        self.is_saving = False  # the trainer may be keeping its state before we join the sponsor
        self.awaits_trainer = False  # let go, since it did not answer
        self._admitted = False  # by any cluster, at any time
        self._kept = ""  # where what was trained here lies since it was put aside
        self._said = ""  # why it could not be put aside
        self._diverged_at: int | None = None  # step at which the state here was found to differ
        self._incarnation_used = False  # by a node of ours that others may know

    # --- the node -----------------------------------------------------------------------------

    def departed(self, why: str, message: str) -> None:
        if why == "expelled":
            self._agent.observer.say("the cluster went on without this device: joining again")
            self._agent.spawn(self._join_again())
        elif why == "diverged":
            self._pull_anew()
        elif why == "stalled":
            self._agent.observer.say(
                "the trainer here does not answer: the others go on without this device until it "
                "does; then it joins again"
            )
            self._agent.spawn(self._wait_for_trainer())
        elif why == "yielded" and self._sponsor is not None:
            self._put_aside(self._sponsor)
        elif why == "error":
            self._agent.end("error", message, 1)
        elif why == "removed":
            self._agent.end("left", message, 1)  # to the trainer it is a leave: it saves
        else:
            self._agent.end(why, "", self._agent.trainer_status)

    def _pull_anew(self) -> None:
        """The state here differed from that of the others. Once may be bad luck; twice is not."""
        own, agent = self.whole_state, self._agent
        at = own.past.iteration if own is not None else 0
        before, self._diverged_at = self._diverged_at, at
        if agent.leaving:
            agent.end("error", advice.diverged_and_left(), 1)
        elif before is not None and at - before < DIVERGED_AGAIN_STEPS:
            agent.end("error", advice.diverged_again(before, at), 1)
        else:
            agent.spawn(self._join_again())

    async def _wait_for_trainer(self) -> None:
        """Ask the trainer for a sign of life: it answers once it has done what it was told before.
        What it has is the beginning of what the others have, so nothing has to be kept."""
        if self._agent.shell is not None:
            await self._agent.shell.drop_links()
        self.awaits_trainer = self.is_saving = True
        self._agent.trainer_link.send(handover.SaveAside(False))

    def _put_aside(self, sponsor: Standing) -> None:
        """Have the trainer keep what it has, if the cluster to be joined has not all of it."""
        own = self.whole_state
        keep = own is not None and not sponsor.past.contains(own.past)
        self.is_saving = True
        self._agent.trainer_link.send(handover.SaveAside(keep))

    def saved(self, path: str, error: str) -> None:
        """The trainer has kept what has to be kept: join the cluster that is ahead. What cannot be
        kept is not given up: look for another way until it can."""
        self.is_saving = False
        if self.awaits_trainer:
            self.awaits_trainer = False
            self._agent.observer.say("the trainer answers again: joining")
            self._agent.spawn(self._join_again())
            return
        shell, sponsor, own = self._agent.shell, self._sponsor, self.whole_state
        if shell is None or sponsor is None or self._agent.departing:
            return
        if error:
            line = f"not joining, because what was trained here would be lost: {error}"
            if line != self._said:
                self._said = line
                self._agent.observer.say(line)
            self._agent.spawn(self._join_again(KEEP_AGAIN_SECONDS))
            return
        self._kept = path
        if own is not None and not sponsor.past.contains(own.past):
            samples = self._samples(own.past.iteration)
            self._agent.observer.say(advice.trained_before(own.past.iteration, samples, path))
        self._agent.spawn(self._begin_anew(shell, member_of(sponsor.me)))

    async def _begin_anew(self, shell: Shell, sponsor: Member) -> None:
        """Join after a membership has ended; nothing of it stays, its links neither."""
        await shell.drop_links()
        if not self._agent.departing:
            self._join(shell, sponsor)

    def _join(self, shell: Shell, sponsor: Member) -> None:
        """Join in an incarnation that nobody knows yet, if this one has been used."""
        if self._incarnation_used and self._agent.transport is not None:
            self._agent.transport.begin_anew(self._agent.state_dir.begin_anew())
        self._incarnation_used = True
        shell.join(sponsor, self._agent.state_dir.incarnation)

    def join_failed(self, reason: str, pause_s: float) -> None:
        if self._agent.leaving:
            self._agent.end("left")
            return
        again = f"again in {pause_s:.0f} s" if pause_s else "trying again"
        self._agent.observer.say(f"the join failed: {reason}; {again}")
        self._agent.spawn(self._join_again(pause_s))

    async def _join_again(self, pause_s: float = 0.0) -> None:
        if self._agent.shell is not None:
            await self._agent.shell.drop_links()
        await asyncio.sleep(REJOIN_SECONDS)
        if self._agent.search is not None:
            self._agent.search.refused(pause_s)

    # --- the state --------------------------------------------------------------------------------

    @property
    def whole_state(self) -> OwnState | None:
        """What the trainer has, None if that is half of one state and half of another, or if it
        has not said what to train."""
        if self._agent.shell is not None:
            return self._agent.shell.trainer.whole_state()
        hello = self._agent.hello
        return None if hello is None else OwnState(self._agent.origin, hello.meta)

    def _samples(self, iteration: int) -> int:
        hello = self._agent.hello
        return 0 if hello is None else iteration * hello.micro_batches * hello.micro_batch_size

    # --- Outcome (of the search) ------------------------------------------------------------------

    def own(self) -> Heard:
        """What this agent would answer if it were asked; a member that waits for the rest of its
        cluster counts as a cluster of one, which gives way to any that is ahead. Who is no member
        has what it has trained, or resumed from, and gives way only to who has as much."""
        node = self._agent.shell.node if self._agent.shell is not None else None
        if node is not None and (node.context.is_isolated or node.recovery.is_cut_off):
            context = node.context
            return Heard(context.node, True, context.samples, 1, past=context.past)
        heard, own = heard_from(self._agent.standing()), self.whole_state
        if heard.member or own is None:
            return heard
        return replace(heard, samples=self._samples(own.past.iteration), past=own.past)

    def located(self, peer: PeerInfo) -> None:
        """A member may have moved."""
        if self._agent.shell is not None:
            self._agent.shell.handle(events.Located(peer.node, peer.addresses))

    def found_cluster(self) -> None:
        """Found a cluster."""
        if self._agent.hello is None or self._agent.memory is None:
            return
        shell = self._agent.shell or self._agent.make_shell(self._agent.hello, self._agent.memory)
        if shell.node is None and not shell.spoilt:
            self._incarnation_used = True
            shell.found(secrets.token_bytes(limits.LINEAGE_BYTES))

    def entered(self) -> bool:
        """Whether the join that was begun last has made this agent a member."""
        node = self._agent.shell.node if self._agent.shell is not None else None
        joining = node.joining if node is not None else None
        return joining is not None and joining.state is JoiningState.ENTERED

    def may_found(self) -> bool:
        """Whether this agent has a state that it may found a cluster from, or go on from."""
        shell = self._agent.shell
        if shell is None or (shell.node is not None and shell.node.context.is_member):
            return True
        own = self.whole_state
        return own is not None and (self._goes_on if own.trained else not self._admitted)

    def given_up(self) -> None:
        """This agent may not found, and nobody is there to join."""
        kept = self._kept if self._agent.shell is not None and self._agent.shell.spoilt else ""
        self._agent.end("error", advice.nobody_to_join(self.whole_state is None, kept), 1)

    def job_known(self) -> bool:
        """Whether the trainer has said what to train."""
        return self._agent.hello is not None

    def join_through(self, sponsor: Standing) -> None:
        """Join the cluster of `sponsor`, who has admitted us."""
        if self._agent.hello is None or self._agent.memory is None or self._agent.transport is None:
            return
        if self._agent.leaving:
            return
        shell = self._agent.shell or self._agent.make_shell(self._agent.hello, self._agent.memory)
        for peer in sponsor.known:
            self._agent.transport.trust(peer.certificate)
        self._agent.transport.trust(sponsor.me.certificate)
        self._sponsor, self._admitted = sponsor, True
        self._agent.compare_scripts(sponsor.me.name, sponsor.script)
        if shell.node is None:
            self._put_aside(sponsor)
        else:
            self._agent.observer.say("another cluster of this name is ahead: joining it")
            shell.give_way()

    def other_job(self, error: JobMismatch) -> bool:
        """The cluster that was found trains another job."""
        return self._not_let_in(error)

    def not_let_in(self, error: JoinRefused) -> bool:
        """To train alone is not what the user wanted."""
        return self._not_let_in(error)

    def _not_let_in(self, error: EdgeAgentError) -> bool:
        if self._agent.shell is not None and self._agent.shell.node is not None:
            return False
        self._agent.end("error", str(error), error.exit_status)
        return True

    def same_identity(self, standing: Standing, address: str) -> None:
        """Somebody else holds our key."""
        self._agent.same_identity(standing, address)
