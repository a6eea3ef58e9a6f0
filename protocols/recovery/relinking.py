"""Opening links of the view in force again after they have ended.

A link is dialled again unless its end proves that the other end has departed: devices sleep,
addresses change, and connections are reset. Both ends dial at once, and again after each failure,
for as long as both are members of the view in force. A member that has moved is dialled at the
addresses where it was found last, too.

A member whose bytes cannot be is trusted and dialled again after a pause, which doubles each time,
unless it was accused of what it has sent (`suspicion.py`). Damage on the way may end all links of a
member so, one after the other, and no fence brings them back: where none has a quorum any more, all
would wait for ever.

The new link does not carry what was lost with the old one, so the running round has to be begun
anew nevertheless (`losses.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from protocols import limits
from protocols.effects import Dial, Trust

if TYPE_CHECKING:
    from protocols.member.context import Context

MOST_OFFENCES = 16  # the pause is at its longest by then


class Relinking:
    """The links that this member tries to open again."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._again_at: dict[bytes, float] = {}  # node -> when to dial it (again)
        self._found_at: dict[bytes, tuple[str, ...]] = {}  # node -> addresses newer than the view's
        # Node that has broken the protocol -> how often, and until when it is not dialled.
        self._offences: dict[bytes, tuple[int, float]] = {}

    def watch(self, now: float, missing: list[bytes]) -> None:
        """Dial those of the `missing` neighbours for which it is time to."""
        view = self._context.policy.view if self._context.policy is not None else None
        members = [view.member(n) for n in missing] if view is not None else []
        wanted = {m.node: m for m in members if m is not None}
        self._again_at = {n: self._again_at.get(n, self._earliest(n, now)) for n in wanted}
        nodes = view.nodes if view is not None else ()
        self._found_at = {n: a for n, a in self._found_at.items() if n in nodes}
        self._offences = {n: o for n, o in self._offences.items() if n in nodes}
        for node, member in wanted.items():
            if now >= self._again_at[node]:
                self._again_at[node] = now + limits.LINK_OPEN_SECONDS + limits.RETRY_SECONDS
                known = dict.fromkeys((*self._found_at.get(node, ()), *member.addresses))
                addresses = tuple(known)[: limits.MAX_ADDRESSES]
                if node in self._offences:
                    self._context.do(Trust(member))
                self._context.do(Dial(replace(member, addresses=addresses)))

    def broke_protocol(self, now: float, node: bytes) -> None:
        """Note that the link to `node` was ended because of bytes or messages that cannot be."""
        times = self._offences.get(node, (0, 0.0))[0] + 1
        pause = min(limits.OFFENCE_SECONDS * 2.0**times / 2, limits.OFFENCE_MOST_SECONDS)
        # More than fit the doubling are not counted: a number that grows for ever overflows.
        self._offences[node] = min(times, MOST_OFFENCES), now + pause
        self._again_at.pop(node, None)

    def _earliest(self, node: bytes, now: float) -> float:
        """Return when `node`, to which no link is open any more, is dialled for the first time."""
        return max(now, self._offences.get(node, (0, now))[1])

    def located(self, now: float, node: bytes, addresses: tuple[str, ...]) -> None:
        """Note that `node` was found at these addresses; dial it at once if it is missing and they
        are new."""
        policy = self._context.policy
        if policy is None or node not in policy.view.nodes or not addresses:
            return
        if self._found_at.get(node) != addresses and node in self._again_at:
            self._again_at[node] = self._earliest(node, now)
        self._found_at[node] = addresses

    def failed(self, now: float, node: bytes) -> None:
        """Note that no link to `node` could be opened, so that it is dialled again soon."""
        if node in self._again_at:
            self._again_at[node] = now + limits.RETRY_SECONDS

    @property
    def deadline(self) -> float | None:
        """When a neighbour is to be dialled next, None if none is missing."""
        return min(self._again_at.values(), default=None)
