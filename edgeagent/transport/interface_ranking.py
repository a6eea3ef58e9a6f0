"""Which of this device's network interfaces others are likely to reach it by, best first.

Devices often have more interfaces than the one that leads to the room: bridges of containers and
virtual machines, whose addresses mean nothing elsewhere (and are often the same on two devices),
and VPNs, which reach only their own members and are slower. Such an interface is ranked last and
not left out, because it may be the only one, or the only one by which a certain peer answers.

This module only looks at what `interfaces.py` has read; it does no I/O.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What an interface leads to. The values are words for people."""

    WIRED = "wired"
    WIRELESS = "wireless"
    OTHER = "network"  # the system does not say what it is
    LINKED = "virtual link"  # one end of a pair: the network of a container, seen from inside
    TUNNEL = "tunnel or VPN"
    BRIDGE = "bridge of containers or virtual machines"
    LOOPBACK = "loopback"


@dataclass(frozen=True, slots=True)
class SystemFacts:
    """What Linux says of an interface (below /sys/class/net).

    `hardware`: its ARPHRD number, 1 for everything that looks like Ethernet. `physical`: there is a
    device behind it. `ports`: for a bridge, whether each of its ports is physical; None if it is no
    bridge. `devtype`: the driver's word for it, "" if it has none.
    """

    hardware: int
    physical: bool = False
    wireless: bool = False
    tunnel: bool = False
    ports: tuple[bool, ...] | None = None
    devtype: str = ""


@dataclass(frozen=True, slots=True)
class Interface:
    """One interface of this device.

    `hosts`: its addresses, without those of IPv6 that only mean something together with its name.
    `carrier`: a cable is in, or Wi-Fi is connected; True where the system does not say. `mtu`: the
    largest packet in bytes, None where the system does not say.
    """

    name: str
    kind: Kind
    hosts: tuple[str, ...]
    carrier: bool = True
    mtu: int | None = None


LOOPBACK_TYPE = 772  # ARPHRD_LOOPBACK
# Point-to-point, tunnels of several sorts, and ARPHRD_NONE, which tun and WireGuard have.
TUNNEL_TYPES = (512, 768, 769, 776, 778, 823, 65534)
TUNNEL_DEVTYPES = ("wireguard", "ppp", "vxlan", "geneve", "gretap", "ip6gretap")
_BRIDGES = re.compile(
    r"docker|br-[0-9a-f]{6}|virbr|lxcbr|lxdbr|incusbr|cni|podman|flannel|cali|vboxnet|vmnet|kube"
    r"|vEthernet|bridge\d"
)
_TUNNELS = re.compile(r"tailscale|zt|wg\d|utun|tun|tap|ppp|ipsec|nordlynx|proton|mullvad|gif|stf")
_LINKS = re.compile(r"veth|macvlan|ipvlan|dummy")
_LOOPBACKS = re.compile(r"lo\d*$|Loopback")
_WIRELESS = re.compile(r"wl|Wi-Fi|awdl|llw")
_WIRED = re.compile(r"eth\d|en[opsx]\d|lan\d")

_GROUPS = {
    Kind.WIRED: 0,
    Kind.WIRELESS: 0,
    Kind.OTHER: 0,
    Kind.LINKED: 1,
    Kind.TUNNEL: 2,
    Kind.BRIDGE: 3,
    Kind.LOOPBACK: 4,
}
_ORDER_IN_GROUP = {Kind.WIRELESS: 1}  # wired links are faster and steadier

Rank = tuple[bool, bool, int, bool, bool, int, bool, str, str]


def kind_of(name: str, facts: SystemFacts | None) -> Kind:
    """Return what the interface `name` leads to; `facts` is None where the system tells nothing.

    A bridge with a physical port (of a host with virtual machines) is the way to the room and
    counts as wired. What has no device behind it is also judged by its name.
    """
    if facts is None:
        return _kind_by_name(name)
    if facts.hardware == LOOPBACK_TYPE:
        return Kind.LOOPBACK
    if facts.ports is not None:
        return Kind.WIRED if any(facts.ports) else Kind.BRIDGE
    if facts.tunnel or facts.hardware in TUNNEL_TYPES or facts.devtype in TUNNEL_DEVTYPES:
        return Kind.TUNNEL
    if facts.wireless or facts.devtype == "wlan":
        return Kind.WIRELESS
    if facts.physical or facts.devtype in ("vlan", "bond"):
        return Kind.WIRED
    by_name = _kind_by_name(name)
    if by_name in (Kind.BRIDGE, Kind.TUNNEL):
        return by_name
    return Kind.LINKED


def _kind_by_name(name: str) -> Kind:
    for pattern, kind in (
        (_LOOPBACKS, Kind.LOOPBACK),
        (_BRIDGES, Kind.BRIDGE),
        (_TUNNELS, Kind.TUNNEL),
        (_LINKS, Kind.LINKED),
        (_WIRELESS, Kind.WIRELESS),
        (_WIRED, Kind.WIRED),
    ):
        if pattern.match(name):
            return kind
    return Kind.OTHER


def rank(interface: Interface, host: str, preferred: tuple[str, ...]) -> Rank:
    """Return the place of `host`, an address of `interface`, among all addresses; smaller is
    better. `preferred` are the addresses from which the default routes start."""
    address = ipaddress.ip_address(host)
    return (
        address.is_loopback,
        not interface.carrier,
        _GROUPS[interface.kind],
        address.is_link_local,
        host not in preferred,
        _ORDER_IN_GROUP.get(interface.kind, 0),
        address.version == 6,
        interface.name,
        host,
    )


def ranked(
    interfaces: tuple[Interface, ...], preferred: tuple[str, ...]
) -> tuple[tuple[Interface, str], ...]:
    """Return all addresses, best first, each with its interface."""
    pairs = [(interface, host) for interface in interfaces for host in interface.hosts]
    return tuple(sorted(pairs, key=lambda pair: rank(pair[0], pair[1], preferred)))
