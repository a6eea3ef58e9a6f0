"""The handwritten digits that come with the package (source: `data/SOURCE.md`).

Law: works without network and without pickle, and is the same everywhere: the split into training
and test part follows from SHA-256 alone, not from any library's generator.
"""

from __future__ import annotations

import gzip
import hashlib
import io
from importlib import resources

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

IMAGES = 1797
TEST_IMAGES = 360
SIDE = 8
MAX_PIXEL = 16


def _load() -> npt.NDArray[np.uint8]:
    """The bundled table, uint8 [IMAGES, 65]: 64 pixels 0..16 and the label of each image."""
    packed = resources.files("models").joinpath("data/digits.csv.gz").read_bytes()
    text = gzip.decompress(packed).decode("ascii")
    table = np.loadtxt(io.StringIO(text), dtype=np.uint8, delimiter=",")
    if table.shape != (IMAGES, SIDE * SIDE + 1):
        raise ValueError(f"models/data/digits.csv.gz has shape {table.shape}: damaged installation")
    return table


def split(*, train: bool) -> list[int]:
    """Row numbers of the training part (1437) or the test part (360), in a fixed mixed order."""
    order = sorted(
        range(IMAGES), key=lambda row: hashlib.sha256(f"edgeagent digits {row}".encode()).digest()
    )
    return order[TEST_IMAGES:] if train else order[:TEST_IMAGES]


class Digits(Dataset[tuple[Tensor, int]]):
    """1437 training or 360 test images of handwritten digits, 8x8.

    `images` is float32 [n, 1, 8, 8] from 0 to 1, `labels` is int64 [n] from 0 to 9; an item is
    (float32 [1, 8, 8], int).
    """

    def __init__(self, train: bool = True) -> None:
        part = _load()[split(train=train)]
        pixels = torch.from_numpy(part[:, :-1].copy()).reshape(-1, 1, SIDE, SIDE)
        self.images = pixels.to(torch.float32) / MAX_PIXEL
        self.labels = torch.from_numpy(part[:, -1].astype(np.int64))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """One item; IndexError outside the data set."""
        return self.images[index], int(self.labels[index])
