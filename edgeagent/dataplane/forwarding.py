"""Reduced chunks on their way to joiners, which follow the rounds without taking part in them.

While a joiner copies the state, the chunks of its round are held back until the shards have been
sent. All members hold their update until the joiner has the state, so the state is more urgent than
the chunks. After that the shell asks how many bytes the joiner still lacks: once it is a member,
all others wait for it to receive them. The order of chunks is kept. Chunks that wait, here or on
the link, are copies, and their total size is known.
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
        # For each peer the chunks given to its link: (value of the link's `bulk_bytes_sent` at
        # which the chunk has left, its size in bytes).
        self._sent: dict[bytes, deque[tuple[int, int]]] = {}
        # For each peer the chunks that wait until its shards have been sent.
        self._held: dict[bytes, deque[tuple[BulkHeader, memoryview]]] = {}

    def waiting(self, link: Link) -> int:
        """Return how many bytes wait for `link`'s peer: on the link, or held back here."""
        held = self._held.get(link.peer.node, ())
        return self._unsent(link) + sum(len(payload) for _, payload in held)

    def behind(
        self, links: dict[bytes, Link], most: int, has_failed: Callable[[bytes], bool]
    ) -> list[Link]:
        """Return the links of joiners whose join has not failed, and to which more than `most`
        bytes are unsent."""
        waiting = [peer for peer in self._sent if peer in links and not has_failed(peer)]
        return [links[peer] for peer in waiting if self._unsent(links[peer]) > most]

    def _unsent(self, link: Link) -> int:
        queued = self._sent.get(link.peer.node, deque())
        while queued and queued[0][0] <= link.bulk_bytes_sent:
            queued.popleft()
        return sum(size for _, size in queued)

    def send(self, link: Link, header: BulkHeader, payload: memoryview, *, hold: bool) -> None:
        """Send a chunk after those that are held back; with `hold`, hold it back as well."""
        if hold:
            self._held.setdefault(link.peer.node, deque()).append((header, payload))
            return
        self._release(link)
        self._send(link, header, payload)

    def release(self, holds: Callable[[bytes], bool], links: dict[bytes, Link]) -> None:
        """Send what is held back for each peer for which `holds` is no longer true."""
        for peer in [p for p in self._held if not holds(p)]:
            if (link := links.get(peer)) is not None:
                self._release(link)
            self._held.pop(peer, None)

    def forget(self, peer: bytes) -> None:
        """Drop everything for `peer`, the link to which has ended."""
        self._sent.pop(peer, None)
        self._held.pop(peer, None)

    def _release(self, link: Link) -> None:
        for header, payload in self._held.pop(link.peer.node, ()):
            self._send(link, header, payload)

    def _send(self, link: Link, header: BulkHeader, payload: memoryview) -> None:
        end = link.bulk_bytes_sent + link.bulk_queued + len(payload)
        self._sent.setdefault(link.peer.node, deque()).append((end, len(payload)))
        link.send_bulk(header, payload)
