"""The proof that both ends of a join connection hold the cluster's token.

This module does no I/O. The proof covers everything that both ends have said and the certificate of
this TLS handshake, each field with its length. The proofs of the two roles differ, so that neither
end can send back the other's, and both nonces make each proof valid for one connection only.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from enum import Enum

from edgeagent.transport.job import length_prefixed
from edgeagent.transport.token import derive_key

PROOF_BYTES = 32


class Role(Enum):
    """The two ends of a join connection."""

    JOINER = b"joiner"
    SERVER = b"server"


@dataclass(frozen=True, slots=True)
class Transcript:
    """What both ends of one join connection have said, as the proofs cover it.

    Certificates are given as the SHA-256 of their DER form; the server's is the one seen in this
    TLS handshake. Job tags are b"" if a side does not name a job.
    """

    cluster: str
    joiner_versions: tuple[int, ...]
    server_versions: tuple[int, ...]
    version: int
    joiner_job: bytes
    server_job: bytes
    server_certificate: bytes
    joiner_certificate: bytes
    joiner_nonce: bytes
    server_nonce: bytes


def make_proof(token: bytes, role: Role, transcript: Transcript) -> bytes:
    """Return the `PROOF_BYTES`-byte proof of `role` for this transcript."""
    message = length_prefixed(
        role.value,
        transcript.cluster.encode(),
        _versions(transcript.joiner_versions),
        _versions(transcript.server_versions),
        _versions((transcript.version,)),
        transcript.joiner_job,
        transcript.server_job,
        transcript.server_certificate,
        transcript.joiner_certificate,
        transcript.joiner_nonce,
        transcript.server_nonce,
    )
    return hmac.new(derive_key(token, "edgeagent/1 join"), message, hashlib.sha256).digest()


def proof_is_right(token: bytes, role: Role, transcript: Transcript, proof: bytes) -> bool:
    """Return whether `proof` is the right one for `role`; the comparison takes constant time."""
    return hmac.compare_digest(make_proof(token, role, transcript), proof)


def _versions(versions: tuple[int, ...]) -> bytes:
    return b"".join(version.to_bytes(4, "big") for version in versions)
