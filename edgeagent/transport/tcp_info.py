"""What the system knows of how a TCP connection sends.

Law: only Linux says so much (TCP_INFO); elsewhere, and where the system refuses, the answer is that
nothing is known, and nobody takes that for trouble: silence still ends a link that is dead.
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import TYPE_CHECKING

from protocols.network.progress import Sending

if TYPE_CHECKING:
    import asyncio

_SIZE = 128  # struct tcp_info of linux/tcp.h, up to tcpi_bytes_acked
_RETRANSMITS = 2  # offset of a u8: time-outs in a row without an acknowledgement
_UNACKED = 24  # of a u32: segments that are on their way
_LAST_ACK = 56  # of a u32: milliseconds since an acknowledgement came
_BYTES_ACKED = 120  # of a u64
_RECENT_MS = 1000


def sending_of(transport: asyncio.BaseTransport) -> Sending | None:
    """Return how the connection of `transport` sends, None if that is not known."""
    sock = transport.get_extra_info("socket")
    if sock is None or sys.platform != "linux":
        return None
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
    except OSError:  # closed meanwhile
        return None
    return parse_tcp_info(info)


def parse_tcp_info(info: bytes) -> Sending | None:
    """Return what matters of a `struct tcp_info`, None if an old system cut it short."""
    if len(info) < _SIZE:
        return None
    (unacked,) = struct.unpack_from("=I", info, _UNACKED)
    (acknowledged,) = struct.unpack_from("=Q", info, _BYTES_ACKED)
    (heard_ms,) = struct.unpack_from("=I", info, _LAST_ACK)
    resends = unacked > 0 and info[_RETRANSMITS] > 0
    return Sending(acknowledged, resends, heard_ms < _RECENT_MS)
