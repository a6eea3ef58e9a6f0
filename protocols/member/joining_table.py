"""The states of a joiner, and the moves between them (protocol.md, 14)."""

from __future__ import annotations

from enum import StrEnum

from protocols.table import Row, StateTable


class JoiningState(StrEnum):
    """Where the joiner stands."""

    # ATTACHING: waits for the sponsor's `Welcome`. REQUESTED: has asked the scheduler. LINKING:
    # opens the links it was told to. WAITING: for the policy that names its pull. COPYING: beside
    # the training, a snapshot and the updates since then. COPIED: lacks only the last updates, and
    # waits for the policy for these. PULLING: while the members hold their update. FOLLOWING: has
    # the state, and waits for its first update, unless it has applied one to the snapshot that it
    # copied. CAUGHT_UP: waits for a policy with it in the view.
    ATTACHING = "attaching"
    REQUESTED = "requested"
    LINKING = "linking"
    WAITING = "waiting"
    COPYING = "copying"
    COPIED = "copied"
    PULLING = "pulling"
    FOLLOWING = "following"
    CAUGHT_UP = "caught-up"
    ENTERED = "entered"
    FAILED = "failed"


COPYING = (JoiningState.COPYING, JoiningState.COPIED, JoiningState.PULLING)
MAY_STAY_OUTSIDE = (JoiningState.WAITING, JoiningState.COPYING, JoiningState.COPIED)
ON_THE_WAY = tuple(s for s in JoiningState if s not in (JoiningState.ENTERED, JoiningState.FAILED))
JOINING_TABLE: StateTable[JoiningState] = StateTable(
    "join (joiner)",
    Row(JoiningState.ATTACHING, "welcome", (JoiningState.REQUESTED,)),
    Row(JoiningState.REQUESTED, "open links", (JoiningState.LINKING,)),
    Row(JoiningState.LINKING, "links settled", (JoiningState.WAITING,)),
    Row(JoiningState.WAITING, "pull begins", (JoiningState.PULLING,)),
    Row(JoiningState.WAITING, "copy begins", (JoiningState.COPYING,)),
    Row(JoiningState.COPYING, "close", (JoiningState.COPIED,)),
    Row(JoiningState.COPYING, "pull begins", (JoiningState.PULLING,)),
    Row(JoiningState.COPIED, "pull begins", (JoiningState.PULLING,)),
    Row(JoiningState.PULLING, "pulled", (JoiningState.FOLLOWING,)),
    Row(JoiningState.FOLLOWING, "applied", (JoiningState.CAUGHT_UP,)),
    Row(JoiningState.CAUGHT_UP, "named", (JoiningState.ENTERED,)),
    *(Row(state, "failed", (JoiningState.FAILED,)) for state in ON_THE_WAY),
)
