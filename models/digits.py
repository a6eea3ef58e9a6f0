"""The handwritten digits that come with the package (source: `data/SOURCE.md`).

They are for first steps and tests, so they need no download. All devices must train on the same
samples, so the split into a training and a test part follows from SHA-256 alone, and not from a
library's random generator, which may change between versions. The table is text and not a pickle,
because reading a pickle can execute code.
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

# How many images there are, and how many of them are the test part: about a fifth.
IMAGES = 1797
TEST_IMAGES = 360
# The width and the height of an image, in pixels.
SIDE = 8
# The value of a pixel that is all ink; 0 is paper.
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
    """Return the row numbers of the training part (1437) or the test part (360).

    Their order is mixed, because neighbouring rows may be of one writer, and always the same.
    """
    order = sorted(
        range(IMAGES), key=lambda row: hashlib.sha256(f"edgeagent digits {row}".encode()).digest()
    )
    return order[TEST_IMAGES:] if train else order[:TEST_IMAGES]


class Digits(Dataset[tuple[Tensor, int]]):
    """1437 training or 360 test images of handwritten digits, 8x8 pixels each.

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
