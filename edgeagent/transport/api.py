"""What the agent sees of a transport: links that carry control frames and bulk frames.

There is no I/O in this module, only the interface that the real transport (TLS over TCP) and the
in-memory one of the tests share. All calls and callbacks happen on the agent's event loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from protocols.cluster.ancestry import NOTHING

if TYPE_CHECKING:
    from edgeagent.recipe import Recipe
    from protocols.cluster.ancestry import Past
    from protocols.network.link_end import LinkEnd
    from protocols.network.progress import Sending
    from protocols.wire.bulk import BulkHeader


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """Whom to dial: `node` is the SHA-256 of `certificate` (DER), and `addresses` are HOST:PORT
    texts of its peer listener, best first."""

    node: bytes
    incarnation: int
    name: str
    addresses: tuple[str, ...]
    certificate: bytes


class Link(Protocol):
    """An open, mutually authenticated pair of connections to one neighbour."""

    @property
    def peer(self) -> PeerInfo:
        """Who is at the other end, as its key has proven."""

    @property
    def bulk_queued(self) -> int:
        """Payload bytes accepted by `send_bulk` and not yet passed to the kernel."""

    @property
    def bulk_waiting(self) -> int:
        """`bulk_queued`, and what the kernel has not sent yet, as far as the system tells that."""

    @property
    def bulk_bytes_sent(self) -> int:
        """Payload bytes passed to the kernel so far."""

    @property
    def bulk_bytes_received(self) -> int:
        """Payload bytes received so far."""

    @property
    def incoming_rate(self) -> float | None:
        """The payload bytes/s at which large frames arrive; None while that is not known."""

    @property
    def rate_is_alone(self) -> bool:
        """Whether `incoming_rate` was measured while no other link was busy, at either end."""

    def fell(self, rate: float) -> None:
        """The link carries no more than `rate` bytes/s at present, so `incoming_rate` is no more
        than that until more arrives."""

    @property
    def sending(self) -> tuple[Sending, ...]:
        """How the control and the bulk connection send, for noticing that nothing arrives any more;
        empty if that is not known."""

    def send_control(self, frame: bytes) -> None:
        """Queue one control frame (at most `limits.MAX_CONTROL_BYTES`); order is kept."""

    def send_bulk(self, header: BulkHeader, payload: memoryview) -> None:
        """Queue one bulk frame; order is kept.

        `payload` is not copied, so it must stay unchanged until it has been sent. The protocols
        ensure that: memory is reused only after the peer's answer to what was sent.
        """

    def pause_bulk(self) -> None:
        """Stop reading bulk frames (backpressure); the frame being read may still complete."""

    def resume_bulk(self) -> None:
        """Read bulk frames again."""

    def discard_bulk(self) -> None:
        """Stop writing into the buffer of the payload that is being received; drop the rest of
        it."""

    def drop_sums(self) -> None:
        """Drop the queued partial sums (`BulkKind.UP`), so that their memory may be used again; one
        of which a part was sent is completed from a copy."""

    def cut(self, reason: str, why: LinkEnd) -> None:
        """End the link now, without a goodbye. Idempotent.

        The local listener gets `link_down` with the same arguments before this returns.
        """

    async def close(self, *, flush: bool) -> None:
        """Close all connections, after sending what is queued if `flush`. Idempotent.

        The local listener gets `link_down` once, and so does the peer's.
        """


class LinkListener(Protocol):
    """What the agent is told. A `RemoteProtocolError` raised by a callback closes that link, with
    one line for the user, and does nothing else."""

    def link_up(self, link: Link) -> None:
        """Both connections of `link` are open and the peer has proven its key."""

    def link_down(self, link: Link, reason: str, why: LinkEnd) -> None:
        """`link` has ended; `reason` is for people, `why` for the protocols."""

    def control_received(self, link: Link, frame: bytes) -> None:
        """One whole control frame arrived."""

    def bulk_arriving(self, link: Link, header: BulkHeader) -> memoryview | None:
        """Return the buffer for the payload, writable and of `header.length` bytes, or None to have
        the payload read and dropped."""

    def bulk_received(self, link: Link, header: BulkHeader) -> None:
        """The payload of `header` lies in the buffer that `bulk_arriving` returned. This is not
        called for dropped payloads."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A joiner that has proven the token. It is no member yet, and has not proven its key yet.

    `script` has the digests of its script's statements, b"" if it runs no script.
    """

    peer: PeerInfo
    script: bytes = b""


@dataclass(frozen=True, slots=True)
class Standing:
    """What an agent tells a proven joiner of itself and its cluster on the join connection.

    `phase` is "founding" (there is no cluster yet) or "member". `samples`, `members` and `lineage`
    decide which of two clusters that meet is ahead (protocol.md, 9.3). `scheduler` is a node id;
    while founding, it is the smallest id known at first hand that may found, b"" if there is none.
    `past` is the history of a member's state. `script` has the digests of its script's statements,
    b"" if it runs no script.
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
    """The agent's side of the join listener. It decides nothing about tokens: the listener has
    checked the proof before it asks."""

    @property
    def recipe(self) -> Recipe | None:
        """What another device needs to run the same job; None if that cannot be told."""

    def job(self) -> tuple[tuple[str, str], ...] | None:
        """The job's (field, value) pairs; None while the trainer has not told them yet."""

    def script(self) -> bytes:
        """The digests of the statements of this device's script, b"" if it runs none."""

    def standing(self) -> Standing:
        """What to tell a proven joiner now."""

    def heard_of(self, addresses: tuple[str, ...]) -> None:
        """An agent that holds the token has asked; its own join listener is at `addresses`."""

    def bars(self, node: bytes) -> bool:
        """Whether a user has expelled the node with this id."""

    def admitted(self, candidate: Candidate) -> None:
        """The token and the job of `candidate` are proven: from now on trust its certificate on the
        peer listener."""
