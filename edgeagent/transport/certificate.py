"""Node certificates: how one is made, and what is accepted from others.

A node's certificate is self-signed, for an EC P-256 key, and marked as not belonging to a
certificate authority, so that trusting it means trusting exactly one key. Anything else from a peer
raises `RemoteProtocolError`. The validity dates exclude nothing, because devices without a
battery-backed clock start in 1970.
"""

from __future__ import annotations

import datetime
import hashlib
import secrets

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from protocols import limits
from protocols.errors import RemoteProtocolError

_FIRST_DAY = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_FILLER = x509.ObjectIdentifier("2.25.1")  # of nobody; whoever does not know it ignores it
_LAST_DAY = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)


def node_id(certificate: bytes) -> bytes:
    """Return the id of the node that holds `certificate` (DER): its SHA-256."""
    return hashlib.sha256(certificate).digest()


def make_certificate(*, authority: bool = False, filler: int = 0) -> tuple[bytes, bytes]:
    """Return a new (PEM text of key and certificate, certificate as DER).

    `authority` makes a certificate that `check_certificate` refuses; tests need one. `filler` is by
    how many bytes of no meaning it is to be longer.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, secrets.token_hex(8))])
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_FIRST_DAY)
        .not_valid_after(_LAST_DAY)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(usage, critical=True)
    )
    if filler:
        nothing = x509.UnrecognizedExtension(_FILLER, bytes(filler))
        builder = builder.add_extension(nothing, critical=False)
    certificate = builder.sign(key, hashes.SHA256())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    pem = private + certificate.public_bytes(serialization.Encoding.PEM)
    return pem, certificate.public_bytes(serialization.Encoding.DER)


def check_certificate(certificate: bytes) -> None:
    """Raise `RemoteProtocolError` unless `certificate` (DER) is one a node may have."""
    if len(certificate) > limits.MAX_CERTIFICATE_BYTES:
        raise RemoteProtocolError("certificate over the size limit")
    try:
        parsed = x509.load_der_x509_certificate(certificate)
        if parsed.public_bytes(serialization.Encoding.DER) != certificate:
            raise RemoteProtocolError("certificate followed by other bytes")
        key = parsed.public_key()
        constraints = parsed.extensions.get_extension_for_class(x509.BasicConstraints).value
        usage = parsed.extensions.get_extension_for_class(x509.KeyUsage).value
        parsed.verify_directly_issued_by(parsed)
    except RemoteProtocolError:
        raise
    except Exception as error:  # a parser of hostile bytes may raise anything
        raise RemoteProtocolError(f"unusable certificate ({type(error).__name__})") from None
    if constraints.ca or usage.key_cert_sign:
        raise RemoteProtocolError("certificate of an authority instead of a node's own")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise RemoteProtocolError("certificate for a key that is not EC P-256")
