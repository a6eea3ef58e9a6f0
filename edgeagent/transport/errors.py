"""What can go wrong between two agents before a link is up.

    EdgeAgentError
    +-- Unreachable        nobody, or nothing that speaks our protocol, answers at an address
    +-- NotReady           the other agent is alive but cannot admit anybody yet: ask again
    +-- SameIdentity       the other end holds our own key: it is ourselves, or a copy of our disk
    +-- Expelled           a JoinRefused: a user has removed this device for good
    +-- LinkRefused        a member refused to open a link (expelled, older incarnation, full)
    (JoinRefused and JobMismatch are in edgeagent.errors)

Each message is one line that names the address or the node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeagent.errors import EdgeAgentError, JoinRefused

if TYPE_CHECKING:
    from edgeagent.transport.api import Standing


class Unreachable(EdgeAgentError):
    """No agent answers at this address."""


class Expelled(JoinRefused):
    """A member that has proven the token refuses this device, because a user has expelled it."""


class LinkRefused(EdgeAgentError):
    """The other agent has answered, but does not open a link with this one."""


class NotReady(EdgeAgentError):
    """The token was right, but the other agent does not know its job yet; nobody was admitted."""

    def __init__(self, message: str, standing: Standing) -> None:
        super().__init__(message)
        self.standing = standing


class SameIdentity(EdgeAgentError):
    """The other agent holds our key. With the same incarnation it is this agent itself, which has
    reached its own address; otherwise it is a copy."""

    def __init__(self, message: str, standing: Standing) -> None:
        super().__init__(message)
        self.standing = standing
