"""Kept tokens: one for each cluster, readable by their user only, and renewed only where they are
known."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeagent.errors import UsageError
from edgeagent.local.token_store import (
    keep_token,
    renew_token,
    stored_clusters,
    stored_token,
    token_path,
)
from edgeagent.transport.token import new_token

OLD, NEW = new_token(), new_token()


def test_each_cluster_has_a_token_of_its_own(tmp_path: Path) -> None:
    root = str(tmp_path / "state")
    assert stored_token(root, "lab") is None
    assert stored_clusters(root) == ()
    path = Path(keep_token(root, "lab", OLD))
    keep_token(root, "../lab", NEW)
    assert (stored_token(root, "lab"), stored_token(root, "../lab")) == (OLD, NEW)
    assert stored_clusters(root) == ("../lab", "lab")
    assert path == Path(token_path(root, "lab"))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert tmp_path in path.parents


def test_a_file_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    path = Path(keep_token(str(tmp_path), "lab", OLD))
    path.chmod(0o644)
    assert stored_token(str(tmp_path), "lab") == OLD
    assert path.stat().st_mode & 0o777 == 0o600


def test_only_the_token_that_was_replaced_is_renewed(tmp_path: Path) -> None:
    root = str(tmp_path)
    renew_token(root, "lab", OLD, NEW)
    assert stored_token(root, "lab") is None, "who has it from elsewhere keeps it there"
    keep_token(root, "lab", OLD)
    renew_token(root, "lab", OLD, NEW)
    assert stored_token(root, "lab") == NEW
    renew_token(root, "lab", OLD, OLD)
    assert stored_token(root, "lab") == NEW


@pytest.mark.parametrize("content", [b"", b"ea1-nonsense", b"\xff" * 20, b"x" * 5000])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = Path(keep_token(str(tmp_path), "lab", OLD))
    path.write_bytes(content)
    with pytest.raises(UsageError, match="is damaged: delete that file"):
        stored_token(str(tmp_path), "lab")
    renew_token(str(tmp_path), "lab", OLD, NEW)
    assert path.read_bytes() == content


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot use the state directory"):
        keep_token(str(tmp_path / "file"), "lab", OLD)
