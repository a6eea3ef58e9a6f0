"""Before there is a cluster: join one, wait for somebody else to found it, or found it oneself.

Law: of several agents that are born at the same moment and hear of each other, only the one with
the smallest node id founds; the others wait for it, also if they know it only through an agent that
has asked it (hearsay goes no further, so that nobody waits for the dead). Clusters of one name
that meet, because they were founded at the same time or parted by a broken network, compare
(committed samples, members, lineage); each member of the smaller one gives way (ROUNDS, Views). An
agent whose training state is spoilt never founds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from protocols import limits
from protocols.table import Row, StateTable

ASK_AGAIN_SECONDS = 0.3
ASK_STRANGERS_SECONDS = 2.0  # a founder that is still alone keeps looking
MERGE_SECONDS = 5.0  # members of a cluster look for another one of their name
ASK_KIN_SECONDS = 20.0  # where a member of our own cluster has answered
LISTEN_SECONDS = 1.5  # mDNS finds all agents of a room in about a second
NAMED_PEER_SECONDS = 5.0  # how long to wait for a peer that was named and does not answer
GIVE_UP_SECONDS = 30.0  # how long an agent that must not found looks for anybody
SOMEBODY_HAS_FOUNDED = b"\0" * limits.NODE_ID_BYTES  # smaller than every node id


class FoundingState(StrEnum):
    """Where the search stands."""

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
    """What an agent that proved the token says of itself. `lineage` b"" while founding; `elder`
    then is the smallest id that it knows might found, b"" if it knows of none."""

    node: bytes
    member: bool
    samples: int = 0
    members: int = 0
    lineage: bytes = b""
    elder: bytes = b""

    @property
    def rank(self) -> tuple[int, int, bytes]:
        """Clusters that meet: the smaller rank gives way."""
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
    """Nobody to join is to be found, and founding is out of the question."""


FoundingEffect = Ask | JoinAt | Found | GiveUp


class Founding:
    """The search of one agent. `named`: addresses the user gave; hints come in as they appear."""

    def __init__(self, node: bytes, named: tuple[str, ...], mdns: bool, now: float) -> None:
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
        self._spoilt_until: float | None = None  # our state is spoilt: do not found, end then
        self._kin: dict[str, None] = {}  # addresses where our own cluster answered last
        self._cluster: dict[str, None] = {}  # addresses where a member answered

    @property
    def elder(self) -> bytes:
        """The smallest id that is known at first hand and may found: what to tell who asks."""
        if self._cluster:
            return SOMEBODY_HAS_FOUNDED
        own = (self._node,) if self._spoilt_until is None else ()
        return min((*own, *self._known.values()), default=b"")

    def hint(self, now: float, address: str) -> None:
        """An agent may be at `address`."""
        if len(self._next_ask) - len(self._named) < limits.MAX_HINTS:
            self._next_ask.setdefault(address, now)

    def tick(self, now: float, members: int, *, ready: bool) -> list[FoundingEffect]:
        """Time has passed; this agent's cluster has `members` members (0: none yet); `ready`: its
        trainer has said what to train, so that founding takes no time."""
        settled = self.state is FoundingState.FOUNDED
        if self.state is FoundingState.JOINING:
            return []
        effects: list[FoundingEffect] = []
        for address, due in self._next_ask.items():
            if due <= now:
                pause = self._pause(address, members) if settled else ASK_AGAIN_SECONDS
                self._next_ask[address] = now + pause * 2 ** self._silences.get(address, 0)
                effects.append(Ask(address))
        if settled:
            return effects
        if self._spoilt_until is not None:
            self.state = FOUNDING_TABLE.step(self.state, "time", self.state)
            return [*effects, GiveUp()] if now >= self._spoilt_until else effects
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
        """The agent at `address` answered; `own` is what this one would answer; `ready` as in
        `tick`."""
        self._note(now, address, heard)
        self._kin.pop(address, None)
        if heard.node == self._node or (heard.member and heard.lineage == own.lineage):
            self._kin[address] = None
        if heard.node == self._node or not FOUNDING_TABLE.allows(self.state, "standing"):
            return []
        then = self.state
        if self.state is FoundingState.FOUNDED or own.member:  # also after a refusal elsewhere
            stranger = heard.member and heard.lineage != own.lineage
            if stranger and own.rank < heard.rank:
                then = FoundingState.JOINING
        elif heard.member:
            then = FoundingState.JOINING if ready else self.state
        elif heard.elder and heard.elder < self._node:
            self._elder[address] = heard.elder
            then = FoundingState.DEFERRING
        else:
            self._elder.pop(address, None)  # somebody else answers there now
            then = FoundingState.DEFERRING if self._elder else FoundingState.LISTENING
        self.state = FOUNDING_TABLE.step(self.state, "standing", then)
        return [JoinAt(address)] if then is FoundingState.JOINING else []

    def _note(self, now: float, address: str, heard: Heard) -> None:
        """Keep what matters of an answer at any time."""
        self._answered[address] = None
        self._silences.pop(address, None)
        self._known.pop(address, None)
        self._cluster.pop(address, None)
        if heard.node == self._node:
            return
        if self._spoilt_until is not None and (heard.member or heard.elder):
            self._spoilt_until = now + GIVE_UP_SECONDS  # there is a cluster, or there may be one
        if heard.member:
            self._cluster[address] = None
        elif heard.elder and heard.elder <= heard.node:  # else it will not found itself
            self._known[address] = heard.node

    def silent(self, address: str) -> None:
        """Nobody answers at `address`, or it refused. A hint is asked ever less, then no more."""
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

    def refused(self, now: float, *, spoilt: bool = False) -> None:
        """The join failed, or the cluster went on without us; look around again. `spoilt`: it left
        us without a whole training state, so that we cannot found."""
        self._spoilt_until = now + GIVE_UP_SECONDS if spoilt else None
        self.state = FOUNDING_TABLE.step(self.state, "refused", FoundingState.LISTENING)
        self._until = now + LISTEN_SECONDS
        self._next_ask = dict.fromkeys(self._next_ask, now + ASK_AGAIN_SECONDS)

    def joined(self) -> None:
        """This agent is a member of a cluster."""
        self._spoilt_until = None
        self.state = FOUNDING_TABLE.step(self.state, "joined", FoundingState.FOUNDED)
