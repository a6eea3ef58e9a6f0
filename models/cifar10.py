"""CIFAR-10: 60,000 photographs of ten kinds of things, 32x32 in colours (Krizhevsky, 2009).

The data set is read in its binary version: six files of 10,000 records, each record one byte for
the label, then 1024 bytes each of red, green and blue, row by row. The files, or the archive that
the publisher packs them into, are looked for in
    1. the directory the user names (then nowhere else),
    2. the user's cache, `$XDG_CACHE_HOME/edgeagent/cifar-10` or `~/.cache/edgeagent/cifar-10`,
and otherwise the archive is downloaded into the cache. The archive is checked by its published MD5
sum. For the six files no sums are published, so their sizes and the number of pictures of each
class are checked, and `data_digest` tells two devices whose pictures differ.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from models.download import FAILURES, DataError, Report, cache_directory, download, say

ADDRESS = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
ARCHIVE = "cifar-10-binary.tar.gz"
ARCHIVE_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
FOLDER = "cifar-10-batches-bin"  # what the archive unpacks to
TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILES = ("test_batch.bin",)
CLASSES = 10
SIDE = 32
PIXELS = 3 * SIDE * SIDE
RECORDS = 10_000
MAX_DOWNLOAD_BYTES = 256 << 20
MARGIN = 4  # pixels around a picture from which augmentation cuts
# Mean and deviation of the training pictures' red, green and blue, from 0 to 1.
MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
DEVIATION = torch.tensor([0.2470, 0.2435, 0.2616]).view(3, 1, 1)


def locate(data: str | os.PathLike[str] | None = None, *, report: Report = say) -> Path:
    """The folder of the six files, or the archive; downloaded if need be.

    Raises DataError when `data` is given and holds neither, or when the download fails.
    """
    place = cache_directory("cifar-10") if data is None else Path(data)
    for folder in (place, place / FOLDER):
        if all((folder / name).is_file() for name in (*TRAIN_FILES, *TEST_FILES)):
            return folder
    archive = place / ARCHIVE
    if archive.is_file():
        return archive
    if data is not None:
        raise DataError(
            f"{os.fspath(data)} holds neither {TRAIN_FILES[0]} to {TRAIN_FILES[-1]} and"
            f" {TEST_FILES[0]} nor {ARCHIVE}"
        )
    try:
        download(ADDRESS, archive, _check_archive, most_bytes=MAX_DOWNLOAD_BYTES, report=report)
    except FAILURES as error:
        raise DataError(
            f"CIFAR-10 could not be downloaded ({error}). Name a directory that holds {ARCHIVE},"
            f" or {TRAIN_FILES[0]} and the other files, with --data DIR"
        ) from error
    return archive


def _md5() -> hashlib._Hash:
    return hashlib.md5(usedforsecurity=False)


def _check_archive(path: Path) -> None:
    """DataError unless the file is the published archive."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, _md5).hexdigest()
    if found != ARCHIVE_MD5:
        raise DataError(
            f"{path} is not the published archive of CIFAR-10: its MD5 is {found}, not"
            f" {ARCHIVE_MD5}; remove it and get it again"
        )


def _read_folder(folder: Path, names: tuple[str, ...]) -> list[bytes]:
    try:
        return [(folder / name).read_bytes() for name in names]
    except OSError as error:
        raise DataError(f"{error.filename} cannot be read: {error.strerror}") from error


def _read_archive(path: Path, names: tuple[str, ...]) -> list[bytes]:
    found = {}
    try:
        _check_archive(path)
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                if name in names and (file := archive.extractfile(member)):
                    found[name] = file.read()
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise DataError(f"{path} cannot be unpacked: {error}") from error
    if missing := [name for name in names if name not in found]:
        raise DataError(f"{path} holds no {missing[0]}")
    return [found[name] for name in names]


def _records(
    place: Path, names: tuple[str, ...]
) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """The records of these files, uint8 [n, 3073]; DataError if they are not those of CIFAR-10."""
    contents = (_read_folder if place.is_dir() else _read_archive)(place, names)
    size = RECORDS * (1 + PIXELS)
    for name, content in zip(names, contents, strict=True):
        if len(content) != size:
            raise DataError(f"{place}: {name} has {len(content)} bytes, not {size}; get it again")
    records = np.frombuffer(b"".join(contents), dtype=np.uint8).reshape(-1, 1 + PIXELS)
    counts = np.bincount(records[:, 0], minlength=CLASSES)
    if len(counts) > CLASSES:
        raise DataError(f"{place}: label {len(counts) - 1} is not below {CLASSES}")
    expected = len(records) // CLASSES
    for label, count in enumerate(counts):
        if count != expected:
            part = "training" if names == TRAIN_FILES else "test"
            raise DataError(
                f"{place}: {count} {part} pictures have label {label}; CIFAR-10 has {expected}:"
                " get it again"
            )
    return records


class Cifar10(Dataset[tuple[Tensor, int]]):
    """50,000 training or 10,000 test pictures.

    `images` is uint8 [n, 3, 32, 32], `labels` is int64 [n] from 0 to 9; an item is (float32
    [3, 32, 32] with mean 0 and deviation 1 for each colour, int). `augment` moves each picture by
    up to 4 pixels and mirrors every second one, by torch's global generator. `data_digest` is a
    SHA-256 of all records. Raises DataError when the data cannot be had.
    """

    def __init__(
        self,
        train: bool = True,
        data: str | os.PathLike[str] | None = None,
        *,
        augment: bool = False,
        report: Report = say,
    ) -> None:
        records = _records(locate(data, report=report), TRAIN_FILES if train else TEST_FILES)
        self.augment = augment
        self.data_digest = hashlib.sha256(records.data).hexdigest()
        self.labels = torch.from_numpy(records[:, 0].astype(np.int64))
        self.images = torch.from_numpy(records[:, 1:].copy()).view(-1, 3, SIDE, SIDE)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """One item; IndexError outside the data set."""
        image = (self.images[index].to(torch.float32) / 255 - MEAN) / DEVIATION
        if self.augment:
            image = _moved(image)
        return image, int(self.labels[index])


def _moved(image: Tensor) -> Tensor:
    """A random cut from the picture with an empty margin, mirrored or not; the same shape."""
    wide = torch.nn.functional.pad(image, (MARGIN,) * 4)
    down, right, mirrored = (int(torch.randint(n, ())) for n in (2 * MARGIN + 1,) * 2 + (2,))
    cut = wide[:, down : down + SIDE, right : right + SIDE]
    return cut.flip(2) if mirrored else cut.contiguous()
