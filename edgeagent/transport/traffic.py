"""What all links of this device carry at the same time, in both directions."""

from __future__ import annotations

from protocols.network.together import Together

QUIET_SECONDS = 0.02  # a link on which nothing has arrived for so long brings nothing at present


class Traffic:
    """Counts for all links together; times are those of one clock, in seconds.

    `sent` is kept by the links themselves: a link has something to carry while frames wait in its
    queue. Nothing tells whether the other end has more to send, so of what arrives, a link counts
    as busy until `QUIET_SECONDS` after its last bytes.
    """

    def __init__(self) -> None:
        self.sent = Together()
        self.received = Together()
        self._arrived: dict[bytes, float] = {}  # busy link -> when its last bytes came

    def arrived(self, node: bytes, size: int, now: float) -> None:
        """`size` bytes have arrived from `node`."""
        for other, at in list(self._arrived.items()):
            if now - at > QUIET_SECONDS:
                del self._arrived[other]
                self.received.ends(other, now)
        if node not in self._arrived:
            self.received.begins(node, now)
        self._arrived[node] = now
        self.received.carried(node, size, now)

    def brings_others(self, node: bytes, now: float) -> bool:
        """Whether other links than that to `node` bring something at present."""
        return any(n != node and now - at <= QUIET_SECONDS for n, at in self._arrived.items())

    def forget(self, node: bytes, now: float) -> None:
        """The link to `node` has ended."""
        self._arrived.pop(node, None)
        self.sent.ends(node, now)
        self.received.ends(node, now)
