"""The messages of a join connection, inside TLS 1.3.

    joiner                                     server
    JoinerHello(versions, nonce, certificate)
                                               ServerHello(versions, chosen, nonce, job tag)
    JoinerProof(proof, job tag)
                                               ServerProof(proof, standing)
                                               ServerJob(fields)   if both job tags differ
    Greeting(reachable)                                            if it only asked, or
    RecipeWanted                                                   if it wants to run the same,
                                               Recipe(recipe)      or
    Enter(incarnation, name, addresses,
        reachable, script)                                                 to be admitted
                                               Admitted
    At any point the server may send Refusal(reason, versions) instead and close. Before the other
    end's proof an end says nothing of itself but its certificate; job tags depend on both nonces,
    so that they tell a stranger nothing.

This module does no I/O. A frame is its length (4 bytes, big endian) and a msgpack array whose first
value is its kind. `decode_*` raises `RemoteProtocolError` and nothing else. Kinds and reasons are
append-only, so that other versions understand them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from edgeagent.transport import bounds, fields
from edgeagent.transport.api import Standing
from edgeagent.transport.job import MAX_STATEMENTS, SCRIPT_DIGEST_BYTES
from edgeagent.transport.proof import PROOF_BYTES
from edgeagent.transport.recipe_wire import from_values, values_of
from edgeagent.transport.token import TAG_BYTES
from protocols import limits
from protocols.cluster.ancestry import Ancestor, Past
from protocols.errors import RemoteProtocolError

if TYPE_CHECKING:
    from edgeagent.recipe import Recipe
    from edgeagent.transport.job import Job

VERSIONS: tuple[int, ...] = (1,)
PHASES = ("founding", "member")
LENGTH_BYTES = 4

_HELLO_ITEMS = 32
_LATER_ITEMS = limits.MAX_JOB_FIELDS


class Kind(IntEnum):
    """What a frame on a join connection is."""

    JOINER_HELLO = 1
    SERVER_HELLO = 2
    JOINER_PROOF = 3
    SERVER_PROOF = 4
    SERVER_JOB = 5
    ENTER = 6
    ADMITTED = 7
    REFUSAL = 8
    GREETING = 9
    RECIPE_WANTED = 10
    RECIPE = 11


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
class JoinerHello:
    """A joiner's first message."""

    versions: tuple[int, ...]
    nonce: bytes
    certificate: bytes


@dataclass(frozen=True, slots=True)
class ServerHello:
    """The server's first answer. `job_tag` is b"" while it does not know its job."""

    versions: tuple[int, ...]
    chosen: int
    nonce: bytes
    job_tag: bytes


class JoinerProof(NamedTuple):
    """The joiner's proof. `job_tag` is b"" when it only asks."""

    proof: bytes
    job_tag: bytes


@dataclass(frozen=True, slots=True)
class Farewell:
    """A joiner's last message: where its own join listener is, and who it is if it wants in; or
    that it wants to be told the recipe of the job."""

    reachable: tuple[str, ...]
    enters: Entrant | None = None
    wants_recipe: bool = False


class Entrant(NamedTuple):
    """The joiner's `PeerInfo` without the certificate, which its hello had, and the digests of the
    statements of its `script`."""

    incarnation: int
    name: str
    addresses: tuple[str, ...]
    script: bytes = b""


class ServerProof(NamedTuple):
    """The server's proof, and its standing, which may be believed once the proof is checked."""

    proof: bytes
    standing: Standing


class Refusal(NamedTuple):
    """Why the server refuses. It may come from a stranger, so it is good only for telling the
    user."""

    reason: Reason
    versions: tuple[int, ...]


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


def encode_joiner_hello(hello: JoinerHello) -> bytes:
    """Return the body of a `JoinerHello`."""
    return fields.pack(Kind.JOINER_HELLO, list(hello.versions), hello.nonce, hello.certificate)


def decode_joiner_hello(body: bytes) -> JoinerHello:
    """Read a `JoinerHello`."""
    values = fields.unpack(body, _HELLO_ITEMS)
    versions, nonce, certificate = fields.shape(values, Kind.JOINER_HELLO, 3)
    return JoinerHello(
        _versions(versions),
        _nonce(nonce),
        fields.blob(certificate, "certificate", 1, limits.MAX_CERTIFICATE_BYTES),
    )


