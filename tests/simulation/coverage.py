"""Which moves of the state tables a history makes.

Law: records every move (table, state, event, next state) from outside, by wrapping
`StateTable.step` while `recording`; what the machines do stays the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from protocols.cycle import CYCLE_TABLE
from protocols.election import ELECTION_TABLE
from protocols.fence import FENCE_TABLE
from protocols.founding import FOUNDING_TABLE
from protocols.joining import JOINING_TABLE
from protocols.negotiator import JOIN_TABLE
from protocols.pull import PULL_TABLE
from protocols.table import StateTable

Move = tuple[str, str, str, str]

TABLES: tuple[StateTable[Any], ...] = (
    CYCLE_TABLE,
    ELECTION_TABLE,
    FENCE_TABLE,
    FOUNDING_TABLE,
    JOIN_TABLE,
    JOINING_TABLE,
    PULL_TABLE,
)


def all_moves() -> dict[Move, None]:
    """Every move that the tables allow."""
    return {
        (table.name, str(row.state), row.event, str(then)): None
        for table in TABLES
        for row in table.rows
        for then in row.then
    }


@contextmanager
def recording() -> Iterator[dict[Move, int]]:
    """Count the moves made inside."""
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
