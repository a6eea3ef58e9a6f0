"""Reduced chunks on their way to joiners, which follow the rounds without taking part in them.

While a joiner copies the state, the chunks of its round wait behind the shards: the members hold
their update until the joiner has the state, so the state is more urgent. Afterwards the shell asks
how far the joiner is behind, because all members wait at once for what it still lacks when it
becomes one of them. The order of chunks is kept. What waits, here or on the link, is a copy, and
its size is known.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeagent.transport.api import Link
    from protocols.wire.bulk import BulkHeader


class Forwarding:
    """What one node forwards to joiners."""

    def __init__(self) -> None:
        self._sent: dict[bytes, deque[tuple[int, int]]] = {}  # peer -> (end on the link, bytes)
        self._held: dict[bytes, deque[tuple[BulkHeader, memoryview]]] = {}

    def waiting(self, link: Link) -> int:
        """Return the bytes that `link` has not sent yet, or was not given."""
        held = self._held.get(link.peer.node, ())
        return self._unsent(link) + sum(len(payload) for _, payload in held)

    def is_ahead(self, links: dict[bytes, Link], most: int) -> bool:
        """Whether a joiner has still to be sent more than `most` bytes of what it was given."""
        return any(peer in links and self._unsent(links[peer]) > most for peer in self._sent)

    def _unsent(self, link: Link) -> int:
        queued = self._sent.get(link.peer.node, deque())
        while queued and queued[0][0] <= link.bulk_bytes_sent:
            queued.popleft()
        return sum(size for _, size in queued)

    def send(self, link: Link, header: BulkHeader, payload: memoryview, *, hold: bool) -> None:
        """Send a chunk, behind those that wait, or have it wait, too."""
        if hold:
            self._held.setdefault(link.peer.node, deque()).append((header, payload))
            return
        self._release(link)
        self._send(link, header, payload)

    def release(self, holds: Callable[[bytes], bool], links: dict[bytes, Link]) -> None:
        """Send what waits to those for whom it need not wait any more."""
        for peer in [p for p in self._held if not holds(p)]:
            if (link := links.get(peer)) is not None:
                self._release(link)
            self._held.pop(peer, None)

    def forget(self, peer: bytes) -> None:
        """The link to `peer` is gone."""
        self._sent.pop(peer, None)
        self._held.pop(peer, None)

    def _release(self, link: Link) -> None:
        for header, payload in self._held.pop(link.peer.node, ()):
            self._send(link, header, payload)

    def _send(self, link: Link, header: BulkHeader, payload: memoryview) -> None:
        end = link.bulk_bytes_sent + link.bulk_queued + len(payload)
        self._sent.setdefault(link.peer.node, deque()).append((end, len(payload)))
        link.send_bulk(header, payload)
