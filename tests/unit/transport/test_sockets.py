"""Which ports are used, and which addresses are told to others."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket

import ifaddr
import pytest

from edgeagent.config import split_address
from edgeagent.errors import UsageError
from edgeagent.transport import sockets
from edgeagent.transport.addresses import watch_addresses
from edgeagent.transport.sockets import Listening, listen_pair, told_addresses


def ports(listening: Listening) -> tuple[int, int]:
    join = {sock.getsockname()[1] for sock in listening.join}
    peer = {sock.getsockname()[1] for sock in listening.peer}
    assert len(join) == len(peer) == 1
    return join.pop(), peer.pop()


def below_the_ephemeral_ports() -> int:
    """Return a free port whose successor is free too, where no connection is given a port by the
    system: there a connection of another program may take the successor at any moment."""
    for port in range(20000, 30000, 2):
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + 1))
            return port
    raise AssertionError("no two free ports in a row")


def test_peers_get_the_port_behind_the_join_port() -> None:
    join = below_the_ephemeral_ports()
    first = listen_pair(f"127.0.0.1:{join}")
    assert ports(first) == (join, join + 1)
    first.close()


def test_peers_get_any_port_if_the_one_behind_the_join_port_is_taken() -> None:
    join = below_the_ephemeral_ports()
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", join + 1))
        taken.listen()
        second = listen_pair(f"127.0.0.1:{join}")
        assert ports(second)[0] == join
        assert ports(second)[1] != join + 1
        second.close()


def test_a_taken_or_foreign_address_is_a_clear_error() -> None:
    first = listen_pair("127.0.0.1:0")
    for listen in (f"127.0.0.1:{ports(first)[0]}", "192.0.2.77:7430", "name.invalid:7430", "x y:z"):
        with pytest.raises(UsageError):
            listen_pair(listen)
    first.close()


def test_the_last_port_has_none_behind_it() -> None:
    listening = listen_pair("127.0.0.1:65535")
    assert ports(listening)[0] == 65535
    assert ports(listening)[1] < 65535
    listening.close()


def test_the_error_says_which_ports_are_taken() -> None:
    taken = listen_pair("127.0.0.1:0")
    join, peer = ports(taken)
    both = f"ports {join} and {join + 1} are"
    if peer != join + 1:  # somebody else had that port, and may have it still
        both += f"|port {join} is"
    with pytest.raises(UsageError, match=both) as caught:
        listen_pair(f"127.0.0.1:{join}")
    assert "PORT+1" in str(caught.value)
    taken.close()


def test_the_error_says_that_the_address_is_another_devices() -> None:
    with pytest.raises(UsageError, match="no address of this device"):
        listen_pair("192.0.2.77:7430")


def test_an_address_that_this_device_lacks_does_not_matter_beside_one_that_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sockets, "_resolve", lambda host: ("192.0.2.77", "127.0.0.1"))
    listening = listen_pair("both:0")
    assert told_addresses(listening.join) == (f"127.0.0.1:{ports(listening)[0]}",)
    listening.close()


def test_agents_of_one_host_share_the_default_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        base = probe.getsockname()[1]
    monkeypatch.setattr(sockets, "DEFAULT_PORT", base)
    monkeypatch.setattr(sockets, "_EVERYWHERE", ("127.0.0.1", "::1"))
    found = [listen_pair("", first_port=base) for _ in range(3)]
    joins = [ports(listening)[0] for listening in found]
    assert len(set(joins)) == 3
    assert all(0 <= port - base < 20 and (port - base) % 2 == 0 for port in joins)
    for listening in found:
        listening.close()


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
def test_told_addresses_are_never_wildcards(listen: str) -> None:
    listening = listen_pair(listen)
    told = told_addresses(listening.join)
    assert told
    for text in told:
        host, port = split_address(text)
        assert port == ports(listening)[0]
        address = ipaddress.ip_address(host)
        assert not address.is_unspecified
        assert not (address.version == 6 and address.is_link_local)
    if any(not ipaddress.ip_address(split_address(text)[0]).is_loopback for text in told):
        assert all(not ipaddress.ip_address(split_address(text)[0]).is_loopback for text in told)
    listening.close()


def test_a_loopback_listener_tells_loopback_addresses() -> None:
    listening = listen_pair("127.0.0.1:0")
    assert told_addresses(listening.join) == (f"127.0.0.1:{ports(listening)[0]}",)
    listening.close()


def test_addresses_are_looked_at_again_and_again() -> None:
    looks: list[tuple[str, ...] | OSError] = [("a:1",), ("a:1",), OSError("busy"), ("b:1",)]
    seen: list[tuple[str, ...]] = []

    def look() -> tuple[str, ...]:
        found = looks.pop(0) if len(looks) > 1 else looks[0]
        if isinstance(found, OSError):
            raise found
        return found

    async def changed(found: tuple[str, ...]) -> None:
        seen.append(found)

    async def main() -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(watch_addresses(look, changed, 0.001), 0.5)

    asyncio.run(main())
    assert seen == [("b:1",)]


def test_a_network_that_comes_up_later_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    lo, wifi = ifaddr.IP("127.0.0.1", 8, "lo"), ifaddr.IP("192.0.2.7", 24, "wifi")
    here = [ifaddr.Adapter("lo", "lo", [lo])]
    monkeypatch.setattr(ifaddr, "get_adapters", lambda: here)
    listening = listen_pair("0.0.0.0:0")
    port = ports(listening)[0]
    assert told_addresses(listening.join) == (f"127.0.0.1:{port}",)
    here.append(ifaddr.Adapter("wifi", "wifi", [wifi]))
    assert told_addresses(listening.join) == (f"192.0.2.7:{port}",)
    listening.close()


def test_an_agent_on_one_interface_tells_the_addresses_of_that_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def adapter(name: str, ip: str) -> ifaddr.Adapter:
        return ifaddr.Adapter(name, name, [ifaddr.IP(ip, 24, name)])

    here = [
        adapter("br-1a2b3c", "10.0.3.1"),
        adapter("enp3s0", "192.0.2.7"),
        adapter("tun0", "10.0.4.1"),
    ]
    monkeypatch.setattr(ifaddr, "get_adapters", lambda: here)
    listening = listen_pair("0.0.0.0:0")
    port = ports(listening)[0]
    hosts = ("192.0.2.7", "10.0.4.1", "10.0.3.1")
    assert told_addresses(listening.join) == tuple(f"{host}:{port}" for host in hosts)
    assert told_addresses(listening.join, "br-1a2b3c") == (f"10.0.3.1:{port}",)
    here[1].ips.clear()
    assert told_addresses(listening.join, "enp3s0") == ()
    listening.close()
