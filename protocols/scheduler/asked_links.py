"""For which links the scheduler may ask, and with which a device may join.

A member is not asked for the same link at once again, since opening one takes time. A link that has
broken again and again is not asked for at all for a while, and a device for which such a link would
be the only one is not let in for a while (`recovery/unsteady.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import limits

if TYPE_CHECKING:
    from protocols.cluster.view import Edge

Ends = tuple[bytes, bytes]  # the lower node first


class AskedLinks:
    """The pairs of nodes for whose link the scheduler of one term has asked, or shall not ask."""

    def __init__(self) -> None:
        self._again_at: dict[Ends, float] = {}  # when the pair may be asked (again)
        self._way_in_at: dict[Ends, float] = {}  # when the link may be a joiner's only one

    def spare(self, pair: Edge, until: float, joins_until: float) -> None:
        """Do not ask for this link before `until`, and let neither end in with this link alone
        before `joins_until`."""
        self._again_at[pair.low, pair.high] = until
        self._way_in_at[pair.low, pair.high] = joins_until

    def ask(self, now: float, ends: Ends) -> bool:
        """Whether to ask for this link now; if so, it is not to be asked for again at once."""
        if now < self._again_at.get(ends, 0.0):
            return False
        self._again_at[ends] = now + limits.LINK_RETRY_SECONDS
        return True

    def ways_in(
        self, now: float, joiner: bytes, near: tuple[bytes, ...]
    ) -> tuple[tuple[bytes, ...], float]:
        """Return those of the members `near` to which `joiner` may be linked, and if there are
        none, for how many seconds."""
        ends = {n: (min(n, joiner), max(n, joiner)) for n in near}
        waits = {n: self._way_in_at.get(pair, now) - now for n, pair in ends.items()}
        return tuple(n for n in near if waits[n] <= 0.0), max(0.0, min(waits.values(), default=0.0))
