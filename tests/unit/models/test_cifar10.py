"""CIFAR-10 is read from its files or its archive, checked, and refused in one line if wrong."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from models import cifar10
from models.cifar10 import TEST_FILES, TRAIN_FILES, Cifar10
from models.download import DataError, cache_directory
from tests.unit.models.origin import serving

RECORDS = 20  # in each file of the tests, instead of 10,000
NAMES = (*TRAIN_FILES, *TEST_FILES)


def content_of(name: str) -> bytes:
    """A file of RECORDS records: two pictures of each class, in fixed colours."""
    generator = np.random.default_rng(NAMES.index(name))
    records = generator.integers(0, 256, (RECORDS, 3073), dtype=np.uint8)
    records[:, 0] = np.arange(RECORDS) % 10
    return records.tobytes()


def fill(folder: Path) -> Path:
    """Put the six files into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        (folder / name).write_bytes(content_of(name))
    return folder


def packed(names: tuple[str, ...] = NAMES) -> bytes:
    """The archive, with a file more that nobody needs."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name in (*names, "readme.html"):
            content = content_of(name) if name in NAMES else b"read me"
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture(autouse=True)
def archive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> bytes:
    """Small files, their archive's sum, an empty cache and nobody to download from."""
    monkeypatch.setattr(cifar10, "RECORDS", RECORDS)
    monkeypatch.setattr(cifar10, "ADDRESS", "http://127.0.0.1:1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    content = packed()
    know(monkeypatch, content)
    return content


def know(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """Let this archive be the published one."""
    monkeypatch.setattr(cifar10, "ARCHIVE_MD5", hashlib.md5(content).hexdigest())


def test_items(tmp_path: Path) -> None:
    train, test = (Cifar10(part, fill(tmp_path / "mine")) for part in (True, False))
    assert (len(train), len(test)) == (100, 20)
    image, label = train[47]
    assert (image.shape, image.dtype, label) == ((3, 32, 32), torch.float32, 7)
    record = content_of("data_batch_3.bin")[7 * 3073 : 8 * 3073]
    assert record[0] == 7
    assert train.images[47, 1, 2, 5] == record[1 + 1024 + 2 * 32 + 5]
    green = (record[1 + 1024 + 2 * 32 + 5] / 255 - 0.4822) / 0.2435
    assert image[1, 2, 5].item() == pytest.approx(green, rel=1e-5)
    with pytest.raises(IndexError):
        train[100]


def test_folder_subfolder_and_archive_are_the_same_data(tmp_path: Path, archive: bytes) -> None:
    plain = Cifar10(True, fill(tmp_path / "plain"))
    fill(tmp_path / "unpacked" / "cifar-10-batches-bin")
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / cifar10.ARCHIVE).write_bytes(archive)
    for place in ("unpacked", "packed"):
        other = Cifar10(True, tmp_path / place)
        assert torch.equal(other.images, plain.images)
        assert torch.equal(other.labels, plain.labels)
        assert other.data_digest == plain.data_digest
    assert Cifar10(False, tmp_path / "packed").data_digest != plain.data_digest


def test_data_digest_sees_every_byte(tmp_path: Path) -> None:
    folder = fill(tmp_path)
    before = Cifar10(True, folder).data_digest
    content = bytearray(content_of(TRAIN_FILES[2]))
    content[-1] ^= 1
    (folder / TRAIN_FILES[2]).write_bytes(content)
    assert Cifar10(True, folder).data_digest != before


def test_augmentation_moves_and_mirrors(tmp_path: Path) -> None:
    folder = fill(tmp_path)
    plain, moved = Cifar10(True, folder)[0][0], Cifar10(True, folder, augment=True)
    torch.manual_seed(0)
    seen = [moved[0][0] for _ in range(200)]
    padded = torch.nn.functional.pad(plain, (4, 4, 4, 4))
    cuts = [padded[:, y : y + 32, x : x + 32] for y in range(9) for x in range(9)]
    allowed = [*cuts, *(cut.flip(2) for cut in cuts)]
    found = {next(k for k, cut in enumerate(allowed) if torch.equal(cut, image)) for image in seen}
    assert len(found) > 80
    assert {k // 81 for k in found} == {0, 1}
    torch.manual_seed(5)
    again = moved[0][0]
    torch.manual_seed(5)
    assert torch.equal(moved[0][0], again)


def test_download_fills_the_cache_once(monkeypatch: pytest.MonkeyPatch, archive: bytes) -> None:
    with serving({"/a.tar.gz": archive}) as origin:
        monkeypatch.setattr(cifar10, "ADDRESS", f"{origin.address}/a.tar.gz")
        lines: list[str] = []
        assert len(Cifar10(True, report=lines.append)) == 100
        assert len(Cifar10(False)) == 20
    assert origin.requests == ["/a.tar.gz"]
    assert lines == [f"cifar-10: downloading cifar-10-binary.tar.gz ({len(archive) / 1e6:.1f} MB)"]


@pytest.mark.parametrize("body", [b"<html>captive portal</html>", None])
def test_a_wrong_download_is_refused_and_leaves_nothing(
    body: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving({"/a": body} if body else {}) as origin:
        monkeypatch.setattr(cifar10, "ADDRESS", f"{origin.address}/a")
        with pytest.raises(DataError, match=r"could not be downloaded.*--data DIR"):
            Cifar10(report=lambda line: None)
    assert list(cache_directory("cifar-10").iterdir()) == []


def test_a_folder_without_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds neither data_batch_1"):
        Cifar10(data=tmp_path)
    (fill(tmp_path) / TEST_FILES[0]).unlink()
    with pytest.raises(DataError, match="holds neither"):
        Cifar10(data=tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (content_of(TRAIN_FILES[1])[:-5], "data_batch_2.bin has 61455 bytes, not 61460"),
        (content_of(TRAIN_FILES[1]) + b"x", "data_batch_2.bin has 61461 bytes"),
        (b"\x0a" + content_of(TRAIN_FILES[1])[1:], "label 10 is not below 10"),
        (b"\x01" + content_of(TRAIN_FILES[1])[1:], "9 training pictures have label 0; CIFAR-10"),
    ],
)
def test_a_damaged_file_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / TRAIN_FILES[1]).write_bytes(content)
    with pytest.raises(DataError, match=message):
        Cifar10(True, tmp_path)


def test_an_archive_that_is_another_is_refused(tmp_path: Path, archive: bytes) -> None:
    (tmp_path / cifar10.ARCHIVE).write_bytes(archive[:-3])
    with pytest.raises(DataError, match="is not the published archive of CIFAR-10: its MD5 is"):
        Cifar10(True, tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no archive", "cannot be unpacked"),
        (packed()[:-200], "cannot be unpacked"),
        (packed(NAMES[1:]), "holds no data_batch_1.bin"),
    ],
)
def test_an_archive_that_cannot_be_read_is_refused(
    content: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / cifar10.ARCHIVE).write_bytes(content)
    know(monkeypatch, content)
    with pytest.raises(DataError, match=message):
        Cifar10(True, tmp_path)
