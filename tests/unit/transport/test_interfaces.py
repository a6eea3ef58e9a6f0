"""Which interfaces there are, which is the best, and sockets that keep to one."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from typing import Any

import ifaddr
import pytest

from edgeagent.errors import UsageError
from edgeagent.transport import connecting, interfaces
from edgeagent.transport.connecting import connect
from edgeagent.transport.interface_ranking import Interface, Kind, SystemFacts, kind_of, ranked
from edgeagent.transport.interfaces import check_interface, keep_to_interface, read_interfaces

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this option")


@pytest.mark.parametrize(
    ("name", "facts", "kind"),
    [
        ("lo", SystemFacts(772), Kind.LOOPBACK),
        ("eth0", SystemFacts(1, physical=True), Kind.WIRED),
        ("enp3s0", SystemFacts(1, physical=True), Kind.WIRED),
        ("wlp2s0", SystemFacts(1, physical=True, wireless=True), Kind.WIRELESS),
        ("wlan0", SystemFacts(1, physical=True, devtype="wlan"), Kind.WIRELESS),
        ("eth0.5", SystemFacts(1, devtype="vlan"), Kind.WIRED),
        ("docker0", SystemFacts(1, ports=()), Kind.BRIDGE),
        ("br-1a2b3c4d5e6f", SystemFacts(1, ports=(False, False)), Kind.BRIDGE),
        ("br0", SystemFacts(1, ports=(False, True)), Kind.WIRED),
        ("tun0", SystemFacts(65534, tunnel=True), Kind.TUNNEL),
        ("tap7", SystemFacts(1, tunnel=True), Kind.TUNNEL),
        ("office", SystemFacts(65534, devtype="wireguard"), Kind.TUNNEL),
        ("ppp0", SystemFacts(512), Kind.TUNNEL),
        ("vboxnet0", SystemFacts(1), Kind.BRIDGE),
        ("veth12ab", SystemFacts(1), Kind.LINKED),
        ("eth0", SystemFacts(1), Kind.LINKED),  # of a container, from inside
        ("en0", None, Kind.OTHER),
        ("utun3", None, Kind.TUNNEL),
        ("bridge100", None, Kind.BRIDGE),
        ("lo0", None, Kind.LOOPBACK),
        ("wlan0", None, Kind.WIRELESS),
        ("enp3s0", None, Kind.WIRED),
    ],
)
def test_what_an_interface_leads_to(name: str, facts: SystemFacts | None, kind: Kind) -> None:
    assert kind_of(name, facts) is kind


def order(*found: Interface, preferred: tuple[str, ...] = ()) -> list[str]:
    return [host for _, host in ranked(found, preferred)]


ETHERNET = Interface("enp3s0", Kind.WIRED, ("192.168.1.20", "2001:db8::20"))
WIFI = Interface("wlp2s0", Kind.WIRELESS, ("192.168.1.21",))
DOCKER = Interface("br-1a2b3c", Kind.BRIDGE, ("172.17.0.1",))
VPN = Interface("tun0", Kind.TUNNEL, ("10.8.0.6",))
LO = Interface("lo", Kind.LOOPBACK, ("127.0.0.1", "::1"))


def test_bridges_and_tunnels_come_last_even_with_lower_names_or_the_default_route() -> None:
    expected = ["192.168.1.20", "2001:db8::20", "192.168.1.21", "10.8.0.6", "172.17.0.1"]
    expected += ["127.0.0.1", "::1"]
    assert order(DOCKER, LO, VPN, WIFI, ETHERNET) == expected
    assert order(DOCKER, LO, VPN, WIFI, ETHERNET, preferred=("10.8.0.6",)) == expected


def test_the_default_route_decides_among_those_that_lead_to_the_room() -> None:
    assert order(ETHERNET, WIFI, preferred=("192.168.1.21",))[0] == "192.168.1.21"


def test_without_a_cable_an_address_is_of_no_use() -> None:
    unplugged = Interface("eth0", Kind.WIRED, ("192.168.7.7",), carrier=False)
    assert order(unplugged, WIFI, VPN) == ["192.168.1.21", "10.8.0.6", "192.168.7.7"]


def test_the_only_interface_is_used_whatever_it_is() -> None:
    assert order(LO, VPN) == ["10.8.0.6", "127.0.0.1", "::1"]


def test_addresses_that_nobody_assigned_come_after_those_that_somebody_did() -> None:
    direct = Interface("eth0", Kind.WIRED, ("169.254.3.4",))
    assert order(direct, WIFI, DOCKER) == ["192.168.1.21", "169.254.3.4", "172.17.0.1"]


def system(folder: Path, name: str, **files: str) -> None:
    """Write what Linux would say of an interface; a name that ends with _ is a folder."""
    place = folder / name
    place.mkdir(parents=True)
    for file, text in files.items():
        if file.endswith("_"):
            (place / file[:-1]).mkdir()
            for entry in text.split():
                (place / file[:-1] / entry).mkdir()
        else:
            (place / file).write_text(f"{text}\n")


def test_interfaces_are_read_from_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system(tmp_path, "enp3s0", type="1", device="", carrier="1", mtu="1500")
    system(tmp_path, "wlp2s0", type="1", device="", wireless_="", carrier="0", mtu="1500")
    system(tmp_path, "br0", type="1", bridge_="", brif_="enp3s0 tap1", uevent="DEVTYPE=bridge")
    system(tmp_path, "docker0", type="1", bridge_="", brif_="veth1")
    system(tmp_path, "wg", type="65534", uevent="INTERFACE=wg\nDEVTYPE=wireguard", mtu="1420")

    def adapter(name: str, *ips: Any) -> ifaddr.Adapter:
        return ifaddr.Adapter(name, name, [ifaddr.IP(ip, 24, name) for ip in ips])

    adapters = [
        adapter("docker0", "172.17.0.1"),
        adapter("enp3s0", "192.168.1.20", ("fe80::1", 0, 2), ("2001:db8::1", 0, 0)),
        adapter("enp3s0:1", "192.168.1.99"),
        adapter("br0", "192.168.2.2"),
        adapter("wg", "10.9.0.1"),
        adapter("elsewhere", "192.0.2.1"),
    ]
    monkeypatch.setattr(ifaddr, "get_adapters", lambda: adapters)
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "enp3s0"), (2, "wlp2s0")])
    found = {interface.name: interface for interface in read_interfaces(str(tmp_path))}
    ethernet = ("192.168.1.20", "2001:db8::1", "192.168.1.99")
    assert found["enp3s0"] == Interface("enp3s0", Kind.WIRED, ethernet, True, 1500)
    assert found["wlp2s0"] == Interface("wlp2s0", Kind.WIRELESS, (), False, 1500)
    assert found["br0"].kind is Kind.WIRED
    assert not found["br0"].carrier, "it is not up, or its carrier could be read"
    assert found["docker0"].kind is Kind.BRIDGE
    assert (found["wg"].kind, found["wg"].mtu) == (Kind.TUNNEL, 1420)
    assert found["elsewhere"] == Interface("elsewhere", Kind.OTHER, ("192.0.2.1",))


def test_an_unknown_interface_is_refused_with_those_that_there_are() -> None:
    check_interface(socket.if_nameindex()[0][1])
    with pytest.raises(UsageError, match=r"nowhere0: this device has no such .* it has .*lo"):
        check_interface("nowhere0")


class Recorder:
    """A socket that only notes which options it is given."""

    def __init__(self, family: int = socket.AF_INET, error: OSError | None = None) -> None:
        self.family = family
        self.error = error
        self.options: list[tuple[Any, ...]] = []

    def setsockopt(self, *option: Any) -> None:
        if self.error is not None:
            raise self.error
        self.options.append(option)


@pytest.mark.parametrize(
    ("platform", "family", "option"),
    [
        ("darwin", socket.AF_INET, (socket.IPPROTO_IP, 25, 7)),
        ("darwin", socket.AF_INET6, (socket.IPPROTO_IPV6, 125, 7)),
        ("linux", socket.AF_INET6, (socket.SOL_SOCKET, 25, b"en0\0")),
    ],
)
def test_each_system_has_its_own_way_to_keep_to_an_interface(
    monkeypatch: pytest.MonkeyPatch, platform: str, family: int, option: tuple[Any, ...]
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(socket, "if_nametoindex", lambda name: 7)
    monkeypatch.setattr(socket, "SO_BINDTODEVICE", 25, raising=False)
    sock = Recorder(family)
    keep_to_interface(sock, "en0")  # type: ignore[arg-type] # a fake
    assert sock.options == [option]


def test_a_system_that_cannot_or_does_not_let_us_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "SO_BINDTODEVICE", 25, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    barred = Recorder(error=PermissionError(1, "Operation not permitted"))
    with pytest.raises(UsageError, match=r"not permitted; name its address instead"):
        keep_to_interface(barred, "eth0")  # type: ignore[arg-type] # a fake
    monkeypatch.setattr(sys, "platform", "plan9")
    with pytest.raises(UsageError, match="does not work on this system"):
        keep_to_interface(barred, "eth0")  # type: ignore[arg-type] # a fake


def test_an_address_that_does_not_answer_costs_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name stands for two addresses, and the connection to the first never comes about."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            port = listening.getsockname()[1]
            kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")

            async def resolve(*_name: Any, **_more: Any) -> list[Any]:
                return [(*kind, ("192.0.2.1", port)), (*kind, ("127.0.0.1", port))]

            reach = loop.sock_connect

            async def connect_or_hang(sock: socket.socket, address: Any) -> None:
                if address[0] == "192.0.2.1":
                    await loop.create_future()
                await reach(sock, address)

            monkeypatch.setattr(loop, "getaddrinfo", resolve)
            monkeypatch.setattr(loop, "sock_connect", connect_or_hang)
            async with asyncio.timeout(5.0):
                (await connect("both", port)).close()

    asyncio.run(main())


def test_no_address_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            port = bound.getsockname()[1]
            with pytest.raises(ConnectionRefusedError) as refused:
                await connect("127.0.0.1", port)
            assert refused.value.strerror == "Connection refused"

            def barred(sock: socket.socket, name: str) -> None:
                raise UsageError(f"--interface {name}: not permitted")

            monkeypatch.setattr(connecting, "keep_to_interface", barred)
            with pytest.raises(OSError, match="eth0: not permitted"):
                await connect("127.0.0.1", port, interface="eth0")

    asyncio.run(main())


@linux
def test_a_listener_keeps_to_its_interface() -> None:
    """What is kept to the loopback interface is reached there."""

    async def main() -> None:
        with socket.socket() as listening:
            try:
                keep_to_interface(listening, "lo")
            except UsageError as error:
                pytest.skip(str(error))
            listening.bind(("0.0.0.0", 0))
            listening.listen()
            port = listening.getsockname()[1]
            (await connect("127.0.0.1", port, interface="lo")).close()
            assert listening.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16)[:2] == b"lo"

    asyncio.run(main())


def test_the_module_reads_nothing_that_is_not_there(tmp_path: Path) -> None:
    assert interfaces._facts(str(tmp_path / "nothing")) is None
