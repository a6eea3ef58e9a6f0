"""Frames over the TLS stream of a join connection, for both of its ends.

At most one frame is held in memory, and never one that is longer than the caller allows.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeagent.transport import join_wire

if TYPE_CHECKING:
    import asyncio


@dataclass(frozen=True, slots=True)
class JoinSecret:
    """The secret of a cluster, and its name. `token` has `token.TOKEN_BYTES` bytes."""

    token: bytes
    cluster: str

    def __repr__(self) -> str:
        return f"JoinSecret(cluster={self.cluster!r})"


class JoinStream:
    """One end of a join connection after its TLS handshake."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self, limit: int) -> bytes:
        """Return the next frame's body; raise `RemoteProtocolError`, `EOFError` or `OSError`."""
        prefix = await self._reader.readexactly(join_wire.LENGTH_BYTES)
        return await self._reader.readexactly(join_wire.frame_length(prefix, limit))

    async def write(self, body: bytes) -> None:
        """Send one frame; raise `OSError` if the connection is gone."""
        self._writer.write(join_wire.frame(body))
        await self._writer.drain()

    @property
    def peer_certificate(self) -> bytes:
        """The certificate the other end showed in this TLS handshake (DER), b"" if none."""
        tls = self._writer.get_extra_info("ssl_object")
        certificate: bytes | None = tls.getpeercert(binary_form=True)
        return certificate or b""

    def abort(self) -> None:
        """Close at once."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """Close after everything written has been sent; this takes at most TLS_CLOSE_SECONDS."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
