"""Reads PNG files of 8-bit colours, the format in which some data sets are packed.

Only what such files consist of is read: 8 bits each of red, green and blue, not interlaced, any
filters. A file that is damaged, of another kind or larger than `max_bytes` raises ValueError that
names it.

Each pixel is stored as a difference to its neighbours on the left, above, and left above, by a rule
(the filter) that each row chooses. A pixel therefore needs all pixels before it, which a loop over
pixels would make slow; but the pixels of one diagonal do not need each other, so whole diagonals
are worked out at once.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

MAX_BYTES = 1 << 30
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOURS = 3
_SUB, _UP, _AVERAGE, _PAETH = 1, 2, 3, 4


def read_rgb(path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> npt.NDArray[np.uint8]:
    """The picture in a PNG file, uint8 [height, width, 3].

    Raises ValueError (naming the file) for one that cannot be read as such, OSError for one that
    cannot be read at all.
    """
    try:
        return _parse(Path(path).read_bytes(), max_bytes)
    except (ValueError, zlib.error) as error:
        raise ValueError(f"{os.fspath(path)}: {error}") from error


def _parse(data: bytes, max_bytes: int) -> npt.NDArray[np.uint8]:
    if not data.startswith(_SIGNATURE):
        raise ValueError("is no PNG file")
    header, packed, place = b"", [], len(_SIGNATURE)
    while True:
        head = data[place : place + 8]
        size = int.from_bytes(head[:4], "big")
        body = data[place + 8 : place + 8 + size]
        check = data[place + 8 + size : place + 12 + size]
        if len(check) < 4 or zlib.crc32(head[4:] + body) != int.from_bytes(check, "big"):
            raise ValueError(f"is damaged or cut off at byte {place}")
        place += 12 + size
        if head[4:] == b"IHDR":
            header = body
        elif head[4:] == b"IDAT":
            packed.append(body)
        elif head[4:] == b"IEND":
            break
    if len(header) != 13:
        raise ValueError("has no header")
    width, height, *kind = struct.unpack(">IIBBBBB", header)
    if kind != [8, 2, 0, 0, 0] or not width or not height:
        raise ValueError("is no picture of 8-bit colours without interlacing")
    size = height * (1 + _COLOURS * width)
    if size > max_bytes:
        raise ValueError(f"declares {size} bytes of pixels; at most {max_bytes} are read")
    unpacked = zlib.decompressobj().decompress(b"".join(packed), size + 1)
    if len(unpacked) != size:
        raise ValueError(f"does not unpack to the {size} bytes of its pixels")
    rows = np.frombuffer(unpacked, dtype=np.uint8).reshape(height, -1)
    return _unfilter(rows[:, 0], rows[:, 1:].reshape(height, width, _COLOURS))


def _unfilter(filters: npt.NDArray[np.uint8], rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Add to each pixel what its row's filter foretells from its neighbours."""
    height, width, colours = rows.shape
    if filters.max() > _PAETH:
        raise ValueError(f"has a row with filter {filters.max()}")
    # One more row above and column to the left, of zeros: the neighbours of the first ones.
    picture = np.zeros((height + 1, width + 1, colours), dtype=np.int16)
    kinds = filters[:, None]
    for diagonal in range(height + width - 1):
        y = np.arange(max(0, diagonal - width + 1), min(height, diagonal + 1))
        x = diagonal - y
        left, above, corner = picture[y + 1, x], picture[y, x + 1], picture[y, x]
        kind = kinds[y]
        foretold = np.select(
            [kind == _SUB, kind == _UP, kind == _AVERAGE, kind == _PAETH],
            [left, above, (left + above) >> 1, _paeth(left, above, corner)],
            np.int16(0),
        )
        picture[y + 1, x + 1] = (rows[y, x] + foretold) & 0xFF
    return picture[1:, 1:].astype(np.uint8)


def _paeth(
    left: npt.NDArray[np.int16], above: npt.NDArray[np.int16], corner: npt.NDArray[np.int16]
) -> npt.NDArray[np.int16]:
    """Whichever of the three is nearest to left + above - corner; the first of equals."""
    to_left = np.abs(above - corner)
    to_above = np.abs(left - corner)
    to_corner = np.abs(left + above - 2 * corner)
    nearest = np.where(to_above <= to_corner, above, corner)
    return np.where((to_left <= to_above) & (to_left <= to_corner), left, nearest)
