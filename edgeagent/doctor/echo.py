"""ICMP echoes that must not be cut into fragments: whether large packets pass, both ways.

An answer is as large as the question, so one that comes back has passed both ways. Only some
systems let ordinary users send echoes; where they do not, nothing is known. IPv4 alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import sys

from edgeagent.doctor.facts import Echoes

SMALL_BYTES = 84  # a whole packet, as `ping` sends it
_HEADERS = 28  # IP and ICMP
_ANSWER_SECONDS = 1.0
_TRIES = 2
_IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE = 10, 3  # linux/in.h: do not cut, whatever is known of a path
_ECHO, _ECHO_REPLY = 8, 0


async def try_echoes(host: str, large: int) -> Echoes:
    """Send echoes of `SMALL_BYTES` and of `large` bytes (whole packets) to an IPv4 address."""
    sock = _open()
    if sock is None:
        return Echoes()
    with sock:
        small = await _comes_back(sock, host, SMALL_BYTES)
        if not small:
            return Echoes(small=False, small_size=SMALL_BYTES)
        passes = await _comes_back(sock, host, large)
    return Echoes(small, passes, SMALL_BYTES, large)


def _open() -> socket.socket | None:
    if sys.platform != "linux":
        return None
    for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
        with contextlib.suppress(OSError):
            sock = socket.socket(socket.AF_INET, kind, socket.IPPROTO_ICMP)
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE)
            return sock
    return None


async def _comes_back(sock: socket.socket, host: str, size: int) -> bool:
    loop = asyncio.get_running_loop()
    for _ in range(_TRIES):
        mark = os.urandom(8)
        payload = mark + bytes(size - _HEADERS - len(mark))
        with contextlib.suppress(OSError, TimeoutError):
            await loop.sock_sendto(sock, _echo(payload), (host, 0))
            async with asyncio.timeout(_ANSWER_SECONDS):
                while True:
                    packet = await loop.sock_recv(sock, 1 << 16)
                    if _is_answer(packet, payload, raw=sock.type == socket.SOCK_RAW):
                        return True
    return False


def _echo(payload: bytes) -> bytes:
    head = struct.pack("!BBHHH", _ECHO, 0, 0, os.getpid() & 0xFFFF, 1)
    return struct.pack("!BBHHH", _ECHO, 0, _sum(head + payload), os.getpid() & 0xFFFF, 1) + payload


def _sum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071)."""
    data += b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _is_answer(packet: bytes, payload: bytes, *, raw: bool) -> bool:
    if raw:  # the IP header comes with it
        packet = packet[(packet[0] & 15) * 4 :] if packet else b""
    return packet[:1] == bytes([_ECHO_REPLY]) and packet[8:] == payload
