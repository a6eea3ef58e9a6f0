"""Whether a fence holds this node, so that it accepts, sends and applies nothing.

A member that a fence has asked stops its round, reports how far it is, and goes on only by a
decision, because otherwise its report would no longer be true (protocol.md, I6). This holds beside
whatever state its training loop is in (`cycle.py`), which the decision may continue or restart.
"""

from __future__ import annotations

from enum import StrEnum

from protocols.table import Row, StateTable


class FreezeState(StrEnum):
    """How far this node is in a fence."""

    # FREE: no fence holds it. STOPPING: asked, but its round, or the update that is being applied,
    # does not stand still yet. REPORTED: it stands still, and has told how far it is.
    FREE = "free"
    STOPPING = "stopping"
    REPORTED = "reported"


FREEZE_TABLE: StateTable[FreezeState] = StateTable(
    "freeze",
    Row(FreezeState.FREE, "asked", (FreezeState.STOPPING,)),
    # A newer fence needs a report of its own, since reports name the fence.
    Row(FreezeState.STOPPING, "asked", (FreezeState.STOPPING,)),
    Row(FreezeState.REPORTED, "asked", (FreezeState.STOPPING,)),
    Row(FreezeState.STOPPING, "stands still", (FreezeState.REPORTED,)),
    Row(FreezeState.REPORTED, "stands still", (FreezeState.REPORTED,)),
    # A joiner that turns out to be no member stands outside of the fence.
    Row(FreezeState.STOPPING, "outside", (FreezeState.FREE,)),
    *(Row(state, "decided", (FreezeState.FREE,)) for state in FreezeState),
)


class Freeze:
    """The state of one node in fences; `Fenced` moves it, and the training loop obeys it."""

    def __init__(self) -> None:
        self.state = FREEZE_TABLE.initial

    @property
    def holds(self) -> bool:
        """Whether this node must do nothing that would make its report untrue."""
        return self.state is not FreezeState.FREE

    def asked(self) -> None:
        """A fence has asked this node to stop."""
        self.state = FREEZE_TABLE.step(self.state, "asked", FreezeState.STOPPING)

    def stands_still(self) -> None:
        """Its round stands still, and it reports."""
        self.state = FREEZE_TABLE.step(self.state, "stands still", FreezeState.REPORTED)

    def outside(self) -> None:
        """It is no member, so the fence does not concern it."""
        self.state = FREEZE_TABLE.step(self.state, "outside", FreezeState.FREE)

    def decided(self) -> None:
        """It acts on the decision of a fence."""
        self.state = FREEZE_TABLE.step(self.state, "decided", FreezeState.FREE)
