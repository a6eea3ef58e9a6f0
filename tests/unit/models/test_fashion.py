"""Fashion-MNIST is found in the documented order, checked, and downloaded whole or not at all."""

from __future__ import annotations

import gzip
import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from models import fashion
from models.download import DataError
from models.fashion import FashionMnist
from tests.unit.models.origin import Origin, serving

NAMES = list(fashion.CONTENT_SHA256)
COUNTS = {"train": 5, "t10k": 3}


def content_of(name: str) -> bytes:
    """A tiny stand-in for the file `name`."""
    count = COUNTS[name.split("-")[0]]
    if "labels" in name:
        return bytes([0, 0, 8, 1]) + struct.pack(">I", count) + bytes(range(count))
    pixels = bytes(i % 256 for i in range(count * 28 * 28))
    return bytes([0, 0, 8, 3]) + struct.pack(">III", count, 28, 28) + pixels


@pytest.fixture
def origin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Origin]:
    """Stands in for the official address."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving({f"/{name}.gz": gzip.compress(content_of(name)) for name in NAMES}) as made:
        monkeypatch.setattr(fashion, "ADDRESS", made.address)
        yield made


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Tiny files' sums, an empty cache, no Debian package."""
    sums = {name: hashlib.sha256(content_of(name)).hexdigest() for name in NAMES}
    monkeypatch.setattr(fashion, "CONTENT_SHA256", sums)
    monkeypatch.setattr(fashion, "DEBIAN_DIRECTORY", tmp_path / "debian")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    return fashion.cache_directory()


def fill(directory: Path, *, packed: bool = True) -> None:
    """Puts the four files into a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        if packed:
            (directory / f"{name}.gz").write_bytes(gzip.compress(content_of(name)))
        else:
            (directory / name).write_bytes(content_of(name))


@pytest.mark.parametrize("packed", [True, False])
def test_items(packed: bool, tmp_path: Path) -> None:
    fill(tmp_path / "mine", packed=packed)
    train = FashionMnist(True, tmp_path / "mine")
    test = FashionMnist(False, str(tmp_path / "mine"))
    assert (len(train), len(test)) == (5, 3)
    image, label = train[4]
    assert image.shape == (1, 28, 28)
    assert image.dtype == torch.float32
    assert label == 4
    assert image[0, 0, 1].item() == pytest.approx(((4 * 784 + 1) % 256) / 255)
    with pytest.raises(IndexError):
        train[5]


def test_a_named_directory_is_the_only_place_looked_at(tmp_path: Path) -> None:
    fill(tmp_path / "debian")
    fill(tmp_path / "mine")
    (tmp_path / "mine" / f"{NAMES[2]}.gz").unlink()
    with pytest.raises(DataError, match="does not hold"):
        fashion.locate(tmp_path / "mine")


def test_debian_comes_before_the_cache(tmp_path: Path, cache: Path) -> None:
    fill(cache)
    assert fashion.locate()[NAMES[0]].parent == cache
    fill(tmp_path / "debian")
    assert fashion.locate()[NAMES[0]].parent == tmp_path / "debian"


def test_cache_directory_defaults_to_the_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        expected = tmp_path / ".cache" / "edgeagent" / "fashion-mnist"
        assert fashion.cache_directory() == expected


def test_download_fills_the_cache_once(
    origin: Origin, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(FashionMnist(True)) == 5
    assert sorted(path.name for path in cache.iterdir()) == sorted(f"{n}.gz" for n in NAMES)
    assert f"downloading {NAMES[0]}.gz" in capsys.readouterr().err
    assert len(origin.requests) == 4
    assert len(FashionMnist(False)) == 3
    assert len(origin.requests) == 4


def test_download_goes_on_where_it_stopped(origin: Origin, cache: Path) -> None:
    last = origin.files.pop(f"/{NAMES[3]}.gz")
    with pytest.raises(DataError, match="404"):
        fashion.locate(report=lambda line: None)
    origin.files[f"/{NAMES[3]}.gz"] = last
    origin.requests.clear()
    fashion.locate(report=lambda line: None)
    assert origin.requests == [f"/{NAMES[3]}.gz"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            gzip.compress(b"something else", mtime=0),
            "is not Fashion-MNIST's train-images-idx3-ubyte",
        ),
        (b"<html>captive portal</html>", "is not Fashion-MNIST's"),
        (gzip.compress(content_of(NAMES[0]), mtime=0)[:-9], "not valid gzip"),
    ],
)
def test_wrong_download_is_refused_and_leaves_nothing(
    body: bytes, message: str, origin: Origin, cache: Path
) -> None:
    origin.files[f"/{NAMES[0]}.gz"] = body
    with pytest.raises(DataError, match=message) as caught:
        fashion.locate(report=lambda line: None)
    assert "apt-get install dataset-fashion-mnist" in str(caught.value)
    assert "--data DIR" in str(caught.value)
    assert list(cache.iterdir()) == []


def test_short_download_is_refused(origin: Origin, cache: Path) -> None:
    origin.extra_length = 10
    with pytest.raises(DataError, match="could not be downloaded"):
        fashion.locate(report=lambda line: None)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("limit", ["MAX_DOWNLOAD_BYTES", "MAX_CONTENT_BYTES"])
def test_oversized_download_is_refused(
    limit: str, origin: Origin, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fashion, limit, 100)
    with pytest.raises(DataError, match="more than 100 bytes"):
        fashion.locate(report=lambda line: None)
    assert list(cache.iterdir()) == []
    assert origin.requests == [f"/{NAMES[0]}.gz"]


def test_nobody_at_the_address(monkeypatch: pytest.MonkeyPatch, origin: Origin) -> None:
    monkeypatch.setattr(fashion, "ADDRESS", "http://127.0.0.1:1")
    with pytest.raises(DataError, match="apt-get install dataset-fashion-mnist"):
        fashion.locate()
    assert origin.requests == []


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (NAMES[0], b"\0" * 100, "not an IDX magic number"),
        (NAMES[0], bytes([0, 0, 9, 1, 0, 0, 0, 0]), "holds int8, not bytes"),
        (NAMES[0], bytes([0, 0, 8, 1, 0, 0, 0, 5]) + bytes(5), "do not go with"),
        (NAMES[1], bytes([0, 0, 8, 1, 0, 0, 0, 4]) + bytes(4), "do not go with"),
        (NAMES[1], bytes([0, 0, 8, 2, 0, 0, 0, 5, 0, 0, 0, 1]) + bytes(5), "do not go with"),
        (NAMES[1], bytes([0, 0, 8, 1, 0, 0, 0, 5]) + bytes([9, 8, 10, 0, 1]), "label 10"),
    ],
)
def test_contents_that_make_no_data_set(
    name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    fill(tmp_path, packed=False)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match="is not Fashion-MNIST's"):
        FashionMnist(True, tmp_path)
    fashion.CONTENT_SHA256[name] = hashlib.sha256(content).hexdigest()
    with pytest.raises(DataError, match=message):
        FashionMnist(True, tmp_path)
