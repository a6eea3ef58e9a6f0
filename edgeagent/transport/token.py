"""The cluster's token and the keys derived from it.

The token itself never leaves the process and is never part of an error message. Every use derives a
key of its own (HKDF-SHA256, RFC 5869), so that nothing sent for one use helps with another.

A token is 128 random bits and a 32-bit checksum, written in base32 in groups of four letters:
`ea1-k5xq-...` (8 groups). Case, blanks and dashes do not matter when it is read.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from edgeagent.errors import UsageError
from edgeagent.transport.job import job_fingerprint, length_prefixed

TOKEN_BYTES = 16
PREFIX = "ea1"
KEY_BYTES = 32
TAG_BYTES = 32
DISCOVERY_TAG_BYTES = 8

_CHECKSUM_BYTES = 4
_LETTERS = 32  # base32 of token and checksum
_LOOKALIKES = str.maketrans({"0": "O", "1": "I", "8": "B"})  # digits that base32 does not use


def new_token() -> str:
    """Return a fresh token as text, from the system's random source."""
    return token_text(secrets.token_bytes(TOKEN_BYTES))


def token_text(token: bytes) -> str:
    """Return the text form of a token of `TOKEN_BYTES` bytes."""
    if len(token) != TOKEN_BYTES:
        raise ValueError("a token has 16 bytes")
    letters = base64.b32encode(token + _checksum(token)).decode().lower()
    groups = [letters[i : i + 4] for i in range(0, _LETTERS, 4)]
    return "-".join([PREFIX, *groups])


def parse_token(text: str) -> bytes:
    """Return the `TOKEN_BYTES` bytes of a token; raise `UsageError` saying what is wrong."""
    squeezed = re.sub(r"[\s\-]", "", text).upper()
    if not squeezed:
        raise UsageError("the token is empty: make one with `edgeagent token new`")
    if not squeezed.startswith(PREFIX.upper()):
        raise UsageError(
            f"this is no token: tokens start with {PREFIX}- and come from `edgeagent token new`"
        )
    letters = squeezed[len(PREFIX) :].translate(_LOOKALIKES)
    if len(letters) != _LETTERS:
        raise UsageError(
            f"the token has {len(letters)} letters after {PREFIX}- and should have {_LETTERS}: "
            "copy it again"
        )
    if not re.fullmatch(r"[A-Z2-7]+", letters):
        raise UsageError("the token has a character that no token contains: copy it again")
    data = base64.b32decode(letters)
    token, checksum = data[:TOKEN_BYTES], data[TOKEN_BYTES:]
    if not hmac.compare_digest(checksum, _checksum(token)):
        raise UsageError("the token has a typo (its checksum is wrong): copy it again")
    return token


def derive_key(token: bytes, info: str) -> bytes:
    """Return the `KEY_BYTES`-byte key for the use that `info` names."""
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=info.encode()).derive(token)


def discovery_tag(token: bytes, cluster: str) -> str:
    """Return the text (hex) by which agents of one cluster recognise each other on the network.

    A stranger learns neither the token nor the cluster's name from it.
    """
    key = derive_key(token, "edgeagent/1 discovery")
    return hmac.new(key, cluster.encode(), hashlib.sha256).digest()[:DISCOVERY_TAG_BYTES].hex()


def job_tag(
    token: bytes, job: tuple[tuple[str, str], ...] | None, joiner_nonce: bytes, server_nonce: bytes
) -> bytes:
    """Return the opaque tag of a job on one join connection, b"" for None. Equal jobs have equal
    tags.

    Because of the nonces a stranger cannot tell which agents train the same job, or did before.
    """
    if job is None:
        return b""
    key = derive_key(token, "edgeagent/1 job")
    message = length_prefixed(job_fingerprint(job), joiner_nonce, server_nonce)
    return hmac.new(key, message, hashlib.sha256).digest()


def _checksum(token: bytes) -> bytes:
    return hashlib.sha256(b"edgeagent token" + token).digest()[:_CHECKSUM_BYTES]
