"""Why a link has ended, and whether that proves that the process at its other end is gone.

Each end of a link has a named cause. Two causes prove that the process takes no more part: a
goodbye, and connections that end as they do when the operating system closes them after a `kill
-9`: all at once, and in order (with a FIN) unless bytes were left unread, which lead to a reset.

Therefore each link has a connection on which nothing is ever sent, and which a living agent only
ever resets (`edgeagent/transport/lifeline.py`). If it ends in order and another one ends with it,
the process is gone. One orderly end alone proves nothing, because TLS libraries and proxies may
close a connection like that while the agent lives.

Nothing else proves anything. A reset comes also from a living agent that cuts a link, a firewall
that rejects (`tcp-reset`), and a router that has forgotten the connection. Errors that come with an
ICMP message ("refused", "no route") may come from anywhere on the path, and silence may end.
"""

from __future__ import annotations

from enum import StrEnum


class LinkEnd(StrEnum):
    """Why a link has ended."""

    GOODBYE = "goodbye"  # one end closed it on purpose, and said so
    PROCESS_ENDED = "process ended"  # the other system closed its connections, without a goodbye
    STARTED_ANEW = "started anew"  # a new incarnation of the other node has opened a link
    RESET = "reset"  # by the other process, its system, or a device on the path
    SOCKET_ERROR = "socket error"  # another error: time-out, no route, broken encryption
    SILENT = "silent"  # nothing has arrived for too long
    DROPPED = "dropped"  # the other end says that nothing has arrived there for too long
    STALLED = "stalled"  # its bulk connection has made no progress for too long
    CUT = "cut"  # by us, although the peer did nothing wrong: no longer trusted, a queue too long
    PROTOCOL_ERROR = "protocol error"  # by us, because of impossible bytes, messages or sums
    REPLACED = "replaced"  # the same process has opened another link, so it has lost this one

    @property
    def is_clean(self) -> bool:
        """Whether the link was closed on purpose, at a frame's boundary."""
        return self is LinkEnd.GOODBYE

    @property
    def proves_departure(self) -> bool:
        """Whether this proves that the member at the other end takes no more part."""
        return self in (LinkEnd.GOODBYE, LinkEnd.PROCESS_ENDED, LinkEnd.STARTED_ANEW)
