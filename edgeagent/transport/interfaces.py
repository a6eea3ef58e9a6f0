"""The network interfaces of this device as the system describes them, and sockets kept to one.

Linux describes interfaces in files below /sys/class/net, which need no command and no privilege.
Other systems have no such files: their interfaces are judged by their names alone. Which one is the
best is decided in `interface_ranking.py`.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import sys

import ifaddr

from edgeagent.errors import UsageError
from edgeagent.transport.interface_ranking import Interface, SystemFacts, kind_of

SYSTEM_FOLDER = "/sys/class/net"
_IP_BOUND_IF, _IPV6_BOUND_IF = 25, 125  # macOS: netinet/in.h, netinet6/in6.h


def read_interfaces(folder: str = SYSTEM_FOLDER) -> tuple[Interface, ...]:
    """Return the interfaces of this device, with and without addresses, in the system's order.

    Raises OSError if the system does not tell which addresses there are.
    """
    hosts: dict[str, list[str]] = {}
    for adapter in ifaddr.get_adapters():
        name = str(adapter.name).partition(":")[0]  # "eth0:1" is another address of eth0
        known = hosts.setdefault(name, [])
        for entry in adapter.ips:
            host = entry.ip if isinstance(entry.ip, str) else entry.ip[0]
            address = ipaddress.ip_address(host)
            if address.version == 6 and address.is_link_local:
                continue  # it means nothing to others without the name of an interface
            known.append(host)
    with contextlib.suppress(OSError):
        for _, name in socket.if_nameindex():
            hosts.setdefault(name, [])
    return tuple(_interface(name, tuple(found), folder) for name, found in hosts.items())


def preferred_hosts() -> tuple[str, ...]:
    """Return our addresses on the default routes. The kernel is asked; nothing is sent."""
    found = []
    targets = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
    for family, target in targets:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((target, 9))
            found.append(str(probe.getsockname()[0]))
    return tuple(found)


def check_interface(name: str) -> None:
    """Raise `UsageError`, which names those that there are, if this device has no interface called
    `name`."""
    names = [interface.name for interface in read_interfaces()]
    if name not in names:
        raise UsageError(
            f"--interface {name}: this device has no such interface; it has {', '.join(names)}"
        )


def keep_to_interface(sock: socket.socket, name: str) -> None:
    """Have `sock` send and receive through the interface `name` only, whatever its addresses are.

    The socket must be neither bound nor connected. Raises `UsageError` if the system cannot do
    that, or does not let this user.
    """
    try:
        if sys.platform == "linux":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, name.encode() + b"\0")
        elif sys.platform == "darwin":
            number = socket.if_nametoindex(name)
            if sock.family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_BOUND_IF, number)
            else:
                sock.setsockopt(socket.IPPROTO_IP, _IP_BOUND_IF, number)
        else:
            raise UsageError("--interface does not work on this system: use --listen ADDRESS:PORT")
    except OSError as error:
        raise UsageError(
            f"--interface {name}: {error.strerror}; name its address instead, "
            "with --listen ADDRESS:PORT"
        ) from None


def _interface(name: str, hosts: tuple[str, ...], folder: str) -> Interface:
    path = os.path.join(folder, name)
    facts = _facts(path)
    carrier = _text(os.path.join(path, "carrier"))
    mtu = _text(os.path.join(path, "mtu"))
    # Reading the carrier of an interface that is not up is an error: there is a file, and no text.
    has_carrier = carrier != "0" and (carrier != "" or facts is None)
    return Interface(
        name, kind_of(name, facts), hosts, has_carrier, int(mtu) if mtu.isdecimal() else None
    )


def _facts(path: str) -> SystemFacts | None:
    """Return what the files in `path` say, None if there are none."""
    hardware = _text(os.path.join(path, "type"))
    if not hardware.isdecimal():
        return None
    described = _text(os.path.join(path, "uevent")).splitlines()
    devtypes = [line.partition("=")[2] for line in described if line.startswith("DEVTYPE=")]
    return SystemFacts(
        int(hardware),
        physical=_is_physical(path),
        wireless=any(os.path.exists(os.path.join(path, name)) for name in ("wireless", "phy80211")),
        tunnel=os.path.exists(os.path.join(path, "tun_flags")),
        ports=_ports(path),
        devtype=devtypes[0] if devtypes else "",
    )


def _ports(path: str) -> tuple[bool, ...] | None:
    """Return for each port of a bridge whether it is physical, None if this is no bridge."""
    if not os.path.isdir(os.path.join(path, "bridge")):
        return None
    try:
        names = sorted(os.listdir(os.path.join(path, "brif")))
    except OSError:
        return ()
    return tuple(_is_physical(os.path.join(os.path.dirname(path), name)) for name in names)


def _is_physical(path: str) -> bool:
    return os.path.exists(os.path.join(path, "device"))


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
