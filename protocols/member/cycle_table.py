"""Where a node can stand in its iteration, and what may follow (`cycle.py`)."""

from __future__ import annotations

from enum import StrEnum

from protocols.table import Row, StateTable


class CycleState(StrEnum):
    """Where this node stands in its iteration."""

    # PUBLISHING: the trainer makes results of the sums that this node owns. HOLDING: reduced, but a
    # joiner still copies the state. FETCHING: the policy of the next iteration is missing. FROZEN:
    # between two iterations when a fence came. OVER: no part any more.
    IDLE = "idle"
    COMPUTING = "computing"
    REDUCING = "reducing"
    PUBLISHING = "publishing"
    HOLDING = "holding"
    APPLYING = "applying"
    FETCHING = "fetching"
    FROZEN = "frozen"
    FAREWELL = "farewell"
    OVER = "over"


_BEGUN = (CycleState.COMPUTING, CycleState.REDUCING, CycleState.FAREWELL)
_NEXT = (*_BEGUN, CycleState.FETCHING, CycleState.FROZEN, CycleState.OVER)
_STARTED_ANEW = (
    *_BEGUN,
    CycleState.HOLDING,
    CycleState.FETCHING,
    CycleState.FROZEN,
)
CYCLE_TABLE: StateTable[CycleState] = StateTable(
    "cycle",
    Row(CycleState.IDLE, "start", _BEGUN),
    Row(CycleState.COMPUTING, "contributed", (CycleState.COMPUTING, CycleState.REDUCING)),
    Row(CycleState.COMPUTING, "reduced", (CycleState.HOLDING, CycleState.APPLYING)),
    Row(
        CycleState.REDUCING,
        "reduced",
        (CycleState.COMPUTING, CycleState.REDUCING, CycleState.HOLDING, CycleState.APPLYING),
    ),
    Row(
        CycleState.REDUCING,
        "decided",
        (CycleState.COMPUTING, CycleState.REDUCING, CycleState.PUBLISHING),
    ),
    Row(CycleState.PUBLISHING, "published", (CycleState.REDUCING,)),
    Row(CycleState.PUBLISHING, "reduced", (CycleState.HOLDING, CycleState.APPLYING)),
    Row(CycleState.HOLDING, "released", (CycleState.HOLDING, CycleState.APPLYING)),
    Row(CycleState.APPLYING, "applied", _NEXT),
    Row(CycleState.FETCHING, "body", _NEXT),
    Row(CycleState.FAREWELL, "reduced", (CycleState.OVER,)),
    # Results lie in the place of this node's own sums, so it could not contribute these again. It
    # has the final word, so a fence finishes the iteration.
    Row(CycleState.PUBLISHING, "restart", (CycleState.REDUCING,)),
    *(Row(state, "restart", _BEGUN) for state in _STARTED_ANEW),
    *(
        Row(state, "left", (CycleState.OVER,))
        for state in CycleState
        if state is not CycleState.OVER
    ),
)
