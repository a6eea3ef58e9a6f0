"""A download appears complete and checked, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.download import FAILURES, DataError, cache_directory, download
from tests.unit.models.origin import serving


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback is asked directly, whatever the machine's proxy."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def accept(path: Path) -> None:
    assert path.read_bytes() == b"content"


def test_a_file_is_checked_before_it_appears(tmp_path: Path) -> None:
    target, lines = tmp_path / "set" / "a.bin", list[str]()

    def check(path: Path) -> None:
        accept(path)
        assert not target.exists()

    with serving({"/a.bin": b"content"}) as origin:
        download(f"{origin.address}/a.bin", target, check, most_bytes=7, report=lines.append)
    assert target.read_bytes() == b"content"
    assert lines == ["set: downloading a.bin (0.0 MB)"]
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("problem", ["missing", "large", "short", "wrong", "not HTTP"])
def test_what_fails_leaves_nothing(problem: str, tmp_path: Path) -> None:
    def check(path: Path) -> None:
        if problem == "wrong":
            raise DataError("wrong")

    with serving({"/a.bin": b"content"}) as origin:
        origin.extra_length = 3 if problem == "short" else 0
        path = "/b.bin" if problem == "missing" else "/a.bin"
        address = "nothing" if problem == "not HTTP" else origin.address + path
        most = 6 if problem == "large" else 100
        with pytest.raises(FAILURES):
            download(address, tmp_path / "a.bin", check, most_bytes=most, report=lambda line: None)
    assert list(tmp_path.iterdir()) == []


def test_the_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_directory("x") == tmp_path / ".cache" / "edgeagent" / "x"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    assert cache_directory("x") == tmp_path / "own" / "edgeagent" / "x"
