"""The life of one agent: it searches, joins, is a member, gives way, joins again, leaves.

A node (`member/node.py`) lives as long as one membership; an agent has one after the other. This
machine decides what comes between two of them. `founding.py` decides whom to join and whether to
found; the node decides when a membership is over. The agent and the simulator both drive this
machine, and perform its effects in the order in which they are returned.

Invariants:

- Before another cluster's state may replace the trainer's own, the trainer keeps its own in a file,
  unless that cluster's history contains it (`ancestry.py`). If that fails, nothing is replaced.
- An agent that was let in by a cluster and has trained nothing founds none, since a cluster exists:
  it can only try to join again. The same holds for a device whose state is partly overwritten by a
  pull that broke off, since nobody may go on from half a state.
- A user who wants to leave waits for no join, no file and no trainer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from protocols.cluster.ancestry import NOTHING, Past
from protocols.cluster.standby import AGAIN_SECONDS, MOST_AGAIN_SECONDS, STEADY_SECONDS
from protocols.table import Row, StateTable

if TYPE_CHECKING:
    from collections.abc import Callable

# An agent looks around again so long after a membership or a join has ended, when the others have
# noticed that.
REJOIN_SECONDS = 0.5
# An agent that cannot save what it has trained tries to join again after so long: its disk may be
# full, and its user has been told.
KEEP_AGAIN_SECONDS = 10.0
# A state that differs from the others' twice within so many steps will most likely do so again, so
# the agent ends with the reason.
DIVERGED_AGAIN_STEPS = 1000


class LifeState(StrEnum):
    """Where an agent stands."""

    SEARCHING = "searching"  # it has no node
    SAVING = "saving"  # it was let in; its trainer may be keeping what it has trained
    JOINING = "joining"  # its node is on its way in
    MEMBER = "member"
    YIELDING = "yielding"  # its node goes, because another cluster is ahead
    HUNG = "hung"  # it waits for its trainer, which did not answer or is in an update of a join
    REJOINING = "rejoining"  # its links are closed; it looks around again in a moment
    LEAVING = "leaving"  # the user, or the end of the trainer, wants its node to leave
    ENDED = "ended"


_S = LifeState
_WITH_NODE = (_S.JOINING, _S.MEMBER, _S.YIELDING)
_WITHOUT = (_S.SEARCHING, _S.SAVING, _S.HUNG, _S.REJOINING)
LIFE_TABLE: StateTable[LifeState] = StateTable(
    "life of an agent",
    Row(_S.SEARCHING, "found", (_S.MEMBER,)),
    Row(_S.SEARCHING, "admitted", (_S.SAVING,)),
    Row(_S.SEARCHING, "given up", (_S.ENDED,)),
    Row(_S.SAVING, "saved", (_S.JOINING, _S.REJOINING)),
    Row(_S.JOINING, "entered", (_S.MEMBER,)),
    Row(_S.JOINING, "join failed", (_S.REJOINING, _S.HUNG)),
    Row(_S.JOINING, "departed", (_S.REJOINING, _S.HUNG, _S.ENDED)),
    Row(_S.MEMBER, "admitted", (_S.YIELDING,)),
    Row(_S.MEMBER, "departed", (_S.REJOINING, _S.HUNG, _S.ENDED)),
    Row(_S.YIELDING, "departed", (_S.SAVING, _S.REJOINING, _S.HUNG, _S.ENDED)),
    Row(_S.HUNG, "saved", (_S.REJOINING,)),
    Row(_S.REJOINING, "time", (_S.SEARCHING,)),
    *(Row(state, "leave", (_S.LEAVING,)) for state in _WITH_NODE),
    *(Row(state, "leave", (_S.ENDED,)) for state in _WITHOUT),
    Row(_S.LEAVING, "departed", (_S.ENDED,)),
    Row(_S.LEAVING, "join failed", (_S.ENDED,)),
    *(Row(state, "ended", (_S.ENDED,)) for state in _S if state is not _S.ENDED),
)


class Own(Protocol):
    """A whole training state that this device has."""

    @property
    def past(self) -> Past:
        """The history of the state."""
        ...

    @property
    def trained(self) -> bool:
        """Whether this device was a member with this state, so that it may found from it."""
        ...


class Note(StrEnum):
    """What users are told about an agent's life; `edgeagent/advice.py` has the text for each."""

    EXPELLED = "expelled"  # the cluster went on without this device
    HUNG = "hung"  # the others go on without this device until its trainer answers
    ANSWERS = "answers"  # the trainer answers again
    AHEAD = "ahead"  # another cluster of this name is ahead
    JOIN_FAILED = "join failed"
    NOT_KEPT = "not kept"  # what was trained cannot be saved, so no cluster is joined
    KEPT = "kept"  # what was trained here is saved in a file, as another state replaces it
    STANDBY = "standby"  # the others are faster without this device
    FOLLOWS = "follows"  # the same, and it copies every update meanwhile
    FOLLOWS_NO_MORE = "follows no more"  # that has ended, and it looks around again
    DIVERGED_LEAVER = "diverged leaver"  # the state of a device that leaves differed
    DIVERGED_AGAIN = "diverged again"
    NOBODY = "nobody"  # there is nobody to join, and this device must not found
    BROKEN_OFF = "broken off"  # the same, and a pull has overwritten half of this device's state


