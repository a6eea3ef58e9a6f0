"""Writes PNG files with any filters, pixel by pixel, for what reads them to be tested against."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt


def chunk(kind: bytes, body: bytes) -> bytes:
    """One chunk of a PNG file."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(picture: npt.NDArray[np.uint8], filters: Sequence[int], kind: bytes = b"\x08\x02") -> bytes:
    """A PNG file of a picture [height, width, 3], each row with the filter named for it."""
    height, width, _ = picture.shape
    rows = b"".join(
        bytes([number]) + _filtered(picture.astype(int), row, number)
        for row, number in enumerate(filters)
    )
    header = struct.pack(">II", width, height) + kind + b"\0\0\0"
    packed = zlib.compress(rows)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        [
            chunk(b"IHDR", header),
            chunk(b"tEXt", b"any text"),
            chunk(b"IDAT", packed[:7]),
            chunk(b"IDAT", packed[7:]),
            chunk(b"IEND", b""),
        ]
    )


def _filtered(picture: npt.NDArray[np.int_], row: int, number: int) -> bytes:
    if number == 0:
        return bytes(picture[row].flatten().tolist())
    result = []
    for column in range(picture.shape[1]):
        for colour in range(3):
            left = int(picture[row, column - 1, colour]) if column else 0
            above = int(picture[row - 1, column, colour]) if row else 0
            corner = int(picture[row - 1, column - 1, colour]) if row and column else 0
            guess = left + above - corner
            nearest = min((left, above, corner), key=lambda value: abs(guess - value))
            foretold = (0, left, above, (left + above) // 2, nearest, 0)[number]
            result.append((int(picture[row, column, colour]) - foretold) % 256)
    return bytes(result)
