"""What the system knows of how a TCP connection sends.

Only Linux tells this (TCP_INFO). Elsewhere, and where the system refuses, the answer is that
nothing is known. That is harmless, because a link on which nothing is heard is ended all the same.
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import TYPE_CHECKING, NamedTuple

from protocols.network.progress import Sending

if TYPE_CHECKING:
    import asyncio

_SIZE = 128  # bytes of struct tcp_info (linux/tcp.h) up to tcpi_bytes_acked
_SIZE_WITH_UNSENT = 148  # up to tcpi_notsent_bytes
_RETRANSMITS = 2  # offset of a u8: time-outs in a row without an acknowledgement
_UNACKED = 24  # offset of a u32: segments sent and not acknowledged yet
_LAST_ACK = 56  # offset of a u32: milliseconds since the last acknowledgement
_ROUND_TRIP = 68  # offset of a u32: the smoothed round trip time in microseconds
_BYTES_ACKED = 120  # offset of a u64: bytes acknowledged so far
_UNSENT = 144  # offset of a u32: bytes that the system holds and has not sent yet
_RECENT_MS = 1000  # an acknowledgement within this time shows that the peer is reachable


class Delivered(NamedTuple):
    """How many bytes of a connection the other end has acknowledged, how many the system holds and
    has not sent yet, and how long one takes there and back at present, waiting in queues
    included."""

    acknowledged_bytes: int
    unsent_bytes: int
    round_trip_s: float


def sending_of(transport: asyncio.BaseTransport) -> Sending | None:
    """Return how the connection of `transport` sends, None if that is not known."""
    return parse_tcp_info(_tcp_info(transport, _SIZE))


def unsent_of(transport: asyncio.BaseTransport) -> int:
    """Return how many bytes of the connection the system holds and has not sent yet, 0 if that is
    not known."""
    info = _tcp_info(transport, _SIZE_WITH_UNSENT)
    if len(info) < _SIZE_WITH_UNSENT:
        return 0
    (unsent,) = struct.unpack_from("=I", info, _UNSENT)
    return int(unsent)


def delivered_of(transport: asyncio.BaseTransport) -> Delivered | None:
    """Return what of the connection has arrived at the other end, None if that is not known."""
    info = _tcp_info(transport, _SIZE_WITH_UNSENT)
    if len(info) < _SIZE_WITH_UNSENT:
        return None
    (unsent,) = struct.unpack_from("=I", info, _UNSENT)
    (acknowledged,) = struct.unpack_from("=Q", info, _BYTES_ACKED)
    (round_trip_us,) = struct.unpack_from("=I", info, _ROUND_TRIP)
    return Delivered(acknowledged, unsent, round_trip_us / 1e6)


def _tcp_info(transport: asyncio.BaseTransport, size: int) -> bytes:
    """Return up to `size` bytes of the connection's `struct tcp_info`, b"" if it is not known."""
    sock = transport.get_extra_info("socket")
    if sock is None or sys.platform != "linux":
        return b""
    try:
        return bytes(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size))
    except OSError:  # the socket was closed meanwhile
        return b""


def parse_tcp_info(info: bytes) -> Sending | None:
    """Return what the protocols need of a `struct tcp_info`, None if an old system's is shorter."""
    if len(info) < _SIZE:
        return None
    (unacked,) = struct.unpack_from("=I", info, _UNACKED)
    (acknowledged,) = struct.unpack_from("=Q", info, _BYTES_ACKED)
    (heard_ms,) = struct.unpack_from("=I", info, _LAST_ACK)
    resends = unacked > 0 and info[_RETRANSMITS] > 0
    return Sending(acknowledged, resends, heard_ms < _RECENT_MS)
