"""What the reducer needs of the links to its neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from protocols.wire.bulk import BulkHeader


class Wire(Protocol):
    """The operations on links that the reducer uses."""

    def send_bulk(self, to: bytes, header: BulkHeader, payload: memoryview) -> None:
        """Queue a frame for neighbour `to`; it is dropped if there is no such link."""

    def hold_bulk(self, peer: bytes, hold: bool) -> None:
        """Stop (`hold`) or resume reading bulk frames from `peer`."""

    def discard_bulk(self, peer: bytes) -> None:
        """Stop writing into the buffer that was given for the payload `peer` is sending."""

    def accuse(self, peer: bytes, reason: str) -> None:
        """End the link to `peer`, because what it sent cannot be part of the round."""
