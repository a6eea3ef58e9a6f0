"""Before there is a cluster: join one, wait for another agent to found it, or found it oneself.

- Of several agents that start at the same moment and hear of each other, only the one with the
  smallest node id founds. The others wait for it, also if they know of it only through an agent
  that has asked it. Hearsay goes no further than that, so that nobody waits for an agent that is
  gone.
- Clusters of one name that meet, because they were founded at the same time or parted by a broken
  network, compare (committed samples, members, lineage). Each member of the smaller one gives way
  (protocol.md, 9.3).
- More samples always win, so that no training is thrown away: an agent that has trained does not
  join a cluster that is behind it, but goes on from its own state, and that cluster joins it.
- An agent that was let in by a cluster and has no trained state of its own never founds one. It
  goes on looking until it gives up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from protocols import limits
from protocols.cluster.ancestry import NOTHING, Past
from protocols.table import Row, StateTable

if TYPE_CHECKING:
    from collections.abc import Collection

# An agent without a cluster asks each address this often.
ASK_AGAIN_SECONDS = 0.3
# A founder that is still alone asks each address this often, to find other clusters soon.
ASK_STRANGERS_SECONDS = 2.0
# Members of a larger cluster look for another one of their name this often.
MERGE_SECONDS = 5.0
# An address where a member of the same cluster has answered is asked this often, and more seldom
# while there is a link to that member, which shows well enough where it belongs.
ASK_KIN_SECONDS = 20.0
ASK_LINKED_SECONDS = 300.0
# An agent listens to multicast DNS for so long before it founds: that finds all agents of a room in
# about a second.
LISTEN_SECONDS = 1.5
# An agent waits so long for a peer that its user has named and that does not answer.
NAMED_PEER_SECONDS = 5.0
# An agent that must not found gives up after having found nobody for so long.
GIVE_UP_SECONDS = 30.0
# Told instead of a node id by agents that know of a cluster; smaller than every node id, so that
# whoever hears it does not found.
SOMEBODY_HAS_FOUNDED = b"\0" * limits.NODE_ID_BYTES


class FoundingState(StrEnum):
    """Where the search stands."""

    # DEFERRING: waits for another agent to found. FOUNDED: is a member, and looks for clusters
    # ahead of its own.
    LISTENING = "listening"
    DEFERRING = "deferring"
    JOINING = "joining"
    FOUNDED = "founded"


FOUNDING_TABLE: StateTable[FoundingState] = StateTable(
    "founding",
    Row(
        FoundingState.LISTENING,
        "standing",
        (FoundingState.LISTENING, FoundingState.DEFERRING, FoundingState.JOINING),
    ),
    Row(FoundingState.LISTENING, "time", (FoundingState.LISTENING, FoundingState.FOUNDED)),
    Row(FoundingState.LISTENING, "silent", (FoundingState.LISTENING,)),
    Row(
        FoundingState.DEFERRING,
        "standing",
        (FoundingState.DEFERRING, FoundingState.LISTENING, FoundingState.JOINING),
    ),
    Row(FoundingState.DEFERRING, "silent", (FoundingState.DEFERRING, FoundingState.LISTENING)),
    Row(FoundingState.DEFERRING, "time", (FoundingState.DEFERRING,)),
    *(Row(state, "refused", (FoundingState.LISTENING,)) for state in FoundingState),
    Row(FoundingState.JOINING, "joined", (FoundingState.FOUNDED,)),
    Row(FoundingState.FOUNDED, "standing", (FoundingState.FOUNDED, FoundingState.JOINING)),
)


@dataclass(frozen=True, slots=True)
class Heard:
    """What an agent that has proved the token says of itself.

    - `member`: it is a member of a cluster.
    - `samples`: how many samples its state was trained with, also while it has no cluster.
    - `members`: how many members its cluster has.
    - `lineage`: that of its cluster, b"" if it has none.
    - `elder`: the smallest id of an agent that may found, as far as it knows, b"" if it knows none.
    - `past`: the history of its state.
    - `counts_us`: the asking agent's present incarnation is in its view, so its cluster has not
      gone on without that agent.
    """

    node: bytes
    member: bool
    samples: int = 0
    members: int = 0
    lineage: bytes = b""
    elder: bytes = b""
    past: Past = NOTHING
    counts_us: bool = False

    @property
    def rank(self) -> tuple[int, int, bytes]:
        """The rank of its cluster: of two clusters that meet, that of the smaller rank gives
        way."""
        return (self.samples, self.members, self.lineage)


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the agent at `address` who it is."""

    address: str


