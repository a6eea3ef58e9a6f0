"""How control messages travel hop by hop over links, so that not every pair needs a direct link.

A message is identified by (origin, incarnation, sequence number). Each node delivers and forwards
it at most once, although it may arrive over several links. A message that has crossed
`limits.MAX_HOPS` links is dropped. If there is a direct link to the destination only that is used;
otherwise the message is flooded over all links. A message that its origin repeats anyway is not
passed on to nodes that have a link to its origin, nor by joiners: where all nodes are linked,
passing it on would bring each of them as many copies as it has links.
"""

from __future__ import annotations

from dataclasses import replace

from protocols import limits
from protocols.wire.envelope import Envelope, Tags
from protocols.wire.messages import EVERYONE, REPEATED_MESSAGES, Message

Identities = tuple[
    bytes, int, int, int, int, int
]  # lineage, term, view, policy, iteration, attempt


class Seen:
    """Which sequence numbers of one origin were seen. Only the last `SEEN_WINDOW` numbers below the
    highest one are remembered; older ones count as seen."""

    def __init__(self) -> None:
        self._highest = -1
        self._bits = 0  # bit k is set if `_highest` - k was seen

    def add(self, sequence: int) -> bool:
        """Note `sequence`; return True if it is new."""
        ahead = sequence - self._highest
        if ahead > 0:
            window = (1 << limits.SEEN_WINDOW) - 1
            shifted = self._bits << ahead if ahead < limits.SEEN_WINDOW else 0
            self._bits = (shifted & window) | 1
            self._highest = sequence
            return True
        if -ahead >= limits.SEEN_WINDOW or self._bits >> -ahead & 1:
            return False
        self._bits |= 1 << -ahead
        return True


class Router:
    """Numbers this node's messages, and decides for each received one whether to deliver it, to
    forward it, or to drop it as a duplicate."""

    def __init__(self, node: bytes, incarnation: int) -> None:
        self.node = node
        self.incarnation = incarnation
        self._sequence = 0
        self._seen: dict[tuple[bytes, int], Seen] = {}

    @property
    def is_new(self) -> bool:
        """Whether nothing was stamped or received yet."""
        return not self._sequence and not self._seen

    def stamp(self, tags: Identities, to: bytes, body: Message) -> Envelope:
        """Return `body` in a new envelope from this node; `tags` say where this node stands."""
        self._sequence += 1
        return Envelope(Tags(*tags, self.node, self.incarnation, self._sequence, to, 0), body)

    def ways(
        self,
        envelope: Envelope,
        links: tuple[bytes, ...],
        via: bytes | None,
        near: tuple[bytes, ...] = (),
    ) -> tuple[bytes, ...]:
        """Return which of the neighbours `links` to send `envelope` to. `via` is the neighbour it
        came from, None if it is this node's own. `near`: nodes that a message which its origin
        repeats reaches anyway."""
        to = envelope.tags.destination
        if to == self.node:
            return ()
        if to != EVERYONE and to in links:
            return (to,)
        have_it = {via, envelope.tags.origin}
        if via is not None and isinstance(envelope.message, REPEATED_MESSAGES):
            have_it.update(near)
        return tuple(n for n in links if n not in have_it)

    def receive(self, envelope: Envelope) -> tuple[bool, Envelope | None]:
        """Return whether to deliver `envelope` here, and the envelope to forward, None for none."""
        tags = envelope.tags
        if tags.origin == self.node or not self._is_new(tags):
            return False, None
        deliver = tags.destination in (self.node, EVERYONE)
        if tags.destination == self.node or tags.hops + 1 >= limits.MAX_HOPS:
            return deliver, None
        return deliver, Envelope(replace(tags, hops=tags.hops + 1), envelope.message)

    def _is_new(self, tags: Tags) -> bool:
        key = (tags.origin, tags.incarnation)
        seen = self._seen.get(key)
        if seen is None:
            if len(self._seen) >= limits.MAX_ORIGINS:
                del self._seen[next(iter(self._seen))]
            seen = self._seen[key] = Seen()
        return seen.add(tags.sequence)
