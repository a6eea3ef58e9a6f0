"""Why a link has ended, and what that says of the process at its other end.

Law: every end has a named cause, and only what a process cannot survive proves that it is gone. A
living agent never lets its system end a connection in order (a FIN) without a goodbye: it says
goodbye, or resets the connection. So an orderly end without a goodbye is the word of the other
system that the process is no more, and that is what follows a `kill -9`. It is one only if all that
came before was read, for a goodbye may be among it. A reset proves nothing: the system of a dead
process sends one where bytes were left unread, but so do a living agent that cuts a link, a
firewall that rejects (`tcp-reset`), and a router that has forgotten the connection. Nor does an
error that comes with an ICMP message ("refused", "no route"), nor silence.
"""

from __future__ import annotations

from enum import StrEnum


class LinkEnd(StrEnum):
    """Why a link has ended."""

    GOODBYE = "goodbye"  # one end closed it on purpose, and said so
    PROCESS_ENDED = "process ended"  # the other system ended it in order, without a goodbye
    STARTED_ANEW = "started anew"  # the other process has begun anew since
    RESET = "reset"  # by the other process, its system, or something on the way
    SOCKET_ERROR = "socket error"  # any other: timed out, no route, broken encryption
    SILENT = "silent"  # nothing was heard for too long
    DROPPED = "dropped"  # the other end says that it has heard nothing for too long
    STALLED = "stalled"  # its bulk connection has made no progress for too long
    CUT = "cut"  # by us, for another reason than what was sent: no trust, a queue too long
    PROTOCOL_ERROR = "protocol error"  # by us, for bytes, messages or sums that cannot be
    REPLACED = "replaced"  # the same process has opened another, so it has lost this one

    @property
    def is_clean(self) -> bool:
        """Whether the link was closed on purpose, at a frame's boundary."""
        return self is LinkEnd.GOODBYE

    @property
    def proves_departure(self) -> bool:
        """Whether the member that was at the other end takes no more part: it said goodbye, or its
        process is gone."""
        return self in (LinkEnd.GOODBYE, LinkEnd.PROCESS_ENDED, LinkEnd.STARTED_ANEW)
