"""Looking for a cluster: performs what `protocols.cluster.founding` decides.

At most one question at a time goes to each address. The same wrong answer of an address is reported
once only.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Protocol

from edgeagent import advice
from edgeagent.config import join_address, split_address
from edgeagent.errors import EdgeAgentError, JobMismatch, JoinRefused
from edgeagent.transport.complaints import LimitedLog
from edgeagent.transport.errors import Expelled, NotReady, SameIdentity, Unreachable
from protocols import limits
from protocols.cluster.founding import (
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
    from collections.abc import Callable, Collection, Coroutine

    from edgeagent.transport.api import PeerInfo, Standing
    from edgeagent.transport.tcp import TcpTransport

    Spawn = Callable[[Coroutine[None, None, None]], asyncio.Task[None]]

TICK_SECONDS = 0.1
SETTLED_TICK_SECONDS = 0.5  # of a member, which only looks for other clusters
EXPLAIN_SECONDS = 5.0  # without an answer for this long, the user is told why that may be
UNREACHABLE_SECONDS = 3.0  # silence is not told before, as a peer may have been started together
FOUNDER_SECONDS = 3.0  # an agent that will found a cluster counts as alive this long per answer
UNANSWERED_OFTEN = 3  # unanswered questions per address before a firewall is suspected


class Outcome(Protocol):
    """Receives what the search finds, and tells it how this agent stands."""

    def own(self) -> Heard:
        """Return what this agent would answer if it were asked."""

    def job_known(self) -> bool:
        """Return whether the trainer has told what to train."""

    def join_through(self, sponsor: Standing) -> None:
        """Join the cluster of `sponsor`, which has admitted this agent."""

    def found_cluster(self) -> None:
        """Found a cluster."""

    def entered(self) -> bool:
        """Return whether the last join has made this agent a member."""

    def may_found(self) -> bool:
        """Return whether this agent has a state from which it may found a cluster."""

    def located(self, peer: PeerInfo, lineage: bytes) -> None:
        """Take note that `peer`, which has proven the token, is at its addresses. `lineage`: that
        of its cluster, b"" if it has none."""

    def linked(self) -> Collection[bytes]:
        """Return the members of this agent's cluster to which a link is open."""

    def given_up(self) -> None:
        """Take note that this agent may not found a cluster and that there is none to join."""

    def other_job(self, error: JobMismatch) -> bool:
        """The cluster that was found trains another job; return whether that ends this agent."""

    def not_let_in(self, error: JoinRefused) -> bool:
        """All peers that were named refuse this agent, or a user has expelled this device; return
        whether that ends the agent."""

    def same_identity(self, standing: Standing, address: str) -> None:
        """Another agent has our key."""


