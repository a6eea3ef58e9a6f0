"""The two ways a protocol can go wrong, and whose fault it is.

    Exception
    +-- ProtocolError          something the protocol forbids
        +-- RemoteProtocolError    a peer sent it: drop the peer's input, stay alive
        +-- LocalProtocolError     our own code asked for it: a bug, never caused by a peer

Law: bytes from a peer raise `RemoteProtocolError` and nothing else.
"""

from __future__ import annotations


class ProtocolError(Exception):
    """Base of both; catch one of its subclasses instead."""


class RemoteProtocolError(ProtocolError):
    """A peer broke the protocol: malformed, oversized, unknown or out of place."""


class LocalProtocolError(ProtocolError):
    """The caller broke the protocol: the event is not allowed in the machine's state."""
