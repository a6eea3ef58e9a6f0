"""Runs all probes, side by side where they do not disturb each other, and returns the facts.

For the peer's way back, this device listens as an agent does; who holds the token is told that
there is nobody here to join. Nothing of this outlives the examination.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgeagent import memory
from edgeagent.config import DEFAULT_PORT, default_name, listen_address, split_address, state_root
from edgeagent.doctor import device as look
from edgeagent.doctor.facts import Device, Facts, JobFact, Peer, Ports, TokenFact
from edgeagent.doctor.firewalls import find_firewalls
from edgeagent.doctor.multicast import try_multicast
from edgeagent.doctor.peer import FILLER_BYTES, Visit
from edgeagent.errors import EdgeAgentError
from edgeagent.late_listener import LateListener
from edgeagent.local.state_dir import running_agents
from edgeagent.transport import join_wire
from edgeagent.transport.api import Standing
from edgeagent.transport.identity import renew_identity
from edgeagent.transport.join_streams import JoinSecret
from edgeagent.transport.tcp import TcpTransport
from edgeagent.transport.token import TOKEN_BYTES, discovery_tag

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgeagent.transport.api import Candidate, PeerInfo


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to look at. `secret` is the token's bytes, None without a right one."""

    token: TokenFact
    secret: bytes | None
    cluster: str
    job: JobFact | None
    peer: str
    interface: str
    listen: str


class _Host:
    """The `AdmissionPolicy` of an examination: it admits nobody, and notes when it was asked."""

    def __init__(self) -> None:
        self.me: PeerInfo | None = None
        self.called: float | None = None

    def job(self) -> tuple[tuple[str, str], ...] | None:
        """There is no job, so nobody is admitted."""
        return None

    @property
    def recipe(self) -> None:
        """There is no job to tell of."""

    def script(self) -> bytes:
        """There is no script."""
        return b""

    def standing(self) -> Standing:
        """Say that there is no cluster here, and that none will be founded."""
        self.called = time.monotonic()
        assert self.me is not None
        return Standing(self.me, "founding", 0, 0, b"", b"", ())

    def heard_of(self, addresses: tuple[str, ...]) -> None:
        """Nobody is looked for here."""

    def bars(self, node: bytes) -> bool:
        """Nobody is barred."""
        return False

    def admitted(self, candidate: Candidate) -> None:
        """This does not happen, because there is no job."""


async def examine(wanted: Wanted, environment: Mapping[str, str]) -> Facts:
    """Look at this device and, if one is named, at the peer. Raises OSError if the system does not
    tell its addresses."""
    networks = look.look_at_networks(wanted.interface)
    torch = asyncio.create_task(look.look_at_torch(environment))
    tag = "" if wanted.secret is None else discovery_tag(wanted.secret, wanted.cluster)
    asking = asyncio.create_task(try_multicast(networks.order, tag))
    try:
        with tempfile.TemporaryDirectory() as folder:
            ports, peer = await _among_others(wanted, folder)
        multicast = await asking
        facts = Device(
            networks=networks,
            multicast=multicast,
            ports=ports,
            firewalls=find_firewalls(ports.join or DEFAULT_PORT, ports.links or DEFAULT_PORT + 1),
            now=time.time(),
            token=wanted.token,
            job=wanted.job,
            torch=await torch,
            folders=(
                look.look_at_folder(state_root(environment), "keys and sockets", is_secret=True),
                look.look_at_folder(os.getcwd(), "models"),
            ),
            memory=memory.room().free,
        )
    finally:
        for task in (torch, asking):
            task.cancel()
        await asyncio.gather(torch, asking, return_exceptions=True)
    if peer is not None:
        heard = {host for one in multicast for host in one.hosts}
        peer = replace(peer, heard=tuple(host for host in peer.hosts if host in heard))
    return Facts(facts, join_wire.VERSIONS, peer)


async def _among_others(wanted: Wanted, folder: str) -> tuple[Ports, Peer | None]:
    """Listen as an agent would, and visit the peer meanwhile."""
    host = _Host()
    transport = TcpTransport(
        renew_identity(folder, filler=FILLER_BYTES),
        time.time_ns() // 1_000_000,
        wanted.secret or secrets.token_bytes(TOKEN_BYTES),
        wanted.cluster,
        f"doctor on {default_name()}"[:48],
        LateListener(),
        host,
        lambda line: None,
    )
    reachable: tuple[str, ...] = ()
    try:
        reachable = await transport.start(wanted.listen, wanted.interface)
        host.me = transport.me
        usual = listen_address(wanted.listen)[1] if wanted.listen else DEFAULT_PORT
        told = transport.me.addresses
        links = split_address(told[0])[1] if told else 0
        join = split_address(reachable[0])[1] if reachable else 0
        agents = running_agents(state_root(os.environ))
        ports = Ports(join, links, usual or join, agents=tuple(agent.name for agent in agents))
    except EdgeAgentError as error:
        ports = Ports(problem=str(error))
    try:
        if not wanted.peer:
            return ports, None
        secret = None if wanted.secret is None else JoinSecret(wanted.secret, wanted.cluster)
        networks = look.look_at_networks(wanted.interface)
        visit = Visit(networks, transport.me, secret, reachable, lambda: host.called)
        return ports, await visit.pay(wanted.peer)
    finally:
        await transport.stop(0.0)
