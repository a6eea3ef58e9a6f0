"""Looking for a cluster: performs what `protocols.founding` decides.

Law: no decision here. Every address is asked by at most one question at a time; what a stranger
answers wrong is said once.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from edgeagent.errors import EdgeAgentError, JobMismatch, JoinRefused
from edgeagent.transport.complaints import Lines
from edgeagent.transport.errors import Expelled, NotReady, SameIdentity, Unreachable
from protocols import limits
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

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from edgeagent.transport.api import Standing
    from edgeagent.transport.tcp import TcpTransport

    Spawn = Callable[[Coroutine[None, None, None]], asyncio.Task[None]]

TICK_SECONDS = 0.1
EXPLAIN_SECONDS = 5.0


class Outcome(Protocol):
    """Whom the search tells."""

    def own(self) -> Heard:
        """What this agent would answer if it were asked."""

    def job_known(self) -> bool:
        """Whether the trainer has said what to train."""

    def join_through(self, sponsor: Standing) -> None:
        """Join the cluster of `sponsor`, who has admitted us."""

    def found_cluster(self) -> None:
        """Found a cluster."""

    def entered(self) -> bool:
        """Whether the join that was begun last has made this agent a member."""

    def spoilt(self) -> bool:
        """Whether a join broke off that had begun to overwrite the training state."""

    def given_up(self) -> None:
        """The state is spoilt, and nobody is there to join."""

    def other_job(self, error: JobMismatch) -> bool:
        """The cluster that was found trains another job; return whether that ends this agent."""

    def not_let_in(self, error: JoinRefused) -> bool:
        """All peers that were named refuse us, or a user has expelled this device; return whether
        that ends this agent."""

    def same_identity(self, standing: Standing, address: str) -> None:
        """Somebody else holds our key."""


def heard_from(standing: Standing) -> Heard:
    """Return what `standing` says; its `scheduler` is the elder while there is no cluster."""
    member = standing.phase == "member"
    return Heard(
        standing.me.node,
        member,
        standing.samples,
        standing.members,
        standing.lineage,
        b"" if member else standing.scheduler,
    )


class Search:
    """One agent's search, from its start until it is stopped."""

    def __init__(
        self,
        transport: TcpTransport,
        named: tuple[str, ...],
        mdns: bool,
        outcome: Outcome,
        log: Callable[[str], None],
        explain: Callable[[], str],
        spawn: Spawn,
    ) -> None:
        """`explain` says, once and only if nobody was found in time, why that may be; `spawn`
        starts a task whose failure ends the agent."""
        self._spawn = spawn
        self._transport = transport
        self._outcome = outcome
        self._log = log
        self._explain = explain
        loop = asyncio.get_running_loop()
        self._clock = loop.time
        self._founding = Founding(transport.me.node, named, mdns, loop.time())
        self._begun = loop.time()
        self._heard_anybody = False
        self._explained = False
        self._named = named
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._entering: asyncio.Task[None] | None = None
        self._said: dict[str, str] = {}
        self._lines = Lines(log, loop.time)
        self._refusing: dict[str, None] = {}
        self._ours: dict[str, None] = {}

    @property
    def joining(self) -> bool:
        """Whether a cluster was found and is being joined."""
        return self._founding.state is FoundingState.JOINING

    @property
    def elder(self) -> bytes:
        """The smallest node id known at first hand that may found, to tell those who ask."""
        return self._founding.elder

    def hint(self, addresses: tuple[str, ...]) -> None:
        """Somebody of our cluster may listen at one of `addresses`."""
        for address in addresses:
            self._founding.hint(self._clock(), address)

    def refused(self) -> None:
        """The join came to nothing: look around again."""
        self._founding.refused(self._clock(), spoilt=self._outcome.spoilt())

    async def stop(self) -> None:
        """End what was begun; the outcome is told nothing any more."""
        tasks = [*self._asking.values(), *([self._entering] if self._entering else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def run(self) -> None:
        """Search until cancelled."""
        while True:
            now = self._clock()
            if self.joining and self._outcome.entered():
                self._founding.joined()
            members, ready = self._outcome.own().members, self._outcome.job_known()
            self._perform(self._founding.tick(now, members, ready=ready))
            if now - self._begun > EXPLAIN_SECONDS and not self._explained:
                self._explained = True
                if not self._heard_anybody and self._outcome.own().members <= 1:
                    self._log(self._explain())
            await asyncio.sleep(TICK_SECONDS)

    def _perform(self, effects: list[FoundingEffect]) -> None:
        for effect in effects:
            match effect:
                case Ask(address):
                    if self._may_ask(address):
                        self._asking[address] = self._spawn(self._ask(address))
                case Found():
                    self._outcome.found_cluster()
                case JoinAt(address):
                    self._entering = self._spawn(self._join(address))
                case GiveUp():
                    self._outcome.given_up()

    def _may_ask(self, address: str) -> bool:
        if address in self._asking or address in self._ours:
            return False
        return address in self._named or len(self._asking) < limits.MAX_QUESTIONS

    async def _ask(self, address: str) -> None:
        try:
            standing = await self._transport.ask(address)
        except SameIdentity as error:
            self._ours[address] = None
            if error.standing.me.incarnation != self._transport.me.incarnation:
                self._outcome.same_identity(error.standing, address)
            self._founding.silent(address)
        except Unreachable as error:
            if address in self._named:
                self._say(address, f"{error} (trying again)")
            self._founding.silent(address)
        except JoinRefused as error:
            if address in self._named:
                self._refusing[address] = None
            nobody = bool(self._named) and all(a in self._refusing for a in self._named)
            if not (nobody and self._outcome.not_let_in(error)):
                self._say(address, str(error))
            self._founding.silent(address)
        except EdgeAgentError as error:
            self._say(address, str(error))
            self._founding.silent(address)
        else:
            self._heard_anybody = True
            heard, own = heard_from(standing), self._outcome.own()
            now, ready = self._clock(), self._outcome.job_known()
            self._perform(self._founding.standing(now, address, heard, own, ready=ready))
        finally:
            self._asking.pop(address, None)

    async def _join(self, address: str) -> None:
        try:
            standing = await self._transport.join(address)
        except (Unreachable, NotReady):
            self.refused()
        except JobMismatch as error:
            if not self._outcome.other_job(error):
                self._say(address, str(error))
            self.refused()
        except JoinRefused as error:
            if not (isinstance(error, Expelled) and self._outcome.not_let_in(error)):
                self._say(address, str(error))
            self.refused()
        else:
            self._outcome.join_through(standing)

    def _say(self, address: str, text: str) -> None:
        if address not in self._named:  # anybody can give hints, many of them
            self._lines.say("hint", text)
        elif self._said.get(address) != text:
            self._said[address] = text
            self._log(text)
