"""A question by multicast DNS through each interface, and what comes in.

The question goes out and is looped back to this device by its own system, which shows that the
firewall here lets it pass. Only an answer of another device shows that the network carries it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket

# zeroconf documents these names and does not list them in its __all__.
from zeroconf import (  # type: ignore[attr-defined]
    DNSIncoming,
    DNSOutgoing,
    DNSQuestion,
    DNSText,
)

from edgeagent.doctor.facts import Announced, Multicast
from edgeagent.transport.discovery import SERVICE

GROUP, PORT = "224.0.0.251", 5353
LISTEN_SECONDS = 2.5  # agents answer within half a second, or a second after their last answer
_ASK_AT = (0.0, 1.0)  # seconds; a question or its answer may get lost
_MOST_INTERFACES = 8
_MOST_HOSTS = 256  # that are kept; anybody can send anything
_KINDS_OF_ALL = "_services._dns-sd._udp.local."
_TYPE_PTR, _CLASS_IN, _QUERY = 12, 1, 0
_TTL = 255


async def try_multicast(
    order: tuple[tuple[str, str], ...], tag: str, seconds: float = LISTEN_SECONDS
) -> tuple[Multicast, ...]:
    """Ask through each interface of `order` (name, host), best first.

    `tag` is what agents of our cluster announce, "" if there is no token.
    """
    hosts: dict[str, str] = {}  # one IPv4 address for each interface
    for name, host in order:
        address = ipaddress.ip_address(host)
        if address.version == 4 and not address.is_loopback and len(hosts) < _MOST_INTERFACES:
            hosts.setdefault(name, host)
    own = {host for _, host in order}
    asked = [_Asking(name, host, tag, own) for name, host in hosts.items()]
    return tuple(await asyncio.gather(*(one.run(seconds) for one in asked)))


class _Asking(asyncio.DatagramProtocol):
    """The question through one interface."""

    def __init__(self, name: str, host: str, tag: str, own: set[str]) -> None:
        self._name, self._host, self._tag, self._own = name, host, tag, own
        self._question = _question()
        self._looped = False
        self._problem = ""
        self._hosts: dict[str, None] = {}
        self._agents: dict[str, Announced] = {}

    async def run(self, seconds: float) -> Multicast:
        """Ask, listen for `seconds`, and return what came of it."""
        loop = asyncio.get_running_loop()
        try:
            sock = _open(self._host)
        except OSError as error:
            return Multicast(self._name, self._host, f"UDP {PORT}: {error.strerror or error}")
        transport, _ = await loop.create_datagram_endpoint(lambda: self, sock=sock)
        begun = loop.time()
        try:
            for at in _ASK_AT:
                await asyncio.sleep(max(0.0, begun + at - loop.time()))
                # Not by the transport, which keeps the reason of a failure to itself.
                sock.sendto(self._question, (GROUP, PORT))
            await asyncio.sleep(max(0.0, begun + seconds - loop.time()))
        except OSError as error:
            self._problem = error.strerror or str(error)
        finally:
            transport.close()
        return Multicast(
            self._name,
            self._host,
            self._problem,
            self._looped,
            tuple(self._hosts),
            tuple(self._agents.values()),
        )

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        """Take note of who has sent what."""
        host = str(address[0])
        if host in self._own:
            self._looped = self._looped or (host == self._host and data == self._question)
            return
        if len(self._hosts) < _MOST_HOSTS:
            self._hosts[host] = None
            if (found := announced(host, data, self._tag)) is not None:
                self._agents[host] = found


def announced(host: str, data: bytes, tag: str) -> Announced | None:
    """Return which agent `host` announces in a packet, None if it announces none."""
    with contextlib.suppress(Exception):  # a parser of hostile bytes may raise anything
        for record in DNSIncoming(data).answers():
            if isinstance(record, DNSText) and record.name.endswith(SERVICE):
                return Announced(host, f"tag={tag}".encode() in record.text if tag else None)
    return None


def _question() -> bytes:
    """Return a question for agents, and one for everything, so that other devices answer, too."""
    packet = DNSOutgoing(_QUERY)
    for name in (SERVICE, _KINDS_OF_ALL):
        packet.add_question(DNSQuestion(name, _TYPE_PTR, _CLASS_IN))
    return packet.packets()[0]


def _open(host: str) -> socket.socket:
    """Return a socket that sends to and receives from the group through the interface of `host`."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "SO_REUSEPORT"):  # other programs listen there, too
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        interface = socket.inet_aton(host)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, interface)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, _TTL)
        sock.bind(("", PORT))
        member = socket.inet_aton(GROUP) + interface
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
    except BaseException:
        sock.close()
        raise
    return sock