@dataclass(frozen=True, slots=True)
class Say:
    """Tell the user something. `text`: a reason or a path. `iterations`: those of the states that
    it is about. `pause_s`: how many seconds pass before the next attempt."""

    note: Note
    text: str = ""
    iterations: tuple[int, ...] = ()
    pause_s: float = 0.0


@dataclass(frozen=True, slots=True)
class KeepState:
    """Wait until the trainer is idle, and answer with `Life.saved`. If `whole`, the trainer saves
    its state in a file first."""

    whole: bool


@dataclass(frozen=True, slots=True)
class DropNode:
    """Close all links and forget the node."""


@dataclass(frozen=True, slots=True)
class BeginJoin:
    """Begin a node that joins through the member that has let this agent in last."""


@dataclass(frozen=True, slots=True)
class FoundCluster:
    """Begin a node that founds a cluster from the trainer's own state."""


@dataclass(frozen=True, slots=True)
class GiveWay:
    """Have the node depart as soon as the trainer is idle."""


@dataclass(frozen=True, slots=True)
class LeaveNode:
    """Have the node leave; `orphaned`: the trainer is gone, so its work is handed back."""

    orphaned: bool


@dataclass(frozen=True, slots=True)
class LookAround:
    """Look for a cluster again (`Founding.refused`), but join none for `pause_s`."""

    pause_s: float


@dataclass(frozen=True, slots=True)
class End:
    """End the agent. `why` is "steps", "left" or "error". The user is told the reason by `say`, or
    by `message` if the node has given one. `failed`: the exit status is that of a failure."""

    why: str
    say: Say | None = None
    message: str = ""
    failed: bool = False


LifeEffect = (
    Say | KeepState | DropNode | BeginJoin | FoundCluster | GiveWay | LeaveNode | LookAround | End
)