def encode_server_hello(hello: ServerHello) -> bytes:
    """Return the body of a `ServerHello`."""
    return fields.pack(
        Kind.SERVER_HELLO, list(hello.versions), hello.chosen, hello.nonce, hello.job_tag
    )


def decode_server_hello(body: bytes) -> ServerHello | Refusal:
    """Read a `ServerHello`."""
    values = fields.unpack(body, _HELLO_ITEMS)
    if values[0] == Kind.REFUSAL:
        return _refusal(values)
    versions, chosen, nonce, tag = fields.shape(values, Kind.SERVER_HELLO, 4)
    number = fields.integer(chosen, "version", 1, bounds.MAX_VERSION)
    return ServerHello(_versions(versions), number, _nonce(nonce), _tag(tag))


def encode_joiner_proof(said: JoinerProof) -> bytes:
    """Return the body of a `JoinerProof`."""
    return fields.pack(Kind.JOINER_PROOF, said.proof, said.job_tag)


def decode_joiner_proof(body: bytes) -> JoinerProof:
    """Read a `JoinerProof`."""
    proof, tag = fields.shape(fields.unpack(body, _HELLO_ITEMS), Kind.JOINER_PROOF, 2)
    return JoinerProof(fields.blob(proof, "proof", PROOF_BYTES, PROOF_BYTES), _tag(tag))


def encode_server_proof(proof: bytes, standing: Standing) -> bytes:
    """Return the body of a `ServerProof`."""
    return fields.pack(
        Kind.SERVER_PROOF,
        proof,
        fields.peer_values(standing.me),
        standing.phase,
        standing.samples,
        standing.members,
        standing.lineage,
        standing.scheduler,
        [fields.peer_values(peer) for peer in standing.known],
        _past_values(standing.past),
        standing.script,
    )


def decode_server_proof(body: bytes) -> ServerProof | Refusal:
    """Read a `ServerProof`."""
    values = fields.unpack(body, _LATER_ITEMS)
    if values[0] == Kind.REFUSAL:
        return _refusal(values)
    proof, me, phase, samples, members, lineage, scheduler, known, past, script = fields.shape(
        values, Kind.SERVER_PROOF, 10
    )
    if phase not in PHASES:
        raise RemoteProtocolError("unknown phase")
    standing = Standing(
        me=fields.peer_info(me),
        phase=phase,
        samples=fields.integer(samples, "samples", 0, limits.MAX_INTEGER),
        members=fields.integer(members, "members", 0, limits.MAX_MEMBERS),
        lineage=fields.blob(lineage, "lineage", 0, limits.LINEAGE_BYTES),
        scheduler=fields.blob(scheduler, "scheduler", 0, limits.NODE_ID_BYTES),
        known=tuple(
            fields.peer_info(peer) for peer in fields.array(known, "known", 0, limits.MAX_MEMBERS)
        ),
        past=_past(past),
        script=_script(script),
    )
    return ServerProof(fields.blob(proof, "proof", PROOF_BYTES, PROOF_BYTES), standing)


