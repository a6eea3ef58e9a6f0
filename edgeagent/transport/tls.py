"""TLS contexts, and which certificates the peer listener trusts.

Only TLS 1.3 is used, without session tickets, because a ticket would still be valid after an
expulsion. Between peers both ends show a certificate that is itself the trust anchor, and on every
connection its SHA-256 is looked up in the set of trusted ids. Host names and dates decide nothing.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from edgeagent.transport.certificate import check_certificate, node_id
from protocols import limits
from protocols.errors import RemoteProtocolError

if TYPE_CHECKING:
    import asyncio

    from edgeagent.transport.identity import Identity


def unauthenticated_client_context() -> ssl.SSLContext:
    """Return the joiner's context. It accepts any certificate, as the proof covers its hash."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def join_server_context(identity: Identity) -> ssl.SSLContext:
    """Return the join listener's context, which shows our certificate and asks for none."""
    return _own_context(identity, ssl.PROTOCOL_TLS_SERVER, ssl.CERT_NONE)


def peer_certificate(transport: asyncio.BaseTransport) -> bytes:
    """Return the certificate the other end of `transport` showed (DER), b"" if none."""
    tls = transport.get_extra_info("ssl_object")
    certificate: bytes | None = tls.getpeercert(binary_form=True) if tls else None
    return certificate or b""


class Trust:
    """The set of trusted nodes, and the mutual-TLS contexts that accept exactly these."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._certificates: dict[bytes, bytes] = {}
        self._rebuild()

    @property
    def server(self) -> ssl.SSLContext:
        """The peer listener's present context; read it again for every connection."""
        return self._server

    @property
    def client(self) -> ssl.SSLContext:
        """The dialling end's present context; read it again for every connection."""
        return self._client

    def add(self, certificate: bytes) -> bytes:
        """Trust the node that holds `certificate` (DER) and return its id.

        Beyond `limits.MAX_TRUSTED_NODES` the node whose trust was last renewed longest ago is
        forgotten. Raises `RemoteProtocolError` if it is no node's certificate (for example an
        authority's).
        """
        node = node_id(certificate)
        if node not in self._certificates:
            check_certificate(certificate)
            try:
                self._server.load_verify_locations(cadata=certificate)
                self._client.load_verify_locations(cadata=certificate)
            except ssl.SSLError:
                self._rebuild()
                raise RemoteProtocolError("certificate that TLS cannot use") from None
            self._certificates[node] = certificate
            if len(self._certificates) > limits.MAX_TRUSTED_NODES:
                self.remove(next(iter(self._certificates)))
        else:
            self._certificates[node] = self._certificates.pop(node)  # moved to the newest place
        return node

    def remove(self, node: bytes) -> None:
        """Trust `node` no longer: new connections with it fail. Unknown ids are ignored."""
        if self._certificates.pop(node, None) is not None:
            self._rebuild()

    def certificate(self, node: bytes) -> bytes | None:
        """Return the certificate of a trusted node, None if it is not trusted."""
        return self._certificates.get(node)

    def trusted_node(self, transport: asyncio.BaseTransport) -> bytes | None:
        """Return the node at the other end of `transport`, None if it is not trusted."""
        node = node_id(peer_certificate(transport))
        return node if node in self._certificates else None

    def _rebuild(self) -> None:
        # A context can learn trust anchors but never forget one, so a removal makes new contexts.
        self._server = _own_context(self._identity, ssl.PROTOCOL_TLS_SERVER, ssl.CERT_REQUIRED)
        self._client = _own_context(self._identity, ssl.PROTOCOL_TLS_CLIENT, ssl.CERT_REQUIRED)
        for certificate in self._certificates.values():
            self._server.load_verify_locations(cadata=certificate)
            self._client.load_verify_locations(cadata=certificate)


def _own_context(
    identity: Identity, protocol: ssl._SSLMethod, verify: ssl.VerifyMode
) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if protocol is ssl.PROTOCOL_TLS_CLIENT:
        context.check_hostname = False
    else:
        context.num_tickets = 0
    context.verify_mode = verify
    context.load_cert_chain(identity.path)
    return context