class Life:
    """The life of one agent.

    `own()` returns the trainer's state, None unless it is whole. `goes_on`: if the others of its
    cluster are out of reach, this agent founds a cluster from what it has trained.
    """

    def __init__(self, own: Callable[[], Own | None], *, goes_on: bool = True) -> None:
        self.state = LIFE_TABLE.initial
        self.trainer_gone = False
        self._own = own
        self.goes_on = goes_on
        self._sponsor = NOTHING  # history of the state of the cluster that let this agent in
        self._admitted = False  # whether any cluster has ever let this agent in
        self._keeps = False  # whether the trainer was asked to save its state
        self._kept = ""  # path of the file in which its state was saved last
        self._said = ""  # why it could not be saved, as the user was told
        self._diverged_at: int | None = None  # step at which the state here was found to differ
        self._look_at = math.inf  # when to look around again
        self._pause_s = 0.0  # and for how long to join nobody then
        self._wants_to_leave = False
        self.standby = ""  # why this device stands by, "" if it does not
        self._follows = False  # whether it follows from outside meanwhile
        self._was_hung = False  # whether it waits for a trainer that did not answer (if HUNG)
        self._entered_at = -math.inf  # when this agent has last become a member by joining
        self._again_s = 0.0  # for how long it has joined nobody when it last had to stand by

    # --- how it stands ----------------------------------------------------------------------------

    @property
    def leaving(self) -> bool:
        """Whether the user, or the end of the trainer, wants this agent to leave."""
        return self._wants_to_leave

    @property
    def over(self) -> bool:
        """Whether this life has ended."""
        return self.state is LifeState.ENDED

    @property
    def has_node(self) -> bool:
        """Whether a node is on its way in or takes part."""
        return self.state in (*_WITH_NODE, LifeState.LEAVING)

    @property
    def is_hung(self) -> bool:
        """Whether its trainer does not answer, so that the others go on without this device."""
        return self.state is LifeState.HUNG and self._was_hung

    @property
    def deadline(self) -> float | None:
        """When a `tick` is due, None if none is."""
        return self._look_at if self.state is LifeState.REJOINING else None

    @property
    def may_found(self) -> bool:
        """Whether there is a state here from which a cluster may be founded, or may go on."""
        if self.state in (LifeState.MEMBER, LifeState.YIELDING):
            return True
        own = self._own()
        return own is not None and (self.goes_on if own.trained else not self._admitted)

    # --- the search -------------------------------------------------------------------------------

    def found(self) -> list[LifeEffect]:
        """Found a cluster, as the search says."""
        if not LIFE_TABLE.allows(self.state, "found") or self._own() is None:
            return []
        self._step("found", LifeState.MEMBER)
        self.standby = ""
        return [FoundCluster()]

    def admitted(self, past: Past) -> list[LifeEffect]:
        """A cluster whose state has the history `past` has let this agent in: a member gives way to
        it, others save what they have trained and then join."""
        if not LIFE_TABLE.allows(self.state, "admitted"):
            return []
        self._sponsor, self._admitted = past, True
        if self.state is LifeState.MEMBER:
            self._step("admitted", LifeState.YIELDING)
            return [Say(Note.AHEAD), GiveWay()]
        self._step("admitted", LifeState.SAVING)
        return [self._keep()]

    def given_up(self) -> list[LifeEffect]:
        """End, because the search says that there is nobody to join, and this agent must not
        found."""
        if not LIFE_TABLE.allows(self.state, "given up"):
            return []
        self._step("given up", LifeState.ENDED)
        broken_off = self._own() is None
        say = Say(Note.BROKEN_OFF, self._kept) if broken_off else Say(Note.NOBODY)
        return [End("error", say, failed=True)]

    # --- the node ---------------------------------------------------------------------------------

    def entered(self, now: float) -> None:
        """The node has become a member."""
        if LIFE_TABLE.allows(self.state, "entered"):
            self._step("entered", LifeState.MEMBER)
            self.standby, self._follows, self._entered_at = "", False, now

    def join_failed(
        self, now: float, reason: str, pause_s: float, *, stands_by: bool = False
    ) -> list[LifeEffect]:
        """The node's join has failed; no other is to be tried for `pause_s`. `stands_by`: because
        the others are faster without this device."""
        if not LIFE_TABLE.allows(self.state, "join failed"):
            return []
        follows, self._follows = self._follows, False
        if self.state is LifeState.LEAVING:
            self._step("join failed", LifeState.ENDED)
            return [End("left")]
        if follows:  # its trainer may be in an update, and its state is that after it
            self._step("join failed", LifeState.HUNG)
            self._pause_s = pause_s
            told = Say(Note.FOLLOWS_NO_MORE, reason, pause_s=pause_s)
            return [told, DropNode(), KeepState(False)]
        if stands_by:
            pause_s = max(pause_s, self._again_s)
            return [*self._stand_by(reason), *self._look_again(now, "join failed", pause_s)]
        return [
            Say(Note.JOIN_FAILED, reason, pause_s=pause_s),
            *self._look_again(now, "join failed", pause_s),
        ]

    def follows(self, reason: str) -> list[LifeEffect]:
        """The node follows the others from outside for `reason`: its join goes on until it is worth
        its place."""
        if self.state is not LifeState.JOINING:
            return []
        told = [] if self._follows else [Say(Note.FOLLOWS, reason)]
        self.standby, self._follows = reason, True
        return [*told]

    def departed(self, now: float, why: str, message: str = "") -> list[LifeEffect]:
        """The node's part is over, for the reason `why` of its `Depart`. "steps", "left",
        "removed", "parts lost" and "error" end this agent, "expelled", "diverged", "stalled",
        "standby" and "yielded" only this membership."""
        if not LIFE_TABLE.allows(self.state, "departed"):
            return []
        self._follows = False
        if self.state is LifeState.LEAVING:
            return self._departed_as_wanted(why, message)
        match why:
            case "expelled":
                return [Say(Note.EXPELLED), *self._look_again(now, "departed")]
            case "diverged":
                return self._diverged(now)
            case "standby":
                briefly = now - self._entered_at < STEADY_SECONDS
                before = self._again_s if briefly else 0.0
                self._again_s = min(max(2 * before, AGAIN_SECONDS), MOST_AGAIN_SECONDS)
                return [*self._stand_by(message), *self._look_again(now, "departed", self._again_s)]
            case "stalled":
                self._step("departed", LifeState.HUNG)
                self._was_hung = True
                return [Say(Note.HUNG), DropNode(), KeepState(False)]
            case "yielded":
                # The node goes before the state is saved: its open links would let the cluster that
                # it has left count it as present for as long as its trainer writes the file.
                self._step("departed", LifeState.SAVING)
                return [DropNode(), self._keep()]
        self._step("departed", LifeState.ENDED)
        return [self._end_of(why, message)]

    def _stand_by(self, reason: str) -> list[LifeEffect]:
        """Note why this device stands by, and tell the user once. It asks to join again and again,
        and each time its links are measured anew."""
        told = [] if self.standby else [Say(Note.STANDBY, reason)]
        self.standby = reason
        return [*told]

    def _departed_as_wanted(self, why: str, message: str) -> list[LifeEffect]:
        """End, because the node of an agent that wants to leave is gone, for whatever reason."""
        self._step("departed", LifeState.ENDED)
        if why == "diverged":
            return [End("error", Say(Note.DIVERGED_LEAVER), failed=True)]
        return [self._end_of(why, message)]

    def _end_of(self, why: str, message: str) -> End:
        if why == "error":
            return End("error", message=message, failed=True)
        if why in ("removed", "parts lost"):  # the trainer saves its model, as when it leaves
            return End("left", message=message, failed=True)
        return End("steps" if why == "steps" else "left")

    def _diverged(self, now: float) -> list[LifeEffect]:
        """The state here differs from that of the others: pull theirs. If that has happened shortly
        before, it would happen again and again, so this agent ends."""
        own = self._own()
        at = own.past.iteration if own is not None else 0
        before, self._diverged_at = self._diverged_at, at
        if before is not None and at - before < DIVERGED_AGAIN_STEPS:
            self._step("departed", LifeState.ENDED)
            return [End("error", Say(Note.DIVERGED_AGAIN, iterations=(before, at)), failed=True)]
        return self._look_again(now, "departed")

    # --- the trainer ------------------------------------------------------------------------------

    def saved(self, now: float, path: str, error: str) -> list[LifeEffect]:
        """The trainer is idle. `path` is the file in which it has saved its state, "" if it did not
        have to or its script saves nothing; `error` says why it could not be saved."""
        if self.state is LifeState.HUNG:
            was_hung, self._was_hung = self._was_hung, False
            if was_hung:
                return [Say(Note.ANSWERS), *self._look_again(now, "saved")]
            return self._look_again(now, "saved", self._pause_s)
        if self.state is not LifeState.SAVING:
            return []
        if error:
            told = [Say(Note.NOT_KEPT, error)] if error != self._said else []
            self._said = error
            return [*told, *self._look_again(now, "saved", KEEP_AGAIN_SECONDS)]
        if self._would_be_lost and not self._keeps:
            return [self._keep()]  # an update has been applied since the trainer was asked
        self._kept = path
        own = self._own()
        told = []
        if own is not None and self._would_be_lost:
            told = [Say(Note.KEPT, path, (own.past.iteration,))]
        self._step("saved", LifeState.JOINING)
        return [*told, DropNode(), BeginJoin()]

    def _keep(self) -> KeepState:
        """Have the trainer save its state, unless the cluster to be joined contains it."""
        self._keeps = self._would_be_lost
        return KeepState(self._keeps)

    @property
    def _would_be_lost(self) -> bool:
        """Whether something was trained here that the cluster to be joined does not contain."""
        own = self._own()
        return own is not None and not self._sponsor.contains(own.past)

    # --- the user, the clock ----------------------------------------------------------------------

    def leave(self, *, trainer_gone: bool = False) -> list[LifeEffect]:
        """Leave, because the user wants it or because the trainer is gone."""
        self._wants_to_leave = True
        news = trainer_gone and not self.trainer_gone
        self.trainer_gone = self.trainer_gone or trainer_gone
        if self.state is LifeState.LEAVING:
            return [LeaveNode(True)] if news else []
        if not LIFE_TABLE.allows(self.state, "leave"):
            return []
        if self.state in _WITHOUT:
            self._step("leave", LifeState.ENDED)
            return [End("left")]
        self._step("leave", LifeState.LEAVING)
        return [LeaveNode(trainer_gone)]

    def ended(self) -> None:
        """Begin nothing any more, because this agent ends for a reason outside of this machine."""
        if not self.over:
            self._step("ended", LifeState.ENDED)

    def tick(self, now: float) -> list[LifeEffect]:
        """Look around again if it is time to."""
        if self.state is not LifeState.REJOINING or now < self._look_at:
            return []
        self._step("time", LifeState.SEARCHING)
        return [LookAround(self._pause_s)]

    def _look_again(self, now: float, event: str, pause_s: float = 0.0) -> list[LifeEffect]:
        self._step(event, LifeState.REJOINING)
        self._look_at, self._pause_s = now + REJOIN_SECONDS, pause_s
        return [DropNode()]

    def _step(self, event: str, then: LifeState) -> None:
        self.state = LIFE_TABLE.step(self.state, event, then)
