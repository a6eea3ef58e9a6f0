"""Discovery: agents of one cluster find each other, others cost one line, errors are no crash.

Multicast stays on 127.0.0.1, or inside two network namespaces that the test made.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from zeroconf import IPVersion

from edgeagent.transport import bounds
from edgeagent.transport import discovery as discovery_module
from edgeagent.transport.discovery import Discovery
from edgeagent.transport.token import discovery_tag

from .helpers import LOOPS, run, until

loops = pytest.mark.parametrize("loop_name", LOOPS)


@pytest.fixture(autouse=True)
def _alone_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use another service type, because other agents on this machine announce themselves, too."""
    monkeypatch.setattr(discovery_module, "SERVICE", f"_ea{secrets.token_hex(4)}._tcp.local.")


Hints = list[tuple[str, ...]]


def one(
    tag: str, address: str, hints: Hints, lines: list[str], listen: str = "127.0.0.1:0"
) -> Discovery:
    return Discovery(tag, (address,), hints.append, lines.append, listen=listen)


@loops
@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_agents_find_each_other_on_loopback_and_not_themselves(loop_name: str, host: str) -> None:
    token = secrets.token_bytes(16)
    hints: list[Hints] = [[], [], []]
    lines: list[str] = []

    async def main() -> None:
        tags = [discovery_tag(token, "room")] * 2 + [discovery_tag(token, "attic")]
        agents = [
            one(tag, f"{host}:{7000 + i}", hints[i], lines if i == 0 else [], f"{host}:0")
            for i, tag in enumerate(tags)
        ]
        assert await asyncio.gather(*(agent.start() for agent in agents)) == [True] * 3
        await until(lambda: bool(hints[0] and hints[1] and lines), "found")
        late: Hints = []
        newcomer = one(tags[0], f"{host}:7009", late, [], f"{host}:0")
        await newcomer.start()
        await until(lambda: len(late) == 2 and len(hints[0]) == 2, "the newcomer, too")
        await asyncio.gather(*(agent.stop() for agent in [*agents, newcomer]))
        await newcomer.stop()
        assert sorted(late) == [(f"{host}:7000",), (f"{host}:7001",)]
        assert agents[0].strangers >= 1

    run(main, loop_name)
    assert hints[0] == [(f"{host}:7001",), (f"{host}:7009",)]
    assert hints[1] == [(f"{host}:7000",), (f"{host}:7009",)]
    assert hints[2] == []
    assert lines == [
        "an agent of another cluster or token is nearby; if it should be in this one, "
        "compare its token and --cluster"
    ]


@loops
def test_a_change_of_the_tag_takes_over_whoever_has_the_new_one(loop_name: str) -> None:
    """Of three agents, two change to another tag, one after the other, and then change again."""
    hints: list[Hints] = [[], [], []]
    lines: list[str] = []
    first, second, third = (f"{number:02x}" * 8 for number in (1, 2, 3))

    async def main() -> None:
        logs = [lines, lines, []]
        agents = [one(first, f"127.0.0.1:{7000 + i}", hints[i], logs[i]) for i in range(3)]
        await asyncio.gather(*(agent.start() for agent in agents))
        await until(lambda: all(len(found) == 2 for found in hints), "all know each other")
        for tag in (second, third):
            for found in hints:
                found.clear()
            agents[0].use_tag(tag)
            await until(lambda: agents[1].strangers >= 1, "the change is seen")
            agents[1].use_tag(tag)
            agents[1].use_tag(tag)
            await until(lambda: bool(hints[0] and hints[1]), "they find each other again")
            assert hints == [[("127.0.0.1:7001",)], [("127.0.0.1:7000",)], []]
        assert agents[0].strangers == 1
        late: Hints = []
        newcomer = one(third, "127.0.0.1:7009", late, [])
        await newcomer.start()
        await until(lambda: len(late) == 2 and len(hints[0]) == 2, "a newcomer with the new tag")
        assert sorted(late) == [("127.0.0.1:7000",), ("127.0.0.1:7001",)]
        await asyncio.gather(*(agent.stop() for agent in [*agents, newcomer]))
        agents[0].use_tag(first)

    run(main, loop_name)
    assert hints[2] == []
    assert lines == [], "nobody of our own is a stranger while the tag changes"


