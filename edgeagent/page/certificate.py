"""The certificate that browsers of other devices see.

It is not the one of the node: that is for links between agents, has no address in it, and never
ends, which browsers do not like. It is kept, so that a browser that was told to trust it need not
be told again. It is made anew if the device has another address, or if it would end soon.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from edgeagent.transport.identity import write_private

FILE_NAME = "page.pem"
_DAY = datetime.timedelta(days=1)
_VALID = 397 * _DAY  # the most that browsers accept of a certificate with an end
_LEFT = 30 * _DAY  # with less left it is made anew


@dataclass(frozen=True, slots=True)
class PageCertificate:
    """`path`: the file with key and certificate (PEM); `fingerprint`: the SHA-256 of the
    certificate (DER), as browsers show it."""

    path: str
    fingerprint: str


def page_certificate(folder: str, host: str) -> PageCertificate:
    """Return the certificate for the address `host`, which is kept in `folder`.

    Raises `UsageError` if it cannot be written.
    """
    path = os.path.join(folder, FILE_NAME)
    now = datetime.datetime.now(datetime.UTC)
    certificate = _kept(path)
    if certificate is None or not _serves(certificate, host, now):
        certificate, pem = _made(host, now)
        write_private(path, pem)
    digest = certificate.fingerprint(hashes.SHA256())
    return PageCertificate(path, digest.hex(":").upper())


def _kept(path: str) -> x509.Certificate | None:
    """Return the certificate in the file, None if there is none that can be read."""
    try:
        with open(path, "rb") as file:
            pem = file.read()
        serialization.load_pem_private_key(pem, None)
        return x509.load_pem_x509_certificate(pem)
    except (OSError, ValueError, TypeError):
        return None


def _serves(certificate: x509.Certificate, host: str, now: datetime.datetime) -> bool:
    """Whether a certificate is for `host`, and valid for some time."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if ipaddress.ip_address(host) not in names.get_values_for_type(x509.IPAddress):
        return False
    return certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc - _LEFT


def _made(host: str, now: datetime.datetime) -> tuple[x509.Certificate, bytes]:
    """Return a new certificate, and the text of its key and itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "edgeagent page")])
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now - _DAY + _VALID)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return certificate, private + certificate.public_bytes(serialization.Encoding.PEM)
