"""Text as bytes, cut into blocks, for language models with a vocabulary of 256.

Any file will do; without one, the English text that Python's own documentation of its language
consists of (`pydoc_data.topics`, about 0.5 MB) is on every device already. Other versions of Python
hold other text, and `data_digest` tells two devices that.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

from models.download import DataError

VOCABULARY = 256
MAX_BYTES = 1 << 30
VALIDATION_PART = 10  # one byte of so many, at the end of the text, is kept for validation


def read_text(data: str | os.PathLike[str] | None = None) -> bytes:
    """The bytes of a file, or Python's own text; DataError when they cannot be had."""
    if data is None:
        return _own_text()
    path = Path(data)
    if path.is_dir():
        raise DataError(f"{path} is a folder; name one text file with --data FILE")
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    if len(text) > MAX_BYTES:
        raise DataError(f"{path} has more than {MAX_BYTES} bytes; use a part of it")
    return text


def _own_text() -> bytes:
    try:
        topics = importlib.import_module("pydoc_data.topics").topics
    except ImportError as error:
        raise DataError(
            "this Python comes without the text of its help; name a text file with --data FILE"
        ) from error
    return "\n".join(topics[name] for name in sorted(topics)).encode()


class TextBlocks(Dataset[tuple[Tensor, Tensor]]):
    """The blocks of the first nine tenths of a text, or of the last tenth (`train` False).

    An item is (int64 [length], int64 [length]): bytes, and for each of them the byte that follows
    it. Blocks do not overlap; bytes that fill no block are left out. `data_digest` is a SHA-256 of
    the whole text. Raises DataError when the text cannot be had, or has no block for each part.
    """

    def __init__(
        self,
        train: bool = True,
        data: str | os.PathLike[str] | None = None,
        *,
        length: int = 128,
    ) -> None:
        text = read_text(data)
        self.length = length
        self.data_digest = hashlib.sha256(text).hexdigest()
        kept = len(text) // VALIDATION_PART
        if kept <= length:
            name = "the text" if data is None else os.fspath(data)
            least = VALIDATION_PART * (length + 1)
            raise DataError(f"{name} has {len(text)} bytes; {least} are the least to train on")
        part = text[: len(text) - kept] if train else text[len(text) - kept :]
        self.tokens = torch.frombuffer(bytearray(part), dtype=torch.uint8)

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """One item; IndexError outside the data set."""
        if not 0 <= index < len(self):
            raise IndexError(f"block {index} of {len(self)}")
        start = index * self.length
        tokens = self.tokens[start : start + self.length + 1].to(torch.int64)
        return tokens[:-1], tokens[1:]
