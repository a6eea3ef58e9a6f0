"""When the scheduler has its planner search for ways, and what the last search has found.

A search takes long, so it runs beside everything else: the node asks for it (`effects.SearchWays`),
and goes on with the ways in force until the answer comes (`events.WaysFound`). There is one search
at a time, and one begins at most every `limits.SEARCH_SECONDS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import limits

if TYPE_CHECKING:
    from protocols.scheduler.planning import Found


class WaysSearch:
    """The searches of one scheduler in one term.

    `found` is the last answer, None before the first. It may be for a view that has changed since,
    so the planner checks whether it still fits.
    """

    def __init__(self, term: int, *, searches: bool) -> None:
        """`searches`: whether the planner can find anything (`Planner.searches`). The numbers of
        searches begin with the `term`, so that an answer to an earlier scheduler on this node is
        not taken for one to this."""
        self.found: Found | None = None
        self._searches = searches
        self._number = term << 32
        self._is_wanted = searches
        self._is_open = False
        self._next_at = 0.0

    @property
    def deadline(self) -> float | None:
        """When the next search may begin, None if none is wanted or one is under way."""
        return self._next_at if self._is_wanted and not self._is_open else None

    def want(self) -> None:
        """Links or measurements have changed, so that other ways may be better."""
        self._is_wanted = self._searches

    def begin(self, now: float) -> int | None:
        """Return the number of a search that is to begin now, None if none is."""
        due = self.deadline
        if due is None or now < due:
            return None
        self._is_wanted, self._is_open = False, True
        self._next_at = now + limits.SEARCH_SECONDS
        self._number += 1
        return self._number

    def answered(self, number: int, found: Found) -> bool:
        """Take an answer; return whether it is one to the search under way."""
        if number != self._number or not self._is_open:
            return False
        self._is_open, self.found = False, found
        return True
