"""Fashion-MNIST: 70,000 pictures of clothes, 28x28, ten classes (Zalando Research, MIT licence).

The four files are looked for in
    1. the directory the user names (then nowhere else),
    2. where Debian's package dataset-fashion-mnist puts them,
    3. the user's cache, `$XDG_CACHE_HOME/edgeagent/fashion-mnist` or `~/.cache/edgeagent/...`,
and otherwise downloaded into the cache.

Contents are checked by SHA-256 wherever they come from, so that every node trains on the same data.
The sums are of the uncompressed files, because gzip headers differ between distributors. A file
appears in the cache complete and checked, or not at all (`download.py`).
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from models import idx
from models.download import FAILURES, DataError, Report, download, say
from models.download import cache_directory as download_cache

ADDRESS = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
DEBIAN_DIRECTORY = Path("/usr/share/datasets/fashion-mnist")
DEBIAN_PACKAGE = "dataset-fashion-mnist"

# SHA-256 of each uncompressed file.
CONTENT_SHA256 = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
CLASSES = 10
# The width and the height of a picture, in pixels.
SIDE = 28
# The most bytes that a download may have: the largest file has 26 MB, so more is something else.
MAX_DOWNLOAD_BYTES = 64 << 20
# The most bytes that a file may have when it is unpacked: the largest has 47 MB. Without a limit a
# small file could unpack to more than the disk or the memory holds.
MAX_CONTENT_BYTES = 64 << 20
# How many bytes are unpacked at a time.
_PIECE = 1 << 18


def cache_directory() -> Path:
    """Return the directory in which downloads of this data set are kept."""
    return download_cache("fashion-mnist")


def _digest(source: idx.Source) -> str:
    """Return the SHA-256, in hex, of all that `source` yields.

    Raises ValueError if that is more than `MAX_CONTENT_BYTES`.
    """
    digest = hashlib.sha256()
    size = 0
    while piece := source.read(_PIECE):
        size += len(piece)
        if size > MAX_CONTENT_BYTES:
            raise ValueError(f"it unpacks to more than {MAX_CONTENT_BYTES} bytes")
        digest.update(piece)
    return digest.hexdigest()


def _content_digest(path: Path) -> str:
    """SHA-256 of a file's content, uncompressed; ValueError if that is bad gzip or too big."""
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        if not packed:
            return _digest(raw)
        try:
            with gzip.GzipFile(fileobj=raw) as stream:
                return _digest(stream)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"it is not valid gzip ({error})") from error


def _check(path: Path, name: str) -> None:
    """Raise DataError unless the file's content is that of Fashion-MNIST's file `name`."""
    try:
        found = _content_digest(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be used: {error}") from error
    if found != CONTENT_SHA256[name]:
        raise DataError(
            f"{path} is not Fashion-MNIST's {name}: SHA-256 of the content is {found}, "
            f"expected {CONTENT_SHA256[name]}"
        )


def _files_in(directory: Path) -> dict[str, Path] | None:
    """Return the four files of a directory by name, gzipped or plain; None if one is missing."""
    found = {}
    for name in CONTENT_SHA256:
        for path in (directory / f"{name}.gz", directory / name):
            if path.is_file():
                found[name] = path
                break
        else:
            return None
    return found


def _download(directory: Path, report: Report) -> dict[str, Path]:
    """Download the files that `directory` lacks, and return all four by name.

    Raises DataError, which says what else to do, if that fails.
    """
    files = {name: directory / f"{name}.gz" for name in CONTENT_SHA256}
    try:
        for name, path in files.items():
            if not path.is_file():
                check = partial(_check, name=name)
                address = f"{ADDRESS}/{name}.gz"
                download(address, path, check, most_bytes=MAX_DOWNLOAD_BYTES, report=report)
    except FAILURES as error:
        raise DataError(
            f"Fashion-MNIST could not be downloaded ({error}). Install it with "
            f"`apt-get install {DEBIAN_PACKAGE}`, or name a directory that holds the four IDX "
            "files with --data DIR"
        ) from error
    return files


def locate(data: str | os.PathLike[str] | None = None, *, report: Report = say) -> dict[str, Path]:
    """Return the paths of the four files by name, downloaded if they are found nowhere.

    Each line of progress goes to `report`. Raises DataError when `data` is given and lacks one of
    them, or when the download fails.
    """
    if data is not None:
        named = _files_in(Path(data))
        if named is None:
            raise DataError(f"{os.fspath(data)} does not hold {', '.join(CONTENT_SHA256)} (or .gz)")
        return named
    cache = cache_directory()
    return _files_in(DEBIAN_DIRECTORY) or _files_in(cache) or _download(cache, report)


class FashionMnist(Dataset[tuple[Tensor, int]]):
    """60,000 training or 10,000 test pictures.

    `images` is uint8 [n, 1, 28, 28], `labels` is int64 [n] from 0 to 9; an item is
    (float32 [1, 28, 28] from 0 to 1, int). Raises DataError when the data cannot be had.
    """

    def __init__(
        self,
        train: bool = True,
        data: str | os.PathLike[str] | None = None,
        *,
        report: Report = say,
    ) -> None:
        files = locate(data, report=report)
        part = "train" if train else "t10k"
        images = self._read(files, f"{part}-images-idx3-ubyte")
        labels = self._read(files, f"{part}-labels-idx1-ubyte")
        if images.shape != (len(labels), SIDE, SIDE) or labels.ndim != 1:
            raise DataError(f"{part}: {images.shape} images do not go with {labels.shape} labels")
        if len(labels) and int(labels.max()) >= CLASSES:
            raise DataError(f"{part}: label {int(labels.max())} is not below {CLASSES}")
        self.images = torch.from_numpy(images).unsqueeze(1)
        self.labels = torch.from_numpy(labels.astype(np.int64))

    @staticmethod
    def _read(files: dict[str, Path], name: str) -> npt.NDArray[np.uint8]:
        path = files[name]
        _check(path, name)
        try:
            array = idx.read(path, max_bytes=MAX_CONTENT_BYTES)
        except (OSError, ValueError) as error:
            raise DataError(str(error)) from error
        if array.dtype != np.uint8:
            raise DataError(f"{path} holds {array.dtype}, not bytes")
        return array

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """One item; IndexError outside the data set."""
        return self.images[index].to(torch.float32) / 255, int(self.labels[index])
