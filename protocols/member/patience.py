"""For what a joiner that follows the rounds does not wait any longer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import limits
from protocols.member.cycle_table import CycleState

if TYPE_CHECKING:
    from protocols.member.context import Context


class Patience:
    """What one joiner lacks, and since when."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._fetching_since: float | None = None  # since when a policy's body is missing
        self._unfed_since: float | None = None  # since when a link is gone that it is fed over

    def ended(self, now: float, state: CycleState, *, may_enter: bool) -> str:
        """Return why the join is to be given up, "" if it is not. `state`: where this node stands
        in its iteration. `may_enter`: it may be a member once the update here is applied.

        A policy's body may be missing for good: members keep only their last policies, so a joiner
        whose trainer hung in its first update, while the members went on, may need one that nobody
        has any more. A link from one that feeds this node may end because that member leaves, and
        has sent everything; then the next policy names others.
        """
        fetches, unfed = state is CycleState.FETCHING, "" if may_enter else self._unfed_by()
        self._fetching_since = _since(self._fetching_since, now, lasts=fetches)
        self._unfed_since = _since(self._unfed_since, now, lasts=bool(unfed))
        if _over(self._fetching_since, now, limits.FETCH_PATIENCE_SECONDS):
            return "the others are too far ahead to be followed"
        if _over(self._unfed_since, now, limits.RETRY_SECONDS):
            return f"the link to {unfed} broke"
        return ""

    def _unfed_by(self) -> str:
        """Return the name of one that feeds this node under the policy in force, and to which it
        has no link; "" if there is none."""
        context = self._context
        if (pull := context.pull_of(context.node)) is None:
            return ""
        gone = [n for n in pull.sources if pull.is_fed_by(n) and n not in context.links]
        return context.name(gone[0]) if gone else ""


def _since(before: float | None, now: float, *, lasts: bool) -> float | None:
    return (now if before is None else before) if lasts else None


def _over(since: float | None, now: float, most_s: float) -> bool:
    return since is not None and now - since >= most_s
