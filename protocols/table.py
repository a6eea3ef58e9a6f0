"""State tables: a machine's states, the events that it takes in each, and where they may lead.

A machine changes its state only through `StateTable.step`. A move that is not in its table is a bug
of ours (`LocalProtocolError`). A peer cannot cause one, because machines drop messages that
`allows` does not permit in their state. `scripts/state_tables` prints the tables as diagrams.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from protocols.errors import LocalProtocolError

S = TypeVar("S", bound=str)


@dataclass(frozen=True, slots=True)
class Row(Generic[S]):
    """In `state`, `event` leads to one of the states `then`; which of them is up to the machine."""

    state: S
    event: str
    then: tuple[S, ...]


class StateTable(Generic[S]):
    """A named set of rows; the first row's state is the initial one."""

    def __init__(self, name: str, *rows: Row[S]) -> None:
        self.name = name
        self.rows = rows
        self._cells = {(row.state, row.event): row.then for row in rows}

    @property
    def initial(self) -> S:
        """The state in which a machine begins."""
        return self.rows[0].state

    def allows(self, state: S, event: str) -> bool:
        """Whether the table has a row for `event` in `state`."""
        return (state, event) in self._cells

    def step(self, state: S, event: str, then: S) -> S:
        """Return `then`, the next state. Raises `LocalProtocolError` if the table has no such
        move."""
        if then not in self._cells.get((state, event), ()):
            raise LocalProtocolError(f"{self.name}: no move from {state} by {event} to {then}")
        return then

    def mermaid(self) -> str:
        """Return the table as a Mermaid state diagram."""
        lines = ["stateDiagram-v2", f"    [*] --> {self.initial}"]
        for row in self.rows:
            lines += [f"    {row.state} --> {then}: {row.event}" for then in row.then]
        leaving = dict.fromkeys(row.state for row in self.rows)
        ends = dict.fromkeys(t for row in self.rows for t in row.then if t not in leaving)
        lines += [f"    {state} --> [*]" for state in ends]
        return "\n".join(lines)
