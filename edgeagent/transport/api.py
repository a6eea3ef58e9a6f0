"""What the agent sees of a transport: links that carry control frames and bulk frames.

Law: no I/O here, only the shape that the real transport (TLS over TCP) and the in-memory one of the
tests both have. All calls and callbacks happen on the agent's event loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from protocols.cluster.ancestry import NOTHING

if TYPE_CHECKING:
    from protocols.cluster.ancestry import Past
    from protocols.network.link_end import LinkEnd
    from protocols.network.progress import Sending
    from protocols.wire.bulk import BulkHeader


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """Whom to dial: `node` is the SHA-256 of `certificate` (DER); `addresses` are HOST:PORT texts
    of the peer listener, best first."""

    node: bytes
    incarnation: int
    name: str
    addresses: tuple[str, ...]
    certificate: bytes


class Link(Protocol):
    """An open, mutually authenticated pair of connections to one neighbour."""

    @property
    def peer(self) -> PeerInfo:
        """Who is at the other end (proven by its key)."""

    @property
    def bulk_queued(self) -> int:
        """Payload bytes accepted by `send_bulk` and not yet handed to the kernel."""

    @property
    def bulk_bytes_sent(self) -> int:
        """Payload bytes handed to the kernel so far."""

    @property
    def bulk_bytes_received(self) -> int:
        """Payload bytes received so far."""

    @property
    def incoming_rate(self) -> float | None:
        """Payload bytes/s that large frames arrive with, None while that is not known."""

    @property
    def sending(self) -> tuple[Sending, ...]:
        """How the control and the bulk connection send; empty if that is not known."""

    def send_control(self, frame: bytes) -> None:
        """Queue one control frame (at most `limits.MAX_CONTROL_BYTES`); order is kept."""

    def send_bulk(self, header: BulkHeader, payload: memoryview) -> None:
        """Queue one bulk frame; order is kept. `payload` is not copied when queued: it must stay
        unchanged until it has left (its arrival is what lets the other side go on)."""

    def pause_bulk(self) -> None:
        """Stop reading bulk frames (backpressure); the frame being read may still complete."""

    def resume_bulk(self) -> None:
        """Read bulk frames again."""

    def discard_bulk(self) -> None:
        """The payload that is being received goes nowhere: its buffer is not written any more."""

    def cut(self, reason: str, why: LinkEnd) -> None:
        """End the link now, without a goodbye. Idempotent; the local listener gets `link_down`
        with the same arguments before this returns."""

    async def close(self, *, flush: bool) -> None:
        """Close both connections, after sending what is queued if `flush`. Idempotent. The local
        listener gets `link_down` once, the peer's too."""


class LinkListener(Protocol):
    """What the agent is told. A `RemoteProtocolError` raised by a callback closes that link with
    one clear line, and nothing else."""

    def link_up(self, link: Link) -> None:
        """Both connections of `link` are open and the peer proved its key."""

    def link_down(self, link: Link, reason: str, why: LinkEnd) -> None:
        """`link` is gone; `reason` is for people."""

    def control_received(self, link: Link, frame: bytes) -> None:
        """One whole control frame arrived."""

    def bulk_arriving(self, link: Link, header: BulkHeader) -> memoryview | None:
        """Say where the payload goes: a writable buffer of `header.length` bytes, or None to read
        and drop it."""

    def bulk_received(self, link: Link, header: BulkHeader) -> None:
        """The payload of `header` lies in the buffer `bulk_arriving` returned (not called for
        dropped ones)."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A joiner whose token proof was right; not yet a member, its key not yet proven. `script`: the
    digests of its script's statements, b"" if it runs none."""

    peer: PeerInfo
    script: bytes = b""


@dataclass(frozen=True, slots=True)
class Standing:
    """What an agent tells a proven joiner of itself and its cluster on the join connection.

    `phase`: "founding" (no cluster yet) or "member". `samples`, `members`, `lineage` order
    clusters that meet (protocol.md, 9.3). `scheduler`: node id; while founding, the smallest id
    known at first hand that may found, b"" if there is none. `past`: what a member's state has
    behind it. `script`: the digests of its script's statements, b"" if it runs none.
    """

    me: PeerInfo
    phase: str
    samples: int
    members: int
    lineage: bytes
    scheduler: bytes
    known: tuple[PeerInfo, ...]
    past: Past = NOTHING
    script: bytes = b""


class AdmissionPolicy(Protocol):
    """The agent's side of the join listener. No decision on tokens here: those are proven."""

    def job(self) -> tuple[tuple[str, str], ...] | None:
        """The job's (field, value) pairs, None while the trainer has not said them yet."""

    def script(self) -> bytes:
        """The digests of the statements of the script that we run, b"" if we run none."""

    def standing(self) -> Standing:
        """What to tell a proven joiner now."""

    def heard_of(self, addresses: tuple[str, ...]) -> None:
        """An agent that holds the token asked; its own join listener is at `addresses`."""

    def bars(self, node: bytes) -> bool:
        """Whether a user has expelled the node with this id."""

    def admitted(self, candidate: Candidate) -> None:
        """The token and the job of `candidate` are proven: trust its certificate on the peer
        listener from now on."""
