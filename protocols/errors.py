"""The two kinds of protocol errors, which differ in whose fault they are.

    Exception
    +-- ProtocolError              something that the protocol forbids
        +-- RemoteProtocolError    a peer did it: drop the peer's input, stay alive
        +-- LocalProtocolError     our own code did it: a bug, never caused by a peer

Bytes from a peer raise `RemoteProtocolError` and nothing else, whatever they are.
"""

from __future__ import annotations


class ProtocolError(Exception):
    """Base of both; catch one of its subclasses instead."""


class RemoteProtocolError(ProtocolError):
    """A peer broke the protocol: its input is malformed, too large, unknown or out of place."""


class LocalProtocolError(ProtocolError):
    """The caller broke the protocol: the event is not allowed in the machine's state."""
