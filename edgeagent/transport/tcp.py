"""The real transport: the join listener, the peer listener, dialling, and the resulting links.

Everything runs on the event loop on which `start` was called, and ends with `stop`: afterwards no
socket, task or timer is left.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgeagent.transport import bounds, join_client, tls
from edgeagent.transport.api import PeerInfo
from edgeagent.transport.complaints import Complaints
from edgeagent.transport.connecting import shorten_segments
from edgeagent.transport.dialler import Dialler
from edgeagent.transport.doorkeeper import Doorkeeper
from edgeagent.transport.framing import Registry
from edgeagent.transport.join_listener import JoinListener
from edgeagent.transport.join_streams import JoinSecret
from edgeagent.transport.openings import Links
from edgeagent.transport.peer_listener import PeerListener
from edgeagent.transport.sockets import listen_pair, told_addresses
from protocols.errors import LocalProtocolError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from edgeagent.transport.api import AdmissionPolicy, Link, LinkListener, Standing
    from edgeagent.transport.identity import Identity
    from edgeagent.transport.traffic import Stretches


class TcpTransport:
    """Everything of one agent that uses the network, except discovery."""

    def __init__(
        self,
        identity: Identity,
        incarnation: int,
        token: bytes,
        cluster: str,
        name: str,
        listener: LinkListener,
        admission: AdmissionPolicy,
        log: Callable[[str], None],
    ) -> None:
        """`token` has 16 bytes (`token.parse_token`). `log` is called with one line of text for
        each trouble that the user should know of."""
        self._identity = identity
        self._incarnation = incarnation
        self._secret = JoinSecret(token, cluster)
        self._name = name
        self._admission = admission
        self._interface = ""
        self._peer_sockets: tuple[socket.socket, ...] = ()
        self._join_sockets: tuple[socket.socket, ...] = ()
        self._addresses: tuple[str, ...] = ()
        self._reachable: tuple[str, ...] = ()  # of the join listener
        self._trust = tls.Trust(identity)
        self._complaints = Complaints(log)
        self._doorkeeper = Doorkeeper()
        self._registry = Registry()
        self._links = Links(lambda: self.me, self._trust, listener, log)
        self._dialler = Dialler(self._trust, self._links, self._registry)
        self._listeners: tuple[JoinListener, PeerListener] | None = None

    @property
    def me(self) -> PeerInfo:
        """This agent; `addresses` are those of its peer listener, empty before `start`."""
        return PeerInfo(
            self._identity.node,
            self._incarnation,
            self._name,
            self._addresses,
            self._identity.certificate,
        )

    def begin_anew(self, incarnation: int) -> None:
        """Use this incarnation on links that are opened from now on."""
        self._incarnation = incarnation

    @property
    def links(self) -> tuple[Link, ...]:
        """The links that are up."""
        return self._links.up

    def stretches(self) -> Stretches:
        """Return what all links carried together, as far as it was not returned before."""
        return self._links.traffic.take()

    async def start(self, listen: str = "", interface: str = "") -> tuple[str, ...]:
        """Listen on `listen` ([HOST:]PORT; "" = everywhere, first free port from DEFAULT_PORT).

        With `interface`, this agent is reached through that one only, and dials through it. Returns
        the addresses of the join listener that others can type, best first; none if `interface` has
        no address at present. Raises `UsageError` if the port or the interface cannot be had.
        """
        sockets = listen_pair(listen, interface)
        self._interface = self._dialler.interface = interface
        self._addresses = told_addresses(sockets.peer, interface)
        self._peer_sockets, self._join_sockets = sockets.peer, sockets.join
        join_listener = JoinListener(
            sockets.join,
            tls.join_server_context(self._identity),
            self._identity.certificate,
            self._secret,
            self._admission,
            self._doorkeeper,
            self._complaints,
        )
        peer_listener = PeerListener(
            sockets.peer,
            self._trust,
            self._links,
            self._doorkeeper,
            self._complaints,
            self._registry,
        )
        join_listener.start()
        peer_listener.start()
        self._listeners = (join_listener, peer_listener)
        self._reachable = told_addresses(sockets.join, interface)
        return self._reachable

    def renew_addresses(self) -> tuple[str, ...]:
        """Find out again under which addresses others reach us, and tell these from now on.

        Returns those of the join listener, best first. Raises OSError if the system does not tell.
        """
        if self._listeners is not None:
            self._addresses = told_addresses(self._peer_sockets, self._interface)
            self._reachable = told_addresses(self._join_sockets, self._interface)
        return self._reachable

    def use_token(self, token: bytes) -> None:
        """Prove and accept only `token` (16 bytes) from now on.

        A joiner that has begun with the old token may still be told the standing, but it is not
        admitted. Links that are up do not depend on the token and stay.
        """
        self._secret = replace(self._secret, token=token)
        if self._listeners is not None:
            self._listeners[0].use_secret(self._secret)

    def trust(self, certificate: bytes) -> bytes:
        """Let the holder of `certificate` (DER) open links; return its node id.

        Raises `RemoteProtocolError` if it is no node's certificate.
        """
        return self._trust.add(certificate)

    def distrust(self, node: bytes) -> None:
        """Admit `node` no more and end its link at once."""
        self._trust.remove(node)
        self._links.drop(node, "not trusted any more")

    def shorten(self, node: bytes, segment: int) -> None:
        """From now on use TCP segments of at most `segment` bytes on connections to `node`.

        The listening sockets get the same bound, for whichever node connects, because the kernel
        takes it from them before it is known who that is.
        """
        self._dialler.segments[node] = segment
        for sock in self._peer_sockets:
            shorten_segments(sock, segment)

    async def dial(self, peer: PeerInfo) -> Link:
        """Return the link with `peer`, opening one if there is none, within LINK_OPEN_SECONDS.

        Trust its certificate before. `link_up` was reported when this returns. Raises `Unreachable`
        or `LinkRefused`.
        """
        return await self._dialler.dial(peer)

    async def ask(self, address: str) -> Standing:
        """Return who is at `address`, a join listener; see `join_client.ask`."""
        return await join_client.ask(
            address,
            self.me,
            self._secret,
            reachable=self._reachable,
            interface=self._interface,
        )

    async def join(self, address: str) -> Standing:
        """Be admitted by the agent at `address`; see `join_client.join`.

        Raises `LocalProtocolError` while this device's own job is not known.
        """
        job = self._admission.job()
        if job is None:
            raise LocalProtocolError("cannot join before the job is known: use ask")
        return await join_client.join(
            address,
            self.me,
            self._secret,
            job,
            reachable=self._reachable,
            script=self._admission.script(),
            interface=self._interface,
        )

    async def stop(self, seconds: float = bounds.FLUSH_SECONDS) -> None:
        """Stop listening, close all links and end everything else.

        What is queued is sent first; links whose peer does not accept it within `seconds` are cut.
        """
        await self._dialler.stop()
        if self._listeners is not None:
            for listener in self._listeners:
                await listener.stop()
            self._listeners = None
        await self._links.close_all(seconds)
        self._links.traffic.stop()
        await self._registry.wait_empty(bounds.CLOSE_SECONDS)
        self._complaints.close()
