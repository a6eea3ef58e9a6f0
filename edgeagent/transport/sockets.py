"""Listening sockets, and the addresses under which others reach them.

An address that is told to others is never a wildcard. It is one that only means something on this
host (loopback) only if the agent listens nowhere else.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
from dataclasses import dataclass

from edgeagent.config import DEFAULT_PORT, join_address, listen_address
from edgeagent.errors import UsageError
from edgeagent.transport import bounds
from edgeagent.transport.interface_ranking import Interface, Kind, ranked
from edgeagent.transport.interfaces import (
    check_interface,
    keep_to_interface,
    preferred_hosts,
    read_interfaces,
)
from protocols import limits

_EVERYWHERE = ("0.0.0.0", "::")
_NO_SUCH_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT)


@dataclass(frozen=True, slots=True)
class Listening:
    """Bound, listening sockets of both listeners."""

    join: tuple[socket.socket, ...]
    peer: tuple[socket.socket, ...]

    def close(self) -> None:
        """Close them all."""
        for sock in self.join + self.peer:
            sock.close()


def listen_pair(listen: str, interface: str = "", first_port: int = DEFAULT_PORT) -> Listening:
    """Bind both listeners and return their sockets.

    Joins use the port of `listen` ([HOST:]PORT), links the next one if it is free, else any.
    Without HOST that is every address, IPv4 and IPv6; "" means so, too, and the first free port
    from `first_port` on. Port 0 means any free port. With `interface`, only what comes in there
    is accepted. Raises `UsageError`.
    """
    if interface:
        check_interface(interface)
    if listen:
        host, port = listen_address(listen)
        hosts = _resolve(host) if host else _EVERYWHERE
        try:
            return _with_peers(hosts, _listen(hosts, port, interface), interface)
        except OSError as error:
            raise UsageError(f"--listen {listen}: {_why_not(error, hosts, port)}") from None
    for port in range(first_port, first_port + 2 * bounds.PORTS_TRIED, 2):
        with contextlib.suppress(OSError):
            return _with_peers(_EVERYWHERE, _listen(_EVERYWHERE, port, interface), interface)
    raise UsageError(f"no free port from {first_port} on: name one with --listen HOST:PORT")


def told_addresses(sockets: tuple[socket.socket, ...], interface: str = "") -> tuple[str, ...]:
    """Return the HOST:PORT texts under which others reach `sockets`, best first.

    With `interface` only addresses of that interface are told, and perhaps none. Raises OSError if
    the system does not tell its addresses.
    """
    here = [found for found in read_interfaces() if interface in ("", found.name)]
    ports: dict[str, int] = {}
    for sock in sockets:
        host, port = sock.getsockname()[:2]
        if host not in _EVERYWHERE:
            ports[host] = port
            continue
        version = 6 if sock.family == socket.AF_INET6 else 4
        for own in (host for found in here for host in found.hosts):
            if ipaddress.ip_address(own).version == version:
                ports[own] = port
    known = {host for found in here for host in found.hosts}
    unknown = tuple(host for host in ports if host not in known)
    here.append(Interface("", Kind.OTHER, unknown))  # addresses that the list does not have
    hosts = [host for _, host in ranked(tuple(here), preferred_hosts()) if host in ports]
    if any(not ipaddress.ip_address(host).is_loopback for host in hosts):
        hosts = [host for host in hosts if not ipaddress.ip_address(host).is_loopback]
    unique = dict.fromkeys(hosts)  # two interfaces may have the same address
    return tuple(join_address(host, ports[host]) for host in unique)[: limits.MAX_ADDRESSES]


def own_hosts(interface: str = "") -> tuple[str, ...]:
    """Return the addresses of this device (with `interface`, of that one) that others may reach,
    best first. Raises OSError if the system does not tell its addresses."""
    here = tuple(found for found in read_interfaces() if interface in ("", found.name))
    hosts = [host for _, host in ranked(here, preferred_hosts())]
    return tuple(host for host in hosts if not ipaddress.ip_address(host).is_loopback)


def _with_peers(
    hosts: tuple[str, ...], join: list[socket.socket], interface: str = ""
) -> Listening:
    next_port = join[0].getsockname()[1] + 1
    for port in (next_port, 0):
        with contextlib.suppress(OSError, OverflowError):
            return Listening(tuple(join), tuple(_listen(hosts, port, interface)))
    for sock in join:
        sock.close()
    raise UsageError("no free port for the peer listener")


def _taken(hosts: tuple[str, ...], port: int) -> bool:
    """Return whether nothing more can listen on `port`."""
    try:
        found = _listen(hosts, port)
    except OSError:
        return True
    for sock in found:
        sock.close()
    return False


def _why_not(error: OSError, hosts: tuple[str, ...], port: int) -> str:
    """Return why `port` of `hosts` cannot be listened on, and what to do about it."""
    if error.errno == errno.EADDRINUSE:
        both = port < 65535 and _taken(hosts, port + 1)
        taken = f"ports {port} and {port + 1} are taken" if both else f"port {port} is taken"
        return (
            f"{taken}, perhaps by another agent: choose another (an agent listens on PORT and, "
            "where that is free, on PORT+1)"
        )
    if error.errno in _NO_SUCH_FAMILY:
        return "that is no address of this device"
    if error.errno == errno.EACCES:
        return f"port {port} is not open to you: choose one from 1024 on"
    return error.strerror or str(error)


def _resolve(host: str) -> tuple[str, ...]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise UsageError(f"--listen {host}: {error.strerror or error}") from None
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


def _listen(hosts: tuple[str, ...], port: int, interface: str = "") -> list[socket.socket]:
    """Listen on one port of all `hosts` that this device has.

    Raises OSError if the device has none of them, or if the port is taken on any of them.
    """
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    for host in hosts:
        try:
            sockets.append(_listen_one(host, port, interface))
        except OSError as error:
            if error.errno in _NO_SUCH_FAMILY:
                missing = error
                continue
            for sock in sockets:
                sock.close()
            raise
        port = sockets[0].getsockname()[1]
    if missing is not None and not sockets:
        raise missing
    return sockets


def _listen_one(host: str, port: int, interface: str = "") -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        if os.name == "posix":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if interface:
            keep_to_interface(sock, interface)
        sock.bind((host, port))
        sock.listen(bounds.ACCEPT_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock
