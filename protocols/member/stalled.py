"""Which sources of a joiner owe an answer and have sent nothing for too long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols import limits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from protocols.events import Incoming


class Stalled:
    """Watches what the sources of one joiner send."""

    def __init__(self) -> None:
        self._received: dict[bytes, int] = {}  # neighbour -> payload bytes it has sent us so far
        self._owed: dict[bytes, tuple[int, float]] = {}  # source -> (received, unchanged since)

    def measured(self, links: Iterable[Incoming]) -> None:
        """Take how much has come over each link."""
        self._received = {link.node: link.received_bytes for link in links}

    def look(self, now: float, owing: dict[bytes, int]) -> list[bytes]:
        """Return the sources that have sent nothing at all, shards or chunks, for
        `PULL_STALL_SECONDS`, although they owe an answer. `owing`: source -> how often it has
        answered so far, for those that owe one."""
        before, self._owed = self._owed, {}
        for source, answers in owing.items():
            count = answers + self._received.get(source, 0)  # both only grow
            known = before.get(source)
            since = known[1] if known is not None and known[0] == count else now
            self._owed[source] = (count, since)
        return [
            source
            for source, (_, since) in self._owed.items()
            if now - since >= limits.PULL_STALL_SECONDS
        ]
