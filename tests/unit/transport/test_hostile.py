"""Strangers at both ports: one clear line each, bounded cost, and honest joiners still get in."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import ssl
from collections.abc import Awaitable, Callable

import pytest

from edgeagent.transport import tls
from edgeagent.transport.complaints import Complaints
from edgeagent.transport.tls import Trust
from protocols import limits

from .helpers import LOOPS, Agent, agent, identity, run, until

loops = pytest.mark.parametrize("loop_name", LOOPS)
GREETING = "no TLS greeting of an agent"


def serve(body: Callable[[Agent, list[str]], Awaitable[None]], loop_name: str) -> list[str]:
    """Run `body(anna, [join port, peer port addresses])`; return anna's log lines."""
    anna = agent("anna")

    async def main() -> None:
        await anna.start()
        try:
            await body(anna, [anna.join_addresses[0], anna.me.addresses[0]])
        finally:
            await anna.transport.stop()

    run(main, loop_name)
    return anna.lines


async def plain(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = address.rsplit(":", 1)
    return await asyncio.open_connection(host, int(port))


async def over(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Wait until the other end has closed."""
    with contextlib.suppress(OSError):
        while await reader.read(1 << 16):
            pass
    writer.close()


async def honest_joiner_gets_in(anna: Agent) -> None:
    ben = agent("ben")
    await ben.start()
    standing = await ben.transport.join(anna.join_addresses[0])
    ben.transport.trust(standing.me.certificate)
    link = await ben.transport.dial(standing.me)
    await link.close(flush=True)
    await ben.transport.stop()


@loops
def test_a_mebibyte_of_random_bytes_at_each_port(loop_name: str) -> None:
    async def body(anna: Agent, addresses: list[str]) -> None:
        data = random.Random(5).randbytes(1 << 20)
        for address in addresses:
            reader, writer = await plain(address)
            with contextlib.suppress(OSError):
                writer.write(data)
                await writer.drain()
            await over(reader, writer)
        await honest_joiner_gets_in(anna)

    assert serve(body, loop_name) == [
        f"refused a connection from 127.0.0.1: {GREETING}",
        f"refused 1 more connection from 127.0.0.1: {GREETING}",
    ]


@loops
def test_200_idle_connections_do_not_keep_a_joiner_out(loop_name: str) -> None:
    async def body(anna: Agent, addresses: list[str]) -> None:
        idle = [await plain(addresses[i % 2]) for i in range(200)]
        await honest_joiner_gets_in(anna)
        for _, writer in idle:
            writer.close()

    crowded, late = sorted(serve(body, loop_name), key=len, reverse=True)
    assert re.fullmatch(
        r"refused 1\d\d connections from 127.0.0.1: too many at once; an agent asks again", crowded
    )
    assert re.fullmatch(
        r"refused \d\d connections from 127.0.0.1: no whole TLS greeting within 5 s", late
    )


@loops
def test_the_number_of_unproven_connections_is_bounded(loop_name: str) -> None:
    async def body(anna: Agent, addresses: list[str]) -> None:
        idle = [await plain(addresses[i % 2]) for i in range(100)]
        ends = [asyncio.create_task(over(*pair)) for pair in idle]
        surplus = 100 - limits.MAX_UNPROVEN_CONNECTIONS
        await until(lambda: sum(task.done() for task in ends) >= surplus, "the surplus is cut")
        assert all(task.done() for task in ends[:surplus])
        for _, writer in idle:
            writer.close()
        await asyncio.gather(*ends)

    line, *_ = serve(body, loop_name)
    assert re.fullmatch(
        r"refused \d\d connections from 127.0.0.1: too many at once; an agent asks again", line
    )


@loops
def test_a_few_that_are_too_many_are_not_worth_a_line(loop_name: str) -> None:
    async def body(anna: Agent, addresses: list[str]) -> None:
        idle = [await plain(addresses[0]) for _ in range(limits.MAX_UNPROVEN_CONNECTIONS + 4)]
        ends = [asyncio.create_task(over(*pair)) for pair in idle[:4]]
        await asyncio.gather(*ends)
        assert anna.lines == []
        for _, writer in idle:
            writer.close()

    (late,) = serve(body, loop_name)
    assert "too many" not in late


@loops
def test_idle_and_half_open_connections_end_in_time(
    loop_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HANDSHAKE_SECONDS", 0.2)
    monkeypatch.setattr(limits, "JOIN_SECONDS", 0.3)

    async def body(anna: Agent, addresses: list[str]) -> None:
        for address in addresses:
            await over(*await plain(address))
            reader, writer = await plain(address)
            writer.write(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a TLS greeting
            await over(reader, writer)
        host, port = addresses[0].rsplit(":", 1)
        await over(
            *await asyncio.open_connection(
                host, int(port), ssl=tls.unauthenticated_client_context(), server_hostname=""
            )
        )

    lines = serve(body, loop_name)
    assert lines == ["refused a connection from 127.0.0.1: did not finish within 0 s"]


@loops
@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x00",
        b"\x00\x00\x20\x01" + bytes(9000),
        b"\x00\x00\x00\x05hello",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_nonsense_inside_tls_is_one_line(loop_name: str, data: bytes) -> None:
    async def body(anna: Agent, addresses: list[str]) -> None:
        host, port = addresses[0].rsplit(":", 1)
        for _ in range(3):
            reader, writer = await asyncio.open_connection(
                host, int(port), ssl=tls.unauthenticated_client_context(), server_hostname=""
            )
            writer.write(data)
            await over(reader, writer)

    lines = serve(body, loop_name)
    assert len(lines) == 2
    assert lines[0].startswith("refused a connection from 127.0.0.1: broke the join protocol: ")
    assert lines[1].startswith("refused 2 more connections from 127.0.0.1: broke the join")


async def dialled(address: str, context: ssl.SSLContext) -> None:
    """Dial the peer listener with `context` and wait until it hangs up."""
    host, port = address.rsplit(":", 1)
    with contextlib.suppress(OSError):
        await over(*await asyncio.open_connection(host, int(port), ssl=context, server_hostname=""))


@loops
def test_clients_nobody_let_in_are_refused_at_the_peer_port(loop_name: str) -> None:
    async def body(anna: Agent, addresses: list[str]) -> None:
        mallory = Trust(identity("mallory"))
        mallory.add(identity("anna").certificate)
        await dialled(addresses[1], mallory.client)
        await dialled(addresses[1], tls.unauthenticated_client_context())
        assert anna.ups == []

    reason = "its certificate is not one this cluster has let in"
    assert serve(body, loop_name) == [
        f"refused a connection from 127.0.0.1: {reason}",
        f"refused 1 more connection from 127.0.0.1: {reason}",
    ]


@loops
def test_a_trusted_client_that_talks_nonsense_is_one_line(loop_name: str) -> None:
    async def body(anna: Agent, addresses: list[str]) -> None:
        anna.transport.trust(identity("mallory").certificate)
        mallory = Trust(identity("mallory"))
        mallory.add(identity("anna").certificate)
        host, port = addresses[1].rsplit(":", 1)
        for data in (b"\xff\xff\xff\xff", b"\x00\x00\x00\x05hello", os.urandom(1 << 20)):
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(
                    host, int(port), ssl=mallory.client, server_hostname=""
                )
                writer.write(data)
                await over(reader, writer)
        assert anna.ups == []

    lines = serve(body, loop_name)
    assert lines[0].startswith("refused a connection from 127.0.0.1: broke the link protocol: ")
    assert len(lines) == 2


def test_complaints_are_counted_by_kind_and_reported_in_time() -> None:
    lines: list[str] = []

    async def main() -> None:
        complaints = Complaints(lines.append, interval=0.05)
        for number in range(5):
            complaints.refused("192.0.2.7", "a", f"reason {number}")
        complaints.refused("192.0.2.8", "b", "another")
        assert len(lines) == 2
        await until(lambda: len(lines) == 3, "the summary is written")
        complaints.refused("192.0.2.7", "a", "reason 5")
        complaints.refused("192.0.2.9", "a", "reason 6")
        assert len(lines) == 3
        complaints.close()
        complaints.close()

    run(main)
    assert lines == [
        "refused a connection from 192.0.2.7: reason 0",
        "refused a connection from 192.0.2.8: another",
        "refused 4 more connections from 192.0.2.7: reason 4",
        "refused 2 more connections from 2 addresses: reason 6",
    ]


def test_complaints_start_anew_after_a_quiet_time() -> None:
    lines: list[str] = []

    async def main() -> None:
        complaints = Complaints(lines.append, interval=0.01)
        complaints.refused("192.0.2.7", "a", "reason")
        await until(lambda: not complaints._windows, "the window is over")
        complaints.refused("192.0.2.7", "a", "reason")
        for number in range(100):
            complaints.refused(f"192.0.2.{number}", "a", "reason")
        complaints.close()

    run(main)
    assert lines[:2] == ["refused a connection from 192.0.2.7: reason"] * 2
    assert lines[2] == "refused 100 more connections from many addresses: reason"