@dataclass(frozen=True, slots=True)
class JoinAt:
    """Join the cluster through the agent at `address`."""

    address: str


@dataclass(frozen=True, slots=True)
class Found:
    """Found a cluster."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the search: nobody to join was found, and this agent must not found."""


FoundingEffect = Ask | JoinAt | Found | GiveUp


class Founding:
    """The search of one agent. `named`: addresses that the user gave. `mdns`: multicast DNS may
    hint at others. `join_only`: it never founds. `patient`: it never gives up."""

    def __init__(
        self,
        node: bytes,
        named: tuple[str, ...],
        mdns: bool,
        now: float,
        *,
        join_only: bool = False,
        patient: bool = False,
    ) -> None:
        self.state = FOUNDING_TABLE.initial
        self._node = node
        self._named = named
        self._until = now + (LISTEN_SECONDS if mdns else 0.0)
        self._patience = now + NAMED_PEER_SECONDS
        self._next_ask: dict[str, float] = dict.fromkeys(named, now)
        self._silences: dict[str, int] = {}  # hint -> questions in a row without an answer
        self._answered: dict[str, None] = {}
        self._elder: dict[str, bytes] = {}  # address -> smaller id that may found, heard there
        self._known: dict[str, bytes] = {}  # address -> id that answered there and may found
        self._join_only = join_only
        self._most_patience = math.inf if join_only or patient else GIVE_UP_SECONDS
        self._join_until: float | None = math.inf if join_only else None  # None: it may found
        self._join_after = -math.inf  # no join is begun before this time
        self._kin: dict[str, bytes] = {}  # address -> member of our cluster that answered there
        self._cluster: dict[str, None] = {}  # addresses where a member answered

    @property
    def elder(self) -> bytes:
        """What to tell agents that ask: the smallest id that may found, of this agent and of those
        that have answered it directly."""
        if self._cluster:
            return SOMEBODY_HAS_FOUNDED
        own = () if self.must_join else (self._node,)
        return min((*own, *self._known.values()), default=b"")

    @property
    def must_join(self) -> bool:
        """Whether this agent must not found."""
        return self._join_until is not None

    def hint(self, now: float, address: str) -> None:
        """Ask at `address` from now on, because an agent may be there."""
        if len(self._next_ask) - len(self._named) < limits.MAX_HINTS:
            self._next_ask.setdefault(address, now)

    def spoke(self, now: float, address: str) -> None:
        """An agent that holds the token has asked, and says that it listens at `address`: ask there
        at once if nobody has answered there lately."""
        if self._silences.pop(address, 0) and address in self._next_ask:
            self._next_ask[address] = now
        self._kin.pop(address, None)  # it may be another agent than the one that was there
        self.hint(now, address)

    def moved(self, now: float) -> None:
        """Ask everywhere again, because this device may be on another network now."""
        self._silences.clear()
        self._kin.clear()  # links to them are over, as far as is known
        self._next_ask = dict.fromkeys(self._next_ask, now)

    def tick(
        self, now: float, members: int, *, ready: bool, linked: Collection[bytes] = ()
    ) -> list[FoundingEffect]:
        """Ask where it is time to, and found or give up if it is time for that. `members`: how many
        this agent's cluster has, 0 if it has none. `ready`: its trainer has said what to train, so
        that it can found at once. `linked`: members of its cluster to which a link is open."""
        settled = self.state is FoundingState.FOUNDED
        if self.state is FoundingState.JOINING:
            return []
        effects: list[FoundingEffect] = []
        for address, due in self._next_ask.items():
            # Whoever is passed over is asked as soon as its link ends, since its time has come.
            known = settled and self._kin.get(address, b"") in linked
            if due + (ASK_LINKED_SECONDS - ASK_KIN_SECONDS if known else 0.0) <= now:
                pause = self._pause(address, members) if settled else ASK_AGAIN_SECONDS
                # Hints that are not answered are asked at doubled intervals.
                self._next_ask[address] = now + pause * 2 ** self._silences.get(address, 0)
                effects.append(Ask(address))
        if settled:
            return effects
        if self._join_until is not None:
            self.state = FOUNDING_TABLE.step(self.state, "time", self.state)
            return [*effects, GiveUp()] if now >= self._join_until else effects
        waiting = (
            not ready
            or bool(self._cluster)
            or now < self._until
            or any(now < self._patience and a not in self._answered for a in self._named)
        )
        if self.state is FoundingState.LISTENING and not waiting:
            self.state = FOUNDING_TABLE.step(self.state, "time", FoundingState.FOUNDED)
            return [*effects, Found()]
        self.state = FOUNDING_TABLE.step(self.state, "time", self.state)
        return effects

    def _pause(self, address: str, members: int) -> float:
        if address in self._kin:
            return ASK_KIN_SECONDS
        return MERGE_SECONDS if members > 1 else ASK_STRANGERS_SECONDS

    def standing(
        self, now: float, address: str, heard: Heard, own: Heard, *, ready: bool
    ) -> list[FoundingEffect]:
        """Act on the answer `heard` of the agent at `address`. `own` is what this agent would
        answer itself; `ready` as in `tick`."""
        is_behind = not own.member and not self.must_join and heard.samples < own.samples
        is_behind = is_behind and heard.member and not heard.past.stems_from(own.past)
        self._note(now, address, heard, is_behind=is_behind)
        self._kin.pop(address, None)
        if heard.node == self._node or (heard.member and heard.lineage == own.lineage):
            self._kin[address] = heard.node
        if heard.node == self._node or not FOUNDING_TABLE.allows(self.state, "standing"):
            return []
        then = self.state
        if self.state is FoundingState.FOUNDED or own.member:  # a refused member is LISTENING
            same = heard.lineage == own.lineage or heard.counts_us
            stranger = heard.member and not same
            if stranger and own.rank < heard.rank:
                then = FoundingState.JOINING
        elif heard.member and not is_behind:
            # A cluster that continues this agent's own history but is still behind it is waited
            # for.
            catches_up = heard.samples < own.samples and not self.must_join
            waits = catches_up or not ready or now < self._join_after
            then = self.state if waits else FoundingState.JOINING
        elif not heard.member and heard.elder and heard.elder < self._node:
            self._elder[address] = heard.elder
            then = FoundingState.DEFERRING
        else:
            self._elder.pop(address, None)  # whoever answers here now does not have to found
            then = FoundingState.DEFERRING if self._elder else FoundingState.LISTENING
        self.state = FOUNDING_TABLE.step(self.state, "standing", then)
        return [JoinAt(address)] if then is FoundingState.JOINING else []

    def _note(self, now: float, address: str, heard: Heard, *, is_behind: bool) -> None:
        """Remember what an answer says, in any state. A cluster that `is_behind` does not keep this
        agent from founding."""
        self._answered[address] = None
        if self._silences.pop(address, 0) and address in self._next_ask:
            # Silence had put the next question off. Who answers is asked as often as others.
            self._next_ask[address] = min(self._next_ask[address], now + ASK_AGAIN_SECONDS)
        self._known.pop(address, None)
        self._cluster.pop(address, None)
        if heard.node == self._node:
            return
        if self._join_until is not None and (heard.member or heard.elder):
            self._join_until = now + self._most_patience  # there is or may be a cluster: go on
        if heard.member:
            if not is_behind:
                self._cluster[address] = None
        elif heard.elder and heard.elder <= heard.node:  # otherwise it will not found itself
            self._known[address] = heard.node

    def silent(self, address: str) -> None:
        """Nobody has answered at `address`, or the agent there has refused. An address that was
        only hinted at is asked less and less often, and forgotten in the end."""
        if address not in self._named:
            self._silences[address] = self._silences.get(address, 0) + 1
            if self._silences[address] >= limits.MAX_SILENCES:
                for kept in (self._silences, self._next_ask, self._answered):
                    kept.pop(address, None)
        self._known.pop(address, None)
        self._elder.pop(address, None)
        self._cluster.pop(address, None)
        self._kin.pop(address, None)
        if not FOUNDING_TABLE.allows(self.state, "silent"):
            return
        alone = self.state is FoundingState.DEFERRING and not self._elder
        then = FoundingState.LISTENING if alone else self.state
        self.state = FOUNDING_TABLE.step(self.state, "silent", then)

    def refused(self, now: float, *, may_found: bool = True, pause_s: float = 0.0) -> None:
        """Look around again, because the join failed or the cluster went on without this agent. No
        other join is begun for `pause_s`. `may_found` is False for an agent that was let in and has
        no whole trained state of its own."""
        barred = self._join_only or not may_found
        self._join_after = now + pause_s if pause_s else -math.inf
        self._join_until = now + pause_s + self._most_patience if barred else None
        self.state = FOUNDING_TABLE.step(self.state, "refused", FoundingState.LISTENING)
        self._until = now + LISTEN_SECONDS
        self._next_ask = dict.fromkeys(self._next_ask, now + ASK_AGAIN_SECONDS)

    def joined(self) -> None:
        """This agent has become a member of a cluster."""
        self._join_until = math.inf if self._join_only else None
        self.state = FOUNDING_TABLE.step(self.state, "joined", FoundingState.FOUNDED)
