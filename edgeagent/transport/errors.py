"""What can go wrong between two agents before a link is up.

    EdgeAgentError
    +-- Unreachable        nobody, or nothing that speaks our protocol, answers at an address
    |   +-- NotAnAgent     something else listens there
    |   +-- Busy           an agent is there, and has too much to do to answer
    +-- NotReady           the other agent is alive but cannot admit anybody yet: ask again
    +-- SameIdentity       the other end holds our own key: it is ourselves, or a copy of our disk
    +-- Expelled           a JoinRefused: a user has removed this device for good
    +-- OtherVersion       a JoinRefused: no protocol version is spoken by both
    +-- OtherToken         a JoinRefused: token or cluster name differ
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


class NotAnAgent(Unreachable):
    """Something answers at this address that does not speak our protocol."""


class Busy(Unreachable):
    """An agent answers at this address, and asks to be asked again."""


class OtherVersion(JoinRefused):
    """The other agent speaks none of our protocol versions, but `versions`."""

    def __init__(self, message: str, versions: tuple[int, ...]) -> None:
        super().__init__(message)
        self.versions = versions


class OtherToken(JoinRefused):
    """The other agent's token or cluster name differs, as one end's proof has shown."""


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
