"""What the shell needs of a transport, and how a peer there is a member here.

Law: nothing but these forms; the network of agents with a token is `transport.tcp.TcpTransport`.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Protocol

from edgeagent.errors import EdgeAgentError
from edgeagent.transport.api import PeerInfo
from protocols.view import Member

if TYPE_CHECKING:
    from edgeagent.transport.api import Link


class Network(Protocol):
    """What the shell needs of a transport."""

    async def dial(self, peer: PeerInfo) -> Link:
        """Open a link; raise `EdgeAgentError` if that fails."""

    def trust(self, certificate: bytes) -> bytes:
        """Accept this key on links; return its node id."""

    def distrust(self, node: bytes) -> None:
        """Accept this key no longer."""

    def use_token(self, token: bytes) -> None:
        """Prove and accept this token from now on, and no other."""


class NoNetwork:
    """The network of a node that trains alone."""

    async def dial(self, peer: PeerInfo) -> Link:
        """Fail."""
        raise EdgeAgentError("this agent has no network")

    def trust(self, certificate: bytes) -> bytes:
        """Accept this key on links."""
        return hashlib.sha256(certificate).digest()

    def distrust(self, node: bytes) -> None:
        """Accept this key no longer."""

    def use_token(self, token: bytes) -> None:
        """There is nobody to prove it to."""


def member_of(peer: PeerInfo) -> Member:
    """Return what the protocols know of `peer` from its link alone."""
    return Member(
        peer.node, peer.incarnation, peer.name, "", peer.addresses, peer.certificate, sparse=False
    )


def peer_of(member: Member) -> PeerInfo:
    """Return whom to dial for `member`."""
    return PeerInfo(
        member.node, member.incarnation, member.name, member.addresses, member.certificate
    )
