"""The third connection of a link, on which nothing is sent once the link is up.

How it ends tells whether the process at its other end has died (`protocols/network/link_end.py`).
The system of a killed process closes its connections in order, except those with bytes that the
process had not read, which it resets. On connections that are in use there often are such bytes; on
this one there never are. A living agent only ever resets it, even if it closes the link with a
goodbye. So its orderly end, together with the end of another connection of the link, proves the
death. Alone it does not: a proxy on the path closes a connection that nothing has passed for long.

A reset proves nothing and does not end the link, because firewalls forget connections on which
nothing is sent. TCP's keepalive is there to prevent that.
"""

from __future__ import annotations

import math
from time import monotonic
from typing import TYPE_CHECKING

from edgeagent.transport import bounds

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeagent.transport.framing import Connection


class Lifeline:
    """The lifeline of one link; implements `framing.Sink`."""

    def __init__(
        self, connection: Connection, failed: Callable[[str], None], ended: Callable[[], None]
    ) -> None:
        """`failed` is called with the reason if the other end sends something, and `ended` when the
        connection has ended."""
        self._ended_at = math.inf  # on the monotonic clock
        self._in_order = False
        self._connection = connection
        self._failed = failed
        self._ended = ended
        self._room = memoryview(bytearray(1))

    @property
    def has_ended(self) -> bool:
        """Whether the connection is gone."""
        return self._ended_at < math.inf

    @property
    def has_just_ended_in_order(self) -> bool:
        """Whether the other end's system has closed it, and so recently that the link's other
        connections may have ended with it."""
        return self._in_order and monotonic() - self._ended_at <= bounds.TOGETHER_SECONDS

    @property
    def was_lost_before(self) -> bool:
        """Whether something had reset it before whatever happens to the link now."""
        lost = self.has_ended and not self._in_order
        return lost and monotonic() - self._ended_at >= bounds.TOGETHER_SECONDS

    def watch(self) -> None:
        """Begin to wait for the end."""
        self._connection.attach(self)

    def reset(self) -> None:
        """End the connection in the only way in which a living agent does."""
        self._connection.abort()

    # What the connection reports.

    def buffer(self) -> memoryview:
        """Return room for a byte that must not come."""
        return self._room

    def filled(self, count: int) -> None:
        """Refuse what has come."""
        self._failed("sent something on the connection that carries nothing")

    def paused(self) -> None:
        """Nothing is written here, so there is nothing to pause."""

    def resumed(self) -> None:
        """Nothing is written here."""

    def lost(self, error: Exception | None) -> None:
        """The connection has ended; None: in order, after everything before it was read."""
        self._ended_at, self._in_order = monotonic(), error is None
        self._ended()
