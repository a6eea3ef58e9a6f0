"""The messages of a join connection, inside TLS 1.3.

    joiner                                     server
    JoinerHello(versions, nonce, certificate)
                                               ServerHello(versions, chosen, nonce, job tag)
    JoinerProof(proof, job tag)
                                               ServerProof(proof, standing)
                                               ServerJob(job)      if both job tags differ
    Greeting(reachable)                                            if it only asked, or
    RecipeWanted                                                   if it wants to run the same,
                                               Recipe(recipe)      or
    Enter(incarnation, name, addresses,
        reachable, script)                                                 to be admitted
                                               Admitted
    At any point the server may send Refusal(reason, versions) instead and close. Before the other
    end's proof an end says nothing of itself but its certificate; job tags depend on both nonces,
    so that they tell a stranger nothing.

This module does no I/O. A frame is its length (4 bytes, big endian) and a tagged record
(`protocols/wire/packing.py`): `encode_tagged` and `decode_tagged` write and read all of them but
ServerJob, which is cut to what fits into a frame. Tags and reasons are append-only, so that other
versions understand them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar

from edgeagent.transport import bounds
from edgeagent.transport.api import Standing
from edgeagent.transport.job import MAX_STATEMENTS, SCRIPT_DIGEST_BYTES
from edgeagent.transport.kinds import (
    ADDRESSES,
    CERTIFICATE,
    NAME,
    PROTOCOL_VERSION,
    PROTOCOL_VERSIONS,
    Chosen,
    Peer,
)
from edgeagent.transport.proof import PROOF_BYTES
from edgeagent.transport.recipe_wire import RECIPE
from edgeagent.transport.token import TAG_BYTES
from protocols import limits
from protocols.cluster.ancestry import Past
from protocols.errors import RemoteProtocolError
from protocols.wire.fields import NUMBER, Blob, Many, Nested, Row, Text, UInt, wire
from protocols.wire.message import Message
from protocols.wire.packing import encode_tagged

if TYPE_CHECKING:
    from edgeagent.recipe import Recipe
    from edgeagent.transport.api import PeerInfo
    from edgeagent.transport.job import Job

VERSIONS: tuple[int, ...] = (1,)
PHASES = ("founding", "member")
LENGTH_BYTES = 4

_NONCE = Blob(bounds.NONCE_BYTES, bounds.NONCE_BYTES)
_PROOF = Blob(PROOF_BYTES, PROOF_BYTES)
_JOB_TAG = Blob(TAG_BYTES)
_SCRIPT = Blob(MAX_STATEMENTS * SCRIPT_DIGEST_BYTES)
_STANDING = tuple(field.name for field in fields(Standing))
_JOB_TEXT = Text(printable=False)  # it is cleaned before it is shown


class Reason(IntEnum):
    """Why a server refuses."""

    VERSION = 1
    TOKEN = 2  # the token or the cluster's name differs: the proof does not show which
    BUSY = 3
    NOT_READY = 4  # the server does not know its own job yet
    JOB = 5
    SAME_IDENTITY = 6
    PROTOCOL = 7
    EXPELLED = 8  # a user has removed this node for good


@dataclass(frozen=True, slots=True)
class JoinerHello(Message):
    """A joiner's first message."""

    TAG: ClassVar[int] = 1
    versions: tuple[int, ...] = wire(PROTOCOL_VERSIONS)
    nonce: bytes = wire(_NONCE)
    certificate: bytes = wire(CERTIFICATE)


@dataclass(frozen=True, slots=True)
class ServerHello(Message):
    """The server's first answer. `job_tag` is b"" while it does not know its job."""

    TAG: ClassVar[int] = 2
    versions: tuple[int, ...] = wire(PROTOCOL_VERSIONS)
    chosen: int = wire(PROTOCOL_VERSION)
    nonce: bytes = wire(_NONCE)
    job_tag: bytes = wire(_JOB_TAG)

    def __post_init__(self) -> None:
        _check_tag(self.job_tag)


@dataclass(frozen=True, slots=True)
class JoinerProof(Message):
    """The joiner's proof. `job_tag` is b"" when it only asks."""

    TAG: ClassVar[int] = 3
    proof: bytes = wire(_PROOF)
    job_tag: bytes = wire(_JOB_TAG)

    def __post_init__(self) -> None:
        _check_tag(self.job_tag)


