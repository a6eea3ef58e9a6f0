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

import ifaddr

from edgeagent.config import DEFAULT_PORT, join_address, split_address
from edgeagent.errors import UsageError
from edgeagent.transport import bounds
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


def listen_pair(listen: str) -> Listening:
    """Bind both listeners and return their sockets.

    Joins use the port of `listen` (HOST:PORT), links the next one if it is free, else any. "" means
    every address, IPv4 and IPv6, and the first free port from `DEFAULT_PORT` on. Port 0 means any
    free port. Raises `UsageError`.
    """
    if listen:
        host, port = split_address(listen)
        hosts = _resolve(host)
        try:
            return _with_peers(hosts, _listen(hosts, port))
        except OSError as error:
            raise UsageError(f"--listen {listen}: {_why_not(error, hosts, port)}") from None
    for port in range(DEFAULT_PORT, DEFAULT_PORT + 2 * bounds.PORTS_TRIED, 2):
        with contextlib.suppress(OSError):
            return _with_peers(_EVERYWHERE, _listen(_EVERYWHERE, port))
    raise UsageError(f"no free port from {DEFAULT_PORT} on: name one with --listen HOST:PORT")


def told_addresses(sockets: tuple[socket.socket, ...]) -> tuple[str, ...]:
    """Return the HOST:PORT texts under which others reach `sockets`, best first."""
    hosts: dict[str, int] = {}
    for sock in sockets:
        host, port = sock.getsockname()[:2]
        if host not in _EVERYWHERE:
            hosts[host] = port
            continue
        for own in _own_hosts(sock.family):
            hosts[own] = port
    ranked = sorted(hosts, key=lambda host: _rank(host, _preferred_hosts()))
    if any(not ipaddress.ip_address(host).is_loopback for host in ranked):
        ranked = [host for host in ranked if not ipaddress.ip_address(host).is_loopback]
    return tuple(join_address(host, hosts[host]) for host in ranked[: limits.MAX_ADDRESSES])


def _with_peers(hosts: tuple[str, ...], join: list[socket.socket]) -> Listening:
    next_port = join[0].getsockname()[1] + 1
    for port in (next_port, 0):
        with contextlib.suppress(OSError, OverflowError):
            return Listening(tuple(join), tuple(_listen(hosts, port)))
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


def _listen(hosts: tuple[str, ...], port: int) -> list[socket.socket]:
    """Listen on one port of all `hosts` that this device has.

    Raises OSError if the device has none of them, or if the port is taken on any of them.
    """
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    for host in hosts:
        try:
            sockets.append(_listen_one(host, port))
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


def _listen_one(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        if os.name == "posix":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((host, port))
        sock.listen(bounds.ACCEPT_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def _own_hosts(family: socket.AddressFamily | int) -> list[str]:
    found: list[str] = []
    for adapter in ifaddr.get_adapters():
        for entry in adapter.ips:
            host = entry.ip if isinstance(entry.ip, str) else entry.ip[0]
            version = ipaddress.ip_address(host).version
            if version != (6 if family == socket.AF_INET6 else 4):
                continue
            if version == 6 and ipaddress.ip_address(host).is_link_local:
                continue  # it means nothing to others without the name of an interface
            found.append(host)
    return found


def _preferred_hosts() -> list[str]:
    """Return our addresses on the default routes. The kernel is asked; nothing is sent."""
    found = []
    targets = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
    for family, target in targets:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((target, 9))
            found.append(str(probe.getsockname()[0]))
    return found


def _rank(host: str, preferred: list[str]) -> tuple[bool, bool, bool, bool, str]:
    address = ipaddress.ip_address(host)
    return (
        address.is_loopback,
        address.is_link_local,
        host not in preferred,
        address.version == 6,
        host,
    )