def heard_from(standing: Standing, us: PeerInfo | None = None) -> Heard:
    """Return `standing` as `Founding` needs it, seen by the agent `us`.

    While there is no cluster, `standing.scheduler` is the elder: the agent that may found it.
    """
    member = standing.phase == "member"
    ids = [(peer.node, peer.incarnation) for peer in standing.known]
    return Heard(
        standing.me.node,
        member,
        standing.samples,
        standing.members,
        standing.lineage,
        b"" if member else standing.scheduler,
        standing.past,
        us is not None and (us.node, us.incarnation) in ids,
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
        *,
        join_only: bool = False,
        patient: bool = False,
    ) -> None:
        """`named` are the addresses that the user gave, with or without a port. `explain` returns
        why nobody may have been found; it is asked at most once. `spawn` starts a task whose
        failure ends the agent. For the other arguments see `Founding`."""
        self._typed, named = named, tuple(join_address(*split_address(text)) for text in named)
        self._spawn = spawn
        self._transport = transport
        self._outcome = outcome
        self._log = log
        self._explain = explain
        loop = asyncio.get_running_loop()
        self._clock = loop.time
        self._founding = Founding(
            transport.me.node, named, mdns, loop.time(), join_only=join_only, patient=patient
        )
        self._begun = loop.time()
        self._heard_anybody = False
        self._heard_at = loop.time()  # last answer of a cluster, or end of a failed join
        self._founder_at = -math.inf  # last answer of an agent that will found once it is ready
        self._said_waiting = self._said_founder = False
        self._unreachable: dict[str, float] = {}  # named address -> since when
        self._explained = False
        self._named = named
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._entering: asyncio.Task[None] | None = None
        self._said: dict[str, str] = {}
        self._lines = LimitedLog(log, loop.time)
        self._groups: dict[str, tuple[str, ...]] = {}  # hint -> all addresses of that agent
        self._unanswered: dict[str, int] = {}  # hint -> unanswered questions in a row
        self._reached: dict[str, None] = {}  # hints at which an agent has answered before
        self._answered: dict[str, None] = {}  # named addresses where an agent has answered
        self._refusing: dict[str, None] = {}  # named addresses that have refused this agent
        self._ours: dict[str, None] = {}  # addresses at which an agent with our own key answers

    @property
    def joining(self) -> bool:
        """Whether a cluster was found and is being joined."""
        return self._founding.state is FoundingState.JOINING

    @property
    def elder(self) -> bytes:
        """The smallest node id known at first hand that may found, which others are told."""
        return self._founding.elder

    @property
    def must_join(self) -> bool:
        """Whether this agent founds no cluster, but waits for one to join."""
        return self._founding.must_join

    def hint(self, addresses: tuple[str, ...], *, spoke: bool = False) -> None:
        """Ask at `addresses`, where an agent of this cluster may listen; with `spoke` it has just
        asked and proven the token, so it is there."""
        self._groups |= dict.fromkeys(addresses, addresses)
        for old in list(self._groups)[: -limits.MAX_HINTS]:
            del self._groups[old]
        for address in addresses:
            if spoke:
                self._founding.spoke(self._clock(), address)
            else:
                self._founding.hint(self._clock(), address)

    def moved(self) -> None:
        """Ask everybody again at once, because this device has new addresses."""
        self._founding.moved(self._clock())
        self._unanswered.clear()

    def refused(self, pause_s: float = 0.0) -> None:
        """Look for a cluster again, because the join has failed, and join none for `pause_s`."""
        self._heard_at, self._said_waiting = self._clock() + pause_s, False
        may_found = self._outcome.may_found()
        self._founding.refused(self._clock(), may_found=may_found, pause_s=pause_s)

    def only_join(self) -> None:
        """From now on found no cluster, and give up if there is none to join."""
        self._founding.refused(self._clock(), may_found=False)

    async def stop(self) -> None:
        """End all questions; the outcome is told nothing more."""
        tasks = [*self._asking.values(), *([self._entering] if self._entering else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def run(self) -> None:
        """Search until cancelled."""
        for typed, address in zip(self._typed, self._named, strict=True):
            if typed.removeprefix("[").removesuffix("]") == split_address(address)[0]:
                self._log(f"no port is given for the peer {typed}: asking {address}")
        while True:
            now = self._clock()
            if self.joining and self._outcome.entered():
                self._founding.joined()
            members, ready = self._outcome.own().members, self._outcome.job_known()
            linked = self._outcome.linked()
            self._perform(self._founding.tick(now, members, ready=ready, linked=linked))
            if now - self._begun > EXPLAIN_SECONDS and not self._explained:
                self._explained = True
                if not self._heard_anybody and self._outcome.own().members <= 1:
                    self._log(self._explain())
            self._say_that_it_waits(now)
            settled = self._founding.state is FoundingState.FOUNDED
            await asyncio.sleep(SETTLED_TICK_SECONDS if settled else TICK_SECONDS)

    def _say_that_it_waits(self, now: float) -> None:
        """Log once that another agent has to found first, or that this agent may not found and no
        cluster has answered for a while."""
        if now - self._founder_at < FOUNDER_SECONDS:
            waits_for_founder = not self.joining and not self._outcome.own().member
            ready = self._outcome.job_known() and now - self._begun > EXPLAIN_SECONDS
            if waits_for_founder and ready and not self._said_founder:
                self._said_founder = True
                self._log("waiting for another agent, which founds the cluster once it is ready")
            return
        waits = self._founding.must_join and not self.joining and not self._outcome.own().member
        if waits and now - self._heard_at > EXPLAIN_SECONDS and not self._said_waiting:
            self._said_waiting = True
            self._log(
                "no cluster that this device could join answers: waiting for one, "
                "since this device founds none itself"
            )

    def _perform(self, effects: list[FoundingEffect]) -> None:
        for effect in effects:
            match effect:
                case Ask(address):
                    if self._may_ask(address):
                        self._asking[address] = self._spawn(self._ask(address))
                case Found():
                    self._warn_of_silent_peers()
                    self._outcome.found_cluster()
                case JoinAt(address):
                    self._entering = self._spawn(self._join(address))
                case GiveUp():
                    self._outcome.given_up()

    def _warn_of_silent_peers(self) -> None:
        """Log that this agent founds a cluster although the user has named peers to join."""
        if silent := [address for address in self._named if address not in self._answered]:
            self._log(
                f"warning: no agent has answered at {' and '.join(silent)} (--peer): this device"
                " founds a cluster of its own; if one answers later, the two clusters become one"
            )

    def _note_answer(self, address: str) -> None:
        if address in self._named:  # anybody can announce any number of addresses
            self._answered[address] = None

    def _may_ask(self, address: str) -> bool:
        if address in self._asking or address in self._ours:
            return False
        return address in self._named or len(self._asking) < limits.MAX_QUESTIONS

    async def _ask(self, address: str) -> None:
        try:
            standing = await self._transport.ask(address)
        except SameIdentity as error:
            self._note_answer(address)
            self._ours[address] = None
            if error.standing.me.incarnation != self._transport.me.incarnation:
                self._outcome.same_identity(error.standing, address)
            self._founding.silent(address)
        except Unreachable as error:
            if address in self._named:
                since = self._unreachable.setdefault(address, self._clock())
                if self._clock() - since >= UNREACHABLE_SECONDS:
                    self._say(address, f"{error} (trying again)")
            else:
                self._note_unanswered(address, error)
            self._founding.silent(address)
        except JoinRefused as error:
            self._note_answer(address)
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
            self._note_answer(address)
            self._unreachable.pop(address, None)
            for other in self._groups.get(address, (address,)):
                self._unanswered.pop(other, None)
                self._reached[other] = None
            self._outcome.located(standing.me, standing.lineage)
            heard, own = heard_from(standing, self._transport.me), self._outcome.own()
            if heard.elder and not heard.member and heard.elder != self._transport.me.node:
                self._founder_at = self._clock()
            if heard.member:
                self._heard_at, self._said_waiting = self._clock(), False
            now, ready = self._clock(), self._outcome.job_known()
            self._perform(self._founding.standing(now, address, heard, own, ready=ready))
        finally:
            self._asking.pop(address, None)

    def _note_unanswered(self, address: str, error: Unreachable) -> None:
        """Log once if an agent that was announced answers at none of its addresses. One that has
        answered before is not reported: it has ended, and no firewall is in the way."""
        group = self._groups.get(address, ())
        self._unanswered = {a: n for a, n in self._unanswered.items() if a in self._groups}
        self._reached = {a: None for a in self._reached if a in self._groups}
        if any(a in self._reached for a in group):
            return
        if group:
            self._unanswered[address] = self._unanswered.get(address, 0) + 1
        if group and all(self._unanswered.get(a, 0) >= UNANSWERED_OFTEN for a in group):
            self._say(address, advice.does_not_answer(address, str(error)))

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
        if address not in self._named:  # anybody can announce any number of addresses
            self._lines.say("hint", text)
        elif self._said.get(address) != text:
            self._said[address] = text
            self._log(text)