def encode_server_job(job: Job) -> bytes:
    """Return the body of a `ServerJob` with as many of the fields as fit into a frame."""
    kept = list(job[: limits.MAX_JOB_FIELDS])
    body = fields.pack(Kind.SERVER_JOB, kept)
    while len(body) > limits.MAX_JOIN_FRAME_BYTES:
        kept = kept[: len(kept) // 2]
        body = fields.pack(Kind.SERVER_JOB, kept)
    return body


def decode_server_job(body: bytes) -> Job:
    """Read the server's job fields."""
    (found,) = fields.shape(fields.unpack(body, _LATER_ITEMS), Kind.SERVER_JOB, 1)
    pairs = []
    for item in fields.array(found, "job", 0, limits.MAX_JOB_FIELDS):
        field, value = fields.array(item, "job field", 2, 2)
        pairs.append(
            (
                fields.text(field, "job field", limits.MAX_TEXT_BYTES),
                fields.text(value, "job value", limits.MAX_TEXT_BYTES),
            )
        )
    return tuple(pairs)


def encode_farewell(said: Farewell) -> bytes:
    """Return the body of Enter (admit me), of a Greeting, or of RecipeWanted."""
    reachable = list(said.reachable)
    if said.wants_recipe:
        return fields.pack(Kind.RECIPE_WANTED)
    if said.enters is None:
        return fields.pack(Kind.GREETING, reachable)
    number, name, addresses, script = said.enters
    return fields.pack(Kind.ENTER, number, name, list(addresses), reachable, script)


def decode_farewell(body: bytes) -> Farewell:
    """Read an Enter, a Greeting or a RecipeWanted."""
    values = fields.unpack(body, _HELLO_ITEMS)
    if values[0] == Kind.RECIPE_WANTED:
        fields.shape(values, Kind.RECIPE_WANTED, 0)
        return Farewell((), wants_recipe=True)
    if values[0] == Kind.GREETING:
        (reachable,) = fields.shape(values, Kind.GREETING, 1)
        return Farewell(fields.addresses(reachable))
    number, name, addresses, reachable, script = fields.shape(values, Kind.ENTER, 5)
    entrant = Entrant(
        fields.incarnation(number), fields.name(name), fields.addresses(addresses), _script(script)
    )
    return Farewell(fields.addresses(reachable), entrant)


def encode_recipe(recipe: Recipe | None) -> bytes:
    """Return the body of a `Recipe`, of an empty one if there is none."""
    return fields.pack(Kind.RECIPE, values_of(recipe))


def decode_recipe(body: bytes) -> Recipe | None:
    """Read a `Recipe`."""
    (found,) = fields.shape(fields.unpack(body, _LATER_ITEMS), Kind.RECIPE, 1)
    return from_values(found)


def encode_admitted() -> bytes:
    """Return the body of Admitted, after which the joiner's certificate is trusted."""
    return fields.pack(Kind.ADMITTED)


def decode_admitted(body: bytes) -> Refusal | None:
    """Return None if this is Admitted, or the refusal that came instead."""
    values = fields.unpack(body, _HELLO_ITEMS)
    if values[0] == Kind.REFUSAL:
        return _refusal(values)
    fields.shape(values, Kind.ADMITTED, 0)
    return None


def encode_refusal(refusal: Refusal) -> bytes:
    """Return the body of a `Refusal`."""
    return fields.pack(Kind.REFUSAL, refusal.reason, list(refusal.versions))


def _refusal(values: list[object]) -> Refusal:
    number, versions = fields.shape(values, Kind.REFUSAL, 2)
    reason = fields.integer(number, "reason", 1, 255)
    known = Reason(reason) if reason in list(Reason) else Reason.PROTOCOL
    return Refusal(known, _versions(versions))


def _past_values(past: Past) -> list[object]:
    before = [[a.lineage, a.iteration] for a in past.ancestors]
    return [past.iteration, past.lineage, before]


def _past(value: object) -> Past:
    iteration, lineage, before = fields.array(value, "past", 3, 3)
    ancestors = []
    for item in fields.array(before, "ancestors", 0, limits.MAX_ANCESTORS):
        name, count = fields.array(item, "ancestor", 2, 2)
        size = limits.LINEAGE_BYTES
        ancestors.append(Ancestor(fields.blob(name, "ancestor", size, size), _count(count)))
    return Past(
        _count(iteration),
        fields.blob(lineage, "lineage", 0, limits.LINEAGE_BYTES),
        tuple(ancestors),
    )


def _count(value: object) -> int:
    return fields.integer(value, "iteration", 0, limits.MAX_INTEGER)


def _versions(value: object) -> tuple[int, ...]:
    found = fields.array(value, "versions", 1, bounds.MAX_VERSIONS)
    return tuple(fields.integer(item, "version", 1, bounds.MAX_VERSION) for item in found)


def _nonce(value: object) -> bytes:
    return fields.blob(value, "nonce", bounds.NONCE_BYTES, bounds.NONCE_BYTES)


def _script(value: object) -> bytes:
    found = fields.blob(value, "script", 0, MAX_STATEMENTS * SCRIPT_DIGEST_BYTES)
    if len(found) % SCRIPT_DIGEST_BYTES:
        raise RemoteProtocolError("script of the wrong size")
    return found


def _tag(value: object) -> bytes:
    found = fields.blob(value, "job tag", 0, TAG_BYTES)
    if len(found) not in (0, TAG_BYTES):
        raise RemoteProtocolError("job tag of the wrong size")
    return found
