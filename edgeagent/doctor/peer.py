"""Looks at a peer: connects to it, asks it who it is, and sees whether it connects back.

Only what agents do anyway is done to it. It is asked as by an agent that looks for a cluster, and
told where this device listens; an agent that is told so asks there in turn. The certificate that
is shown to it is longer than it need be, so that the question does not fit into one packet of
Ethernet and shows whether full-size packets arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import socket
import sys
import time
from typing import TYPE_CHECKING

from edgeagent.config import split_address, state_root
from edgeagent.doctor.echo import try_echoes
from edgeagent.doctor.facts import Answer, Asked, Echoes, Networks, Peer, Rates, Reach
from edgeagent.errors import EdgeAgentError
from edgeagent.transport import join_wire
from edgeagent.transport.connecting import connect
from edgeagent.transport.errors import (
    Busy,
    NotAnAgent,
    OtherToken,
    OtherVersion,
    SameIdentity,
    Unreachable,
)
from edgeagent.transport.join_client import ask
from edgeagent.transport.tcp_info import parse_tcp_info
from protocols import limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeagent.transport.api import PeerInfo, Standing
    from edgeagent.transport.join_streams import JoinSecret

CONNECT_SECONDS = 3.0
ASK_SECONDS = 3.0  # four retransmissions of TCP; an agent answers within tens of milliseconds
CALL_BACK_SECONDS = 6.0  # at once if it is new there; members ask anew every 5 s
ROUND_TRIPS = 3
FILLER_BYTES = 1400  # of the certificate: the question has more than a packet of Ethernet holds
_TCP_INFO_BYTES = 128
_NAME_CHARACTERS = 64
_NO_WAY = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN)


class Visit:
    """What is needed to visit a peer. `called` returns when this device was last asked by an agent
    that holds the token, in seconds of `time.monotonic`, None if it was not."""

    def __init__(
        self,
        networks: Networks,
        me: PeerInfo,
        secret: JoinSecret | None,
        reachable: tuple[str, ...],
        called: Callable[[], float | None],
    ) -> None:
        self._networks = networks
        self._me = me
        self._secret = secret
        self._reachable = reachable
        self._called = called

    async def pay(self, address: str) -> Peer:
        """Return what is seen of the peer at `address`; this takes up to half a minute if the
        peer does not answer."""
        host, port = split_address(address)
        reach, detail, sock = await self._reach(host, port)
        if sock is None:
            return Peer(address, reach, detail)
        with contextlib.closing(sock):
            own, far = str(sock.getsockname()[0]), str(sock.getpeername()[0])
        interface = next((n for n, h in self._networks.order if h == own), "")
        trips = await self._round_trips(host, port)
        asked, standing, at = await self._ask(address, host, port)
        links: tuple[tuple[str, Reach], ...] = ()
        if standing is not None:
            told = standing.me.addresses[:4]
            links = tuple(zip(told, await asyncio.gather(*map(self._knock, told)), strict=True))
        return Peer(
            address,
            reach,
            through=(interface, own),
            hosts=(far, *(split_address(one)[0] for one, _ in links)),
            round_trips=trips,
            asked=asked,
            links=links,
            called_back=await self._called_back(at) if standing is not None else None,
            echoes=await self._echoes(interface, far),
            rates=await asyncio.to_thread(measured_rates, asked.name) if asked.name else None,
        )

    async def _reach(self, host: str, port: int) -> tuple[Reach, str, socket.socket | None]:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                sock = await connect(host, port, interface=self._networks.only)
        except TimeoutError:
            return Reach.SILENT, "", None
        except (socket.gaierror, UnicodeError) as error:
            return Reach.UNKNOWN_NAME, getattr(error, "strerror", None) or str(error), None
        except ConnectionRefusedError:
            return Reach.REFUSED, "", None
        except OSError as error:
            reach = Reach.UNREACHABLE if error.errno in _NO_WAY else Reach.SILENT
            return reach, error.strerror or str(error), None
        return Reach.ANSWERED, "", sock

    async def _knock(self, address: str) -> Reach:
        reach, _, sock = await self._reach(*split_address(address))
        if sock is not None:
            sock.close()
        return reach

    async def _round_trips(self, host: str, port: int) -> tuple[float, ...]:
        """Return how long connections take: the time of one round trip each."""
        found = []
        for _ in range(ROUND_TRIPS):
            before = time.monotonic()
            _, _, sock = await self._reach(host, port)
            if sock is None:
                break
            found.append(time.monotonic() - before)
            sock.close()
        return tuple(found)

    async def _ask(
        self, address: str, host: str, port: int
    ) -> tuple[Asked, Standing | None, float]:
        """Ask with segments as the system chooses them, and with short ones if that is in vain."""
        at = time.monotonic()
        if self._secret is None:
            return Asked(Answer.NOT_ASKED), None, at
        vain = False
        for segment in (None, *limits.SHORT_SEGMENTS):
            at = time.monotonic()
            asked, standing, resends = await self._ask_once(address, host, port, segment, vain)
            if asked.answer is not Answer.NOTHING:
                return asked, standing, at
            vain = vain or resends
        return Asked(Answer.NOTHING), None, at

    async def _ask_once(
        self, address: str, host: str, port: int, segment: int | None, vain: bool
    ) -> tuple[Asked, Standing | None, bool]:
        assert self._secret is not None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                sock = await connect(host, port, segment=segment, interface=self._networks.only)
        except (OSError, TimeoutError):
            return Asked(Answer.NOTHING), None, False
        question = ask(address, self._me, self._secret, reachable=self._reachable, connected=sock)
        task = asyncio.ensure_future(question)
        await asyncio.wait([task], timeout=ASK_SECONDS)
        resends = not task.done() and _resends(sock)
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return Asked(Answer.NOTHING), None, resends
        return (*judged(task, segment, vain=vain), resends)

    async def _called_back(self, at: float) -> float | None:
        """Return how long after `at` an agent has asked here, None if none does in time."""
        until = at + CALL_BACK_SECONDS
        while (called := self._called()) is None or called < at:
            if time.monotonic() > until:
                return None
            await asyncio.sleep(0.05)
        return called - at

    async def _echoes(self, interface: str, host: str) -> Echoes:
        address = ipaddress.ip_address(host.partition("%")[0])
        if address.version != 4 or address.is_loopback:
            return Echoes()
        mtus = [one.mtu for one in self._networks.interfaces if one.name == interface]
        return await try_echoes(host, mtus[0] if mtus and mtus[0] else 1500)


def judged(
    task: asyncio.Future[Standing], segment: int | None, *, vain: bool
) -> tuple[Asked, Standing | None]:
    """Return what a question has come to, and the standing if the peer has proven the token."""
    try:
        standing = task.result()
    except OtherVersion as error:
        return Asked(Answer.OTHER_VERSION, "", segment, vain, error.versions), None
    except OtherToken:
        return Asked(Answer.OTHER_TOKEN, "", segment, vain, join_wire.VERSIONS), None
    except SameIdentity:
        return Asked(Answer.OURSELVES), None
    except Busy:
        return Asked(Answer.BUSY), None
    except NotAnAgent as error:
        return Asked(Answer.NO_AGENT, str(error)), None
    except Unreachable:
        return Asked(Answer.NOTHING), None
    except EdgeAgentError as error:
        return Asked(Answer.NO_AGENT, str(error)), None
    asked = Asked(
        Answer.AGENT,
        "",
        segment,
        vain,
        join_wire.VERSIONS,
        standing.me.name[:_NAME_CHARACTERS],
        standing.phase,
        standing.members,
        standing.me.incarnation / 1000,  # milliseconds of Unix time, if its clock was right
    )
    return asked, standing


def _resends(sock: socket.socket) -> bool:
    """Return whether what was sent is sent again and again without being acknowledged."""
    if sys.platform != "linux":
        return True  # nobody can tell; that short segments pass has to be enough
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return False
    sending = parse_tcp_info(info)
    return sending is not None and sending.resends


def measured_rates(name: str) -> Rates | None:
    """Return what an agent on this device has measured of its link with the member `name`."""
    from edgeagent.local.api import fetch_status
    from edgeagent.local.state_dir import running_agents

    for agent in running_agents(state_root(os.environ)):
        with contextlib.suppress(EdgeAgentError, OSError):
            for link in fetch_status(agent.socket_path)["links"]:
                if link["peer"] == name:
                    there, back = link["out_mbit_s"], link["in_mbit_s"]
                    if there is not None or back is not None:
                        return Rates(agent.name, there, back, link["delay_ms"])
    return None
