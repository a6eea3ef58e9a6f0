"""What the shell needs of a transport, and how peers and members describe the same nodes.

The functions here only convert; they keep no state and decide nothing.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Protocol

from edgeagent.errors import EdgeAgentError
from edgeagent.transport.api import PeerInfo, Standing
from edgeagent.transport.traffic import NO_STRETCHES, Stretches
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
        """Accept the key of `certificate` (DER) on links; return its node id."""

    def distrust(self, node: bytes) -> None:
        """Accept the key of `node` no longer."""

    def shorten(self, node: bytes, segment: int) -> None:
        """From now on use segments of at most `segment` bytes on new connections to `node`."""

    def stretches(self) -> Stretches:
        """Return what all links carried together, as far as it was not returned before."""


class NoNetwork:
    """The network of a node that trains alone, which has no connections."""

    async def dial(self, peer: PeerInfo) -> Link:
        """Raise `EdgeAgentError`."""
        raise EdgeAgentError("this agent has no network")

    def trust(self, certificate: bytes) -> bytes:
        """Return the node id of `certificate` (DER)."""
        return hashlib.sha256(certificate).digest()

    def distrust(self, node: bytes) -> None:
        """Do nothing: there are no connections."""

    def shorten(self, node: bytes, segment: int) -> None:
        """Do nothing: there are no connections."""

    def stretches(self) -> Stretches:
        """Return nothing: there are no connections."""
        return NO_STRETCHES


def member_of(peer: PeerInfo) -> Member:
    """Return `peer` as a member, with what is known of it from its link."""
    return Member(
        peer.node, peer.incarnation, peer.name, "", peer.addresses, peer.certificate, sparse=False
    )


def peer_of(member: Member) -> PeerInfo:
    """Return `member` as a peer that can be dialled."""
    return PeerInfo(
        member.node, member.incarnation, member.name, member.addresses, member.certificate
    )


def standing_of(me: PeerInfo, node: Node | None, elder: bytes) -> Standing:
    """Return what `me` tells a proven joiner; `elder` is used while `me` is no member.

    A member that waits for the rest of its cluster admits nobody, so that joiners wait with it.
    """
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