@loops
def test_who_has_moved_is_announced_and_found_at_its_new_address(loop_name: str) -> None:
    hints: list[Hints] = [[], []]
    tag = "07" * 8

    async def main() -> None:
        here, mover = (one(tag, f"127.0.0.1:{7000 + i}", hints[i], []) for i in range(2))
        await asyncio.gather(here.start(), mover.start())
        await until(lambda: bool(hints[0] and hints[1]), "found")
        await mover.use_addresses(("127.0.0.1:7055",))
        await until(lambda: ("127.0.0.1:7055",) in hints[0], "found where it is now")
        await until(lambda: len(hints[1]) == 2, "it has looked anew, too")
        await asyncio.gather(here.stop(), mover.stop())

    run(main, loop_name)
    assert hints[1] == [("127.0.0.1:7000",)] * 2


@loops
def test_a_change_of_the_tag_may_be_cut_short(loop_name: str) -> None:
    async def main() -> None:
        agent = one("01" * 8, "127.0.0.1:7000", [], [])
        agent.use_tag("02" * 8)
        await agent.start()
        agent.use_tag("03" * 8)
        await agent.stop()

    run(main, loop_name)


def test_more_hints_than_are_looked_at_at_once_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_HINTS_AT_ONCE", 2)
    monkeypatch.setattr(bounds, "MAX_HINTS_KEPT", 3)
    looked: list[str] = []

    async def main() -> None:
        agent = one("01" * 8, "127.0.0.1:7000", [], [])
        await agent.start()
        assert agent._zeroconf is not None
        monkeypatch.setattr(agent, "_look", look)
        for name in "aabcdef":
            agent._look_at(agent._zeroconf.zeroconf, name)
        await until(lambda: len(looked) == 5, "all but the dropped ones")
        await agent.stop()

    async def look(zeroconf: Any, name: str) -> None:
        await asyncio.sleep(0)
        looked.append(name)

    run(main)
    assert looked == ["a", "b", "d", "e", "f"]


def test_what_is_announced_says_nothing_but_addresses_and_the_tag() -> None:
    agent = one("00ff" * 4, "192.0.2.4:7430", [], [])
    info = agent._service()
    assert info.properties == {b"v": b"1", b"tag": b"00ff" * 4}
    assert info.parsed_addresses() == ["192.0.2.4"]
    assert info.port == 7430
    instance = info.name.removesuffix(f".{discovery_module.SERVICE}")
    assert len(instance) == 16
    assert info.server == f"{instance}.local."
    assert one("00ff" * 4, "192.0.2.4:7430", [], [])._service().name != info.name


def test_trouble_with_multicast_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoNetwork:
        def __init__(self, **_options: Any) -> None:
            raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(discovery_module, "AsyncZeroconf", NoNetwork)
    lines: list[str] = []

    async def main() -> None:
        agent = one("00" * 8, "127.0.0.1:7000", [], lines)
        assert not await agent.start()
        await agent.stop()

    run(main)
    assert lines == [
        "cannot look for peers by multicast DNS (Network is unreachable): "
        "name one with --peer HOST:PORT"
    ]


