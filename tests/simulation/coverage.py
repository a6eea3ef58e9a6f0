"""Which moves of the state tables a history makes.

While `recording`, every move (table, state, event, next state) is recorded from outside, by
wrapping `StateTable.step`, so the machines behave as always.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from protocols.cluster.election import ELECTION_TABLE
from protocols.cluster.founding import FOUNDING_TABLE
from protocols.cluster.life import LIFE_TABLE, LifeState
from protocols.member.cycle_table import CYCLE_TABLE
from protocols.member.freeze import FREEZE_TABLE
from protocols.member.joining_table import JOINING_TABLE
from protocols.member.pull import PULL_TABLE
from protocols.scheduler.fence import FENCE_TABLE
from protocols.scheduler.join import JOIN_TABLE
from protocols.table import StateTable

Move = tuple[str, str, str, str]

TABLES: tuple[StateTable[Any], ...] = (
    CYCLE_TABLE,
    ELECTION_TABLE,
    FENCE_TABLE,
    FOUNDING_TABLE,
    FREEZE_TABLE,
    JOIN_TABLE,
    JOINING_TABLE,
    LIFE_TABLE,
    PULL_TABLE,
)

_PULLS = "needs a liar (`tamper`) or all sources lost in a pull: tests/unit/protocols/test_joins.py"
_ALONE = "needs a single voter: tests/unit/protocols/test_election.py"
_ALIKE = (
    "the table allows a restart from every state to every begun one; these pairs need a fence in "
)
_ALIKE += "one short moment (before a subscriber or a farewell round): test_moments.py plays them"
_FETCH = "needs a body that is still missing when the next thing happens: one in some 500 seeds"
_SOON = "a partition in the moment of a wait or of a search: one in some 200 seeds"
_DISK = "needs a disk that is full: tests/unit/protocols/test_life.py"
_BRIEF = "a membership that is over before the agent has noticed it: test_life.py"
_MOMENT = "something else happens in a moment between two steps: test_life.py"
_OTHERWISE = "an end that this machine does not decide, as an internal error: test_life.py"
_UNSAID = "needs a scheduler that has the others hold before the joiner says that it has copied"
_STILL = "needs a shell that stands still later than it is told, which the simulator's does not"
_UNASKED = "needs a decision that comes without its fence: not seen in 1,200 seeds"
_FINISHED = "needs others to have all results after a fence, while a joiner copies the state"
_ONCE = "possible by the table, not seen in 1,200 seeds: unit tests only"

_APART = "needs two halves that each pause, or lack parts, and meet again; test_later_terms.py"

# Moves that the suite's own random histories need not make, and why.
RARE: dict[Move, str] = {
    ("cycle", "idle", "start", "farewell"): "a join in the last iteration: one in some 1,000 seeds",
    ("cycle", "computing", "contributed", "computing"): _ONCE,
    ("cycle", "publishing", "reduced", "holding"): _FINISHED,
    ("cycle", "computing", "reduced", "applying"): _ONCE,
    ("cycle", "computing", "reduced", "holding"): _ONCE,
    ("cycle", "fetching", "body", "farewell"): _FETCH,
    ("cycle", "fetching", "body", "frozen"): _FETCH,
    ("cycle", "fetching", "body", "over"): _FETCH,
    ("cycle", "fetching", "left", "over"): _FETCH,
    ("cycle", "farewell", "left", "over"): _SOON,
    **{
        ("cycle", state, "restart", then): _ALIKE
        for state in ("computing", "reducing", "holding", "fetching", "frozen", "farewell")
        for then in ("computing", "reducing", "farewell")
        if (state, then) not in (("computing", "computing"), ("reducing", "computing"))
    },
    ("election", "candidate", "role passed", "candidate"): _SOON,
    ("election", "candidate", "role passed", "scheduler"): _SOON,
    ("election", "follower", "role passed", "scheduler"): _ALONE,
    ("election", "follower", "scheduler lost", "scheduler"): _ALONE,
    ("election", "scheduler", "vote wanted", "follower"): _ONCE,
    ("election", "scheduler", "rival", "follower"): _APART,
    ("fence (scheduler)", "waiting", "lost", "preparing"): _SOON,
    ("freeze", "stopping", "asked", "stopping"): _STILL,
    ("freeze", "reported", "stands still", "reported"): _STILL,
    ("freeze", "stopping", "decided", "free"): _STILL,
    ("freeze", "free", "decided", "free"): _UNASKED,
    ("founding", "listening", "refused", "listening"): _SOON,
    ("founding", "deferring", "refused", "listening"): _SOON,
    ("join (scheduler)", "pulling", "entry in force", "entered"): _ONCE,
    ("join (joiner)", "copying", "pull begins", "pulling"): _UNSAID,
    ("life of an agent", "saving", "saved", "rejoining"): _DISK,
    ("life of an agent", "joining", "departed", "rejoining"): _BRIEF,
    ("life of an agent", "joining", "departed", "hung"): _BRIEF,
    **{
        ("life of an agent", "yielding", "departed", then): _MOMENT
        for then in ("rejoining", "hung", "ended")
    },
    ("life of an agent", "yielding", "leave", "leaving"): _MOMENT,
    ("life of an agent", "hung", "leave", "ended"): _MOMENT,
    ("life of an agent", "rejoining", "leave", "ended"): _MOMENT,
    ("life of an agent", "leaving", "join failed", "ended"): _MOMENT,
    **{
        ("life of an agent", state.value, "ended", "ended"): _OTHERWISE
        for state in LifeState
        if state is not LifeState.ENDED
    },
    ("pull", "waiting", "source lost", "waiting"): _PULLS,
    ("pull", "waiting", "source lost", "failed"): _PULLS,
    ("pull", "waiting", "own shards", "waiting"): _PULLS,
    ("pull", "copying", "manifest", "failed"): _PULLS,
    ("pull", "copying", "shard", "failed"): _PULLS,
    ("pull", "copying", "source lost", "failed"): _PULLS,
}


def all_moves() -> dict[Move, None]:
    """Return every move that the tables allow."""
    return {
        (table.name, str(row.state), row.event, str(then)): None
        for table in TABLES
        for row in table.rows
        for then in row.then
    }


@contextmanager
def recording() -> Iterator[dict[Move, int]]:
    """Count the moves that are made while the context lasts: move -> how often."""
    seen: dict[Move, int] = {}
    real = StateTable.step

    def step(table: StateTable[Any], state: Any, event: str, then: Any) -> Any:
        moved = real(table, state, event, then)
        key = (table.name, str(state), event, str(then))
        seen[key] = seen.get(key, 0) + 1
        return moved

    StateTable.step = step  # type: ignore[method-assign,assignment]
    try:
        yield seen
    finally:
        StateTable.step = real  # type: ignore[method-assign]
