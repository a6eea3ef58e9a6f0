"""TCP connections to a host that may have several addresses.

A name can stand for addresses of which some do not answer, for example one of IPv6 in a network
that does not carry IPv6. They are tried side by side, each a little later than the one before (RFC
8305, "happy eyeballs"), so that such an address costs a moment and not the whole time-out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import TYPE_CHECKING

from aiohappyeyeballs import start_connection

from edgeagent.errors import UsageError
from edgeagent.transport import bounds
from edgeagent.transport.interfaces import keep_to_interface

if TYPE_CHECKING:
    from aiohappyeyeballs import AddrInfoType


async def connect(
    host: str, port: int, *, segment: int | None = None, interface: str = ""
) -> socket.socket:
    """Return a TCP connection to `host`, not blocking.

    With `segment`, its segments have at most so many bytes of payload, both ways. With `interface`,
    it goes through that one. Raises OSError if no address of `host` answers, or if the system
    cannot keep a connection to an interface.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    if not found:
        raise OSError(f"{host} has no address")

    def make(address: AddrInfoType) -> socket.socket:
        sock = socket.socket(address[0], address[1], address[2])
        try:
            if segment is not None:
                shorten_segments(sock, segment)
            if interface:
                keep_to_interface(sock, interface)
        except UsageError as error:  # the race among addresses knows OSError alone
            sock.close()
            raise OSError(str(error)) from None
        return sock

    try:
        return await start_connection(
            found, happy_eyeballs_delay=bounds.DIAL_STAGGER_SECONDS, socket_factory=make
        )
    except OSError as error:
        if error.errno is None:
            raise
        # The text of asyncio's own error repeats the address, and says nothing about the cause.
        raise OSError(error.errno, os.strerror(error.errno)) from None
    except RuntimeError as error:  # of uvloop, instead of an OSError
        raise OSError(str(error)) from None


def shorten_segments(sock: socket.socket, segment: int) -> None:
    """Have connections that `sock` opens or accepts use segments of at most `segment` bytes."""
    with contextlib.suppress(OSError):  # the system has no such option, or the socket is closed
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, segment)
