"""What the shell needs of a transport, and how peers and members tell of the same nodes.

Law: no state, no decision.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Protocol

from edgeagent.errors import EdgeAgentError
from edgeagent.transport.api import PeerInfo, Standing
from protocols.cluster.founding import SOMEBODY_HAS_FOUNDED
from protocols.cluster.view import Member

if TYPE_CHECKING:
    from edgeagent.transport.api import Link
    from protocols.member.node import Node


class Network(Protocol):
    """What the shell needs of a transport."""

    async def dial(self, peer: PeerInfo) -> Link:
        """Open a link; raise `EdgeAgentError` if that fails."""

    def trust(self, certificate: bytes) -> bytes:
        """Accept this key on links; return its node id."""

    def distrust(self, node: bytes) -> None:
        """Accept this key no longer."""

    def shorten(self, node: bytes, segment: int) -> None:
        """Open connections to `node` with segments of at most so many bytes from now on."""


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

    def shorten(self, node: bytes, segment: int) -> None:
        """Do nothing: there are no connections."""


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


def standing_of(me: PeerInfo, node: Node | None, elder: bytes) -> Standing:
    """Return what `me` tells a proven joiner; `elder` counts while it is no member. A member that
    waits for the rest of its cluster lets nobody in: they wait with it."""
    policy = node.context.policy if node is not None else None
    if node is None or policy is None or not node.context.is_member:
        return Standing(me, "founding", 0, 0, b"", elder, ())
    if node.recovery.is_cut_off:
        return Standing(me, "founding", 0, 0, b"", SOMEBODY_HAS_FOUNDED, ())
    context = node.context
    members = policy.view.members
    return Standing(
        me,
        "member",
        context.samples,
        len(members),
        context.lineage,
        context.election.scheduler,
        tuple(peer_of(member) for member in members),
        context.past,
    )
