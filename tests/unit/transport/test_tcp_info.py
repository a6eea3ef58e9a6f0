"""What the system says about how a connection sends, and connections with short segments."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys

import pytest

from edgeagent.transport.dialler import connect_short
from edgeagent.transport.tcp_info import outflow_of, parse_tcp_info, sending_of
from protocols.network.progress import Sending

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says so much")


class Transport:
    """Has a socket, or none."""

    def __init__(self, sock: socket.socket | None) -> None:
        self.sock = sock

    def get_extra_info(self, name: str) -> socket.socket | None:
        return self.sock if name == "socket" else None


def info(retransmits: int, unacked: int, acked: int, heard_ms: int = 5000) -> bytes:
    data = bytearray(160)
    struct.pack_into("=I", data, 56, heard_ms)
    data[2] = retransmits
    struct.pack_into("=I", data, 24, unacked)
    struct.pack_into("=Q", data, 120, acked)
    return bytes(data)


def test_what_is_sent_again() -> None:
    assert parse_tcp_info(info(0, 3, 77)) == Sending(77, False)
    assert parse_tcp_info(info(2, 3, 77)) == Sending(77, True)
    assert parse_tcp_info(info(2, 3, 77, 20)) == Sending(77, True, hears=True)
    assert parse_tcp_info(info(2, 0, 77)) == Sending(77, False)  # probes of a closed window
    assert parse_tcp_info(info(2, 3, 77)[:104]) is None


@linux
def test_bytes_that_arrive_are_counted() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        with socket.create_connection(listening.getsockname()) as near:
            far, _ = listening.accept()
            with far:
                near.sendall(bytes(5000))
                assert len(far.recv(5000, socket.MSG_WAITALL)) == 5000
                said = sending_of(Transport(near))  # type: ignore[arg-type]
                assert said is not None
                assert said.acknowledged >= 5000
                assert not said.resends
        assert sending_of(Transport(near)) is None  # type: ignore[arg-type]


def test_nothing_is_known_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sending_of(Transport(None)) is None  # type: ignore[arg-type]
    monkeypatch.setattr(sys, "platform", "darwin")
    with socket.socket() as sock:
        assert sending_of(Transport(sock)) is None  # type: ignore[arg-type]


@linux
def test_a_short_connection_has_short_segments_both_ways() -> None:
    async def main() -> list[int]:
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            near = await connect_short("127.0.0.1", listening.getsockname()[1], 536)
            far, _ = listening.accept()
            with near, far:
                return [s.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) for s in (near, far)]

    assert all(size <= 536 for size in asyncio.run(main()))


def test_nobody_answers_a_short_connection() -> None:
    async def main() -> None:
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            with pytest.raises(ConnectionRefusedError):
                await connect_short("127.0.0.1", bound.getsockname()[1], 536)

    asyncio.run(main())


@linux
def test_what_was_acknowledged_and_what_is_not_sent_yet_is_told() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        with socket.create_connection(listening.getsockname()) as near:
            far, _ = listening.accept()
            with far:
                near.setblocking(False)
                nothing = outflow_of(Transport(near))  # type: ignore[arg-type]
                assert nothing is not None
                sent = 0
                with contextlib.suppress(BlockingIOError):
                    while True:
                        sent += near.send(bytes(1 << 20))
                found = outflow_of(Transport(near))  # type: ignore[arg-type]
                assert found is not None
                acknowledged, unsent = (a - b for a, b in zip(found, nothing, strict=True))
                assert 0 < unsent < sent
                assert 0 < acknowledged <= sent - unsent
        assert outflow_of(Transport(near)) is None  # type: ignore[arg-type]
