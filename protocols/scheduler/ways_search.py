"""When the scheduler has its planner search for ways, and what the last search has found.

A search takes long, so it runs beside everything else: the node asks for it (`effects.SearchWays`),
and goes on with the ways in force until the answer comes (`events.WaysFound`). There is one search
at a time. The next one begins ten times as long after the last one began as that took, but 1 s
after it at the earliest and 3 s at the latest, if measurements or links have changed.

While devices join, ways are searched for the members, and for them and the joiners, in turn: the
latter are to be there when the joiners enter, but that may take long, and until then they are of no
use to the members.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import limits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocols.cluster.view import View
    from protocols.scheduler.planning import Found

# Answers are kept for the members, for them and the joiners, and for a few sets of these that were.
MOST_ANSWERS = 4


class WaysSearch:
    """The searches of one scheduler in one term.

    An answer may be for links that have changed since, so the planner checks whether it still fits.
    """

    def __init__(self, term: int, *, searches: bool) -> None:
        """`searches`: whether the planner can find anything (`Planner.searches`). The numbers of
        searches begin with the `term`, so that an answer to an earlier scheduler on this node is
        not taken for one to this."""
        # The last answers by the members that they are for, the oldest first.
        self._found: dict[tuple[bytes, ...], Found] = {}
        self._nodes: tuple[bytes, ...] = ()  # the members that the search under way is for
        self._searches = searches
        self._number = term << 32
        self._is_wanted = searches
        self._is_open = False
        self._began = self._next_at = 0.0  # when the last one began, and when the next one may

    @property
    def deadline(self) -> float | None:
        """When the next search may begin, None if none is wanted or one is under way."""
        return self._next_at if self._is_wanted and not self._is_open else None

    def want(self) -> None:
        """Links or measurements have changed, so that other ways may be better."""
        self._is_wanted = self._searches

    def found(self, view: View) -> Found | None:
        """Return the last answer for the members of `view`, None before the first."""
        return self._found.get(view.nodes)

    def begin(self, now: float, views: Sequence[View]) -> tuple[int, View] | None:
        """Return the number of a search that is to begin now, and for which of `views` it is: the
        first that there is no answer for, else the one whose answer is the oldest. None if no
        search is to begin."""
        due = self.deadline
        if due is None or now < due or not views:
            return None
        known = list(self._found)
        new = [view for view in views if view.nodes not in known]
        chosen = new[0] if new else min(views, key=lambda view: known.index(view.nodes))
        self._nodes = chosen.nodes
        self._is_wanted, self._is_open = len(new) > 1, True
        self._began = now
        self._number += 1
        return self._number, chosen

    def answered(self, now: float, number: int, found: Found) -> bool:
        """Take an answer; return whether it is one to the search under way."""
        if number != self._number or not self._is_open:
            return False
        self._is_open = False
        pause = max(limits.SEARCH_LEAST_SECONDS, limits.SEARCH_PAUSE * (now - self._began))
        self._next_at = self._began + min(limits.SEARCH_MOST_SECONDS, pause)
        self._found.pop(self._nodes, None)
        self._found[self._nodes] = found
        for old in list(self._found)[:-MOST_ANSWERS]:
            del self._found[old]
        return True