@dataclass(frozen=True, slots=True)
class ServerProof(Message):
    """The server's proof, and its standing, which may be believed once the proof is checked. The
    fields after `proof` are those of `Standing`."""

    TAG: ClassVar[int] = 4
    proof: bytes = wire(_PROOF)
    me: PeerInfo = wire(Peer())
    phase: str = wire(Text())
    samples: int = wire(NUMBER)
    members: int = wire(UInt(limits.MAX_MEMBERS))
    lineage: bytes = wire(Blob(limits.LINEAGE_BYTES))
    scheduler: bytes = wire(Blob(limits.NODE_ID_BYTES))
    known: tuple[PeerInfo, ...] = wire(Many(Peer(), limits.MAX_MEMBERS))
    past: Past = wire(Nested(Past))
    script: bytes = wire(_SCRIPT)

    def __post_init__(self) -> None:
        if self.phase not in PHASES:
            raise ValueError("unknown phase")
        _check_script(self.script)

    @property
    def standing(self) -> Standing:
        """What the server says of itself and its cluster."""
        return Standing(**{name: getattr(self, name) for name in _STANDING})


@dataclass(frozen=True, slots=True)
class ServerJob(Message):
    """The server's job, or its first fields if not all fit into a frame."""

    TAG: ClassVar[int] = 5
    job: Job = wire(Many(Row(_JOB_TEXT, _JOB_TEXT), limits.MAX_JOB_FIELDS))


@dataclass(frozen=True, slots=True)
class Enter(Message):
    """The joiner wants in. It says who it is, except for its certificate, which its hello had;
    `reachable` is where its own join listener is, `script` the digests of its script's
    statements."""

    TAG: ClassVar[int] = 6
    incarnation: int = wire(NUMBER)
    name: str = wire(NAME)
    addresses: tuple[str, ...] = wire(ADDRESSES)
    reachable: tuple[str, ...] = wire(ADDRESSES)
    script: bytes = wire(_SCRIPT, b"")

    def __post_init__(self) -> None:
        _check_script(self.script)


@dataclass(frozen=True, slots=True)
class Admitted(Message):
    """From now on the joiner's certificate is trusted."""

    TAG: ClassVar[int] = 7


@dataclass(frozen=True, slots=True)
class Refusal(Message):
    """Why the server refuses. It may come from a stranger, so it is good only for telling the
    user."""

    TAG: ClassVar[int] = 8
    reason: Reason = wire(Chosen(Reason, other=Reason.PROTOCOL))
    versions: tuple[int, ...] = wire(PROTOCOL_VERSIONS)


@dataclass(frozen=True, slots=True)
class Greeting(Message):
    """The joiner only asked; its own join listener is at `reachable`."""

    TAG: ClassVar[int] = 9
    reachable: tuple[str, ...] = wire(ADDRESSES)


@dataclass(frozen=True, slots=True)
class RecipeWanted(Message):
    """The joiner wants to be told the recipe of the job."""

    TAG: ClassVar[int] = 10


@dataclass(frozen=True, slots=True)
class RecipeTold(Message):
    """The recipe of the server's job, None if it cannot be told."""

    TAG: ClassVar[int] = 11
    recipe: Recipe | None = wire(RECIPE)


def frame(body: bytes) -> bytes:
    """Return `body` with its length in front."""
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def frame_length(prefix: bytes, limit: int) -> int:
    """Return the length a frame's prefix announces, 1 to `limit`."""
    length = int.from_bytes(prefix, "big")
    if not 0 < length <= limit:
        raise RemoteProtocolError(f"frame of {length} bytes where at most {limit} are allowed")
    return length


def choose_version(ours: tuple[int, ...], theirs: tuple[int, ...]) -> int | None:
    """Return the highest version both speak, None if there is none."""
    common = [version for version in ours if version in theirs]
    return max(common, default=None)


def server_proof(proof: bytes, standing: Standing) -> ServerProof:
    """Return the message with the server's proof and standing."""
    return ServerProof(proof, **{name: getattr(standing, name) for name in _STANDING})


def encode_server_job(job: Job) -> bytes:
    """Return the body of a `ServerJob` with as many of the fields as fit into a frame."""
    said = ServerJob(job[: limits.MAX_JOB_FIELDS])
    while len(body := encode_tagged(said)) > limits.MAX_JOIN_FRAME_BYTES:
        said = replace(said, job=said.job[: len(said.job) // 2])
    return body


def _check_tag(tag: bytes) -> None:
    if len(tag) not in (0, TAG_BYTES):
        raise ValueError("job tag of the wrong size")


def _check_script(script: bytes) -> None:
    if len(script) % SCRIPT_DIGEST_BYTES:
        raise ValueError("script of the wrong size")