@pytest.mark.parametrize(
    ("listen", "address", "interfaces", "version"),
    [
        ("127.0.0.1:0", "127.0.0.1:1", ["127.0.0.1"], IPVersion.V4Only),
        ("[::1]:0", "[::1]:1", ["127.0.0.1"], IPVersion.V4Only),
        ("192.0.2.4:0", "192.0.2.4:1", ["192.0.2.4"], IPVersion.V4Only),
        ("[2001:db8::1]:0", "[2001:db8::1]:1", ["2001:db8::1"], IPVersion.V6Only),
    ],
)
def test_interfaces_follow_the_listening_address(
    listen: str, address: str, interfaces: list[str], version: IPVersion
) -> None:
    agent = one("00" * 8, address, [], [], listen)
    assert agent._interfaces() == interfaces
    assert agent._ip_version() is version


@pytest.mark.parametrize("listen", ["", "0.0.0.0:7430", "[::]:7430"])
def test_wildcards_use_every_interface(listen: str) -> None:
    agent = one("00" * 8, "192.0.2.4:7430", [], [], listen)
    assert not isinstance(agent._interfaces(), list)


def test_unusable_addresses_of_others_are_ignored() -> None:
    usable = discovery_module._usable(["192.0.2.1", "0.0.0.0", "fe80::1%eth0", "junk"], 7430)
    assert usable == ("192.0.2.1:7430", "[fe80::1%eth0]:7430")
    assert discovery_module._usable(["192.0.2.1"], 0) == ()


NEIGHBOUR = """
import asyncio, sys
from edgeagent.transport.discovery import Discovery
from edgeagent.transport.sockets import listen_pair, told_addresses
async def main():
    listening = listen_pair("")
    found = asyncio.Event()
    def hint(addresses):
        print("found", *addresses, flush=True)
        found.set()
    told = told_addresses(listening.join)
    print("told", *told, flush=True)
    agent = Discovery("00ff" * 4, told, hint, print)
    assert await agent.start()
    async with asyncio.timeout(20):
        await found.wait()
    await asyncio.to_thread(sys.stdin.read)
    await agent.stop()
    listening.close()
asyncio.run(main())
"""


@pytest.fixture
def two_namespaces() -> Iterator[tuple[str, str]]:
    """Two network namespaces joined by a cable, each with an IPv4 and an IPv6 address.

    Both have the bridge of a container, too, with the same address, whose text is smaller than that
    of the cable's.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and the ip command to make network namespaces")
    tag = secrets.token_hex(3)
    names = f"ea-{tag}-a", f"ea-{tag}-b"

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    try:
        ip("netns", "add", names[0])
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
    try:
        ip("netns", "add", names[1])
        ip("-n", names[0], "link", "add", "v0", "type", "veth", "peer", "v0", "netns", names[1])
        for number, name in enumerate(names, start=1):
            ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "v0")
            ip("-n", name, "addr", "add", f"fd77::{number}/64", "dev", "v0", "nodad")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "v0", "up")
            ip("-n", name, "link", "add", "lxcbr0", "type", "bridge")
            ip("-n", name, "link", "add", "c0", "type", "veth", "peer", "c1")
            ip("-n", name, "link", "set", "c0", "master", "lxcbr0", "up")
            ip("-n", name, "link", "set", "c1", "up")
            ip("-n", name, "addr", "add", "10.0.3.1/24", "dev", "lxcbr0")
            ip("-n", name, "link", "set", "lxcbr0", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@pytest.mark.netns
def test_agents_in_two_namespaces_find_each_other(two_namespaces: tuple[str, str]) -> None:
    processes = [
        subprocess.Popen(
            ["ip", "netns", "exec", name, sys.executable, "-c", NEIGHBOUR],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in two_namespaces
    ]
    told, found = [], []
    for process in processes:
        assert process.stdout is not None
        told.append(process.stdout.readline().split())
        found.append(process.stdout.readline().split())
    for process in processes:
        process.communicate(timeout=20)
        assert process.returncode == 0
    assert told[0] == ["told", "10.77.0.1:7430", "[fd77::1]:7430", "10.0.3.1:7430"]
    assert set(told[1][1:]) <= set(found[0][1:])
    assert set(told[0][1:]) <= set(found[1][1:])
