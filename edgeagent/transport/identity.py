"""This node's key and certificate, kept in a file of its own.

Whoever has the file is the node to all others, so only its owner can read it. It holds PEM texts,
first the key and then the certificate, and is replaced as a whole or not at all.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import ssl
from dataclasses import dataclass

from edgeagent.errors import UsageError
from edgeagent.own_files import check_own
from edgeagent.transport.certificate import check_certificate, make_certificate, node_id
from protocols.errors import RemoteProtocolError

FILE_NAME = "identity.pem"
_BEGIN = "-----BEGIN CERTIFICATE-----"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this node is: `node` is the SHA-256 of `certificate` (DER), and `path` is the file with
    key and certificate (PEM) for `ssl.SSLContext.load_cert_chain`."""

    node: bytes
    certificate: bytes
    path: str


def load_identity(folder: str) -> Identity:
    """Return the identity kept in `folder`, making one at the first call.

    Raises `UsageError` if the file is there and damaged or another user's, or cannot be written.
    """
    path = os.path.join(folder, FILE_NAME)
    check_own(path)
    try:
        with open(path, encoding="ascii") as file:
            text = file.read()
        os.chmod(path, 0o600)
    except FileNotFoundError:
        return renew_identity(folder)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read this node's key {path}: {error}") from None
    try:
        certificate = ssl.PEM_cert_to_DER_cert(text[text.index(_BEGIN) :])
        check_certificate(certificate)
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path)
    except (ValueError, OSError, RemoteProtocolError):
        raise UsageError(
            f"this node's key {path} is damaged: delete it to start with a new one"
        ) from None
    return Identity(node_id(certificate), certificate, path)


def renew_identity(folder: str, *, filler: int = 0) -> Identity:
    """Make a new key in `folder`, replacing the old one, and return the new identity.

    This is done at a first start, and when a node meets a copy of itself (a cloned disk). `filler`
    makes the certificate so many bytes longer. Raises `UsageError` if the file cannot be written.
    """
    path = os.path.join(folder, FILE_NAME)
    pem, certificate = make_certificate(filler=filler)
    write_private(path, pem)
    return Identity(node_id(certificate), certificate, path)


def write_private(path: str, data: bytes) -> None:
    """Write `data` to `path` with mode 0600, as a whole or not at all; raise `UsageError` if it
    cannot be written."""
    part = f"{path}.{secrets.token_hex(4)}"
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
