"""Keys and certificates: made once, kept private, and nothing but a node's own accepted."""

from __future__ import annotations

import os
import ssl
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.errors import UsageError
from edgeagent.transport.certificate import check_certificate, make_certificate, node_id
from edgeagent.transport.identity import load_identity, renew_identity
from edgeagent.transport.tls import Trust
from protocols.errors import RemoteProtocolError

from .helpers import identity


def test_a_key_is_made_once_and_kept_private(tmp_path: Path) -> None:
    first = load_identity(str(tmp_path))
    assert stat.S_IMODE(os.stat(first.path).st_mode) == 0o600
    assert load_identity(str(tmp_path)) == first
    assert first.node == node_id(first.certificate)
    assert os.listdir(tmp_path) == ["identity.pem"]
    check_certificate(first.certificate)


def test_a_new_key_replaces_the_old_one(tmp_path: Path) -> None:
    first = load_identity(str(tmp_path))
    second = renew_identity(str(tmp_path))
    assert second.node != first.node
    assert load_identity(str(tmp_path)) == second


@pytest.mark.parametrize("damage", [b"", b"nonsense", b"\xff\xfe"])
def test_a_damaged_key_is_a_clear_error(tmp_path: Path, damage: bytes) -> None:
    path = load_identity(str(tmp_path)).path
    Path(path).write_bytes(damage)
    with pytest.raises(UsageError, match=r"identity\.pem"):
        load_identity(str(tmp_path))


def test_a_key_that_belongs_to_another_certificate_is_damaged(tmp_path: Path) -> None:
    path = load_identity(str(tmp_path)).path
    other, _ = make_certificate()
    key = Path(path).read_bytes().split(b"-----BEGIN CERTIFICATE")[0]
    Path(path).write_bytes(key + b"-----BEGIN CERTIFICATE" + other.split(b"BEGIN CERTIFICATE")[1])
    with pytest.raises(UsageError, match="damaged"):
        load_identity(str(tmp_path))


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write"):
        load_identity(str(tmp_path / "missing"))


def test_certificates_of_authorities_are_refused() -> None:
    _, certificate = make_certificate(authority=True)
    with pytest.raises(RemoteProtocolError, match="authority"):
        check_certificate(certificate)
    with pytest.raises(RemoteProtocolError, match="authority"):
        Trust(identity("anna")).add(certificate)


def test_a_certificate_with_a_second_one_behind_it_is_refused() -> None:
    first, second = make_certificate()[1], make_certificate(authority=True)[1]
    with pytest.raises(RemoteProtocolError):
        check_certificate(first + second)


@given(st.binary(max_size=3000))
def test_random_bytes_are_no_certificate(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        check_certificate(data)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_changed_certificate_is_refused_or_unchanged(place: int, value: int) -> None:
    certificate = bytearray(identity("anna").certificate)
    place %= len(certificate)
    same = certificate[place] == value
    certificate[place] = value
    if same:
        check_certificate(bytes(certificate))
        return
    with pytest.raises(RemoteProtocolError):
        check_certificate(bytes(certificate))


def test_removed_trust_leaves_no_anchor_behind() -> None:
    trust = Trust(identity("anna"))
    node = trust.add(identity("ben").certificate)
    assert trust.add(identity("ben").certificate) == node
    assert trust.certificate(node) == identity("ben").certificate
    assert len(trust.server.get_ca_certs() + trust.client.get_ca_certs()) == 0  # leaves, no CAs
    assert trust.server.cert_store_stats()["x509"] == 1
    before = trust.server
    trust.remove(node)
    trust.remove(node)
    assert trust.server is not before
    assert trust.server.cert_store_stats()["x509"] == 0
    assert trust.client.cert_store_stats()["x509"] == 0
    assert trust.certificate(node) is None
    assert trust.server.minimum_version is ssl.TLSVersion.TLSv1_3
