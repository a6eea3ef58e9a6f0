"""Reads IDX files, the format of MNIST and its relatives, plain or gzipped.

    offset  bytes  content
    0       2      zero
    2       1      element type (`DTYPES`)
    3       1      number of dimensions, 1..MAX_DIMENSIONS
    4       4 * d  size of each dimension, unsigned, big-endian
    ...            elements, row-major, big-endian, and nothing after them

A data file may come from anywhere. A file that deviates from this format in any way raises a
ValueError that names the file, and the reader checks what the header declares before it allocates
memory: never more than `max_bytes` for the elements.
"""

from __future__ import annotations

import gzip
import math
import os
import zlib
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

# The element types of the format, by the byte that stands for each. Numbers are big-endian.
DTYPES: dict[int, np.dtype[Any]] = {
    0x08: np.dtype("u1"),
    0x09: np.dtype("i1"),
    0x0B: np.dtype(">i2"),
    0x0C: np.dtype(">i4"),
    0x0D: np.dtype(">f4"),
    0x0E: np.dtype(">f8"),
}
# The most dimensions of an array: data sets have up to four.
MAX_DIMENSIONS = 8
# The most bytes that the elements may take unless the caller says otherwise.
MAX_BYTES = 1 << 30
# What every gzip file begins with.
_GZIP_MAGIC = b"\x1f\x8b"


class Source(Protocol):
    """Anything to read bytes from: a file, a gzip stream, a buffer."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes, and none at the end."""


def _fill(stream: Source, size: int, what: str) -> bytearray:
    """Return exactly `size` bytes of the stream.

    Raises ValueError, which says that `what` is cut off, if the stream ends before.
    """
    buffer = bytearray(size)
    view = memoryview(buffer)
    filled = 0
    while filled < size:
        piece = stream.read(min(size - filled, 1 << 20))
        if not piece:
            raise ValueError(f"ends after {filled} of the {size} bytes of its {what}")
        view[filled : filled + len(piece)] = piece
        filled += len(piece)
    return buffer


def parse(stream: Source, *, max_bytes: int = MAX_BYTES) -> npt.NDArray[Any]:
    """Return the array in an uncompressed IDX stream, writable and in native byte order.

    Raises ValueError on any deviation from the format and when the elements take more than
    `max_bytes` bytes.
    """
    magic = _fill(stream, 4, "magic number")
    dtype = DTYPES.get(magic[2])
    dimensions = magic[3]
    if magic[:2] != b"\0\0" or dtype is None:
        raise ValueError(f"starts with {magic.hex()}, which is not an IDX magic number")
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise ValueError(f"has {dimensions} dimensions, not 1 to {MAX_DIMENSIONS}")
    header = _fill(stream, 4 * dimensions, "dimensions")
    shape = tuple(int(size) for size in np.frombuffer(header, dtype=">u4"))
    size = math.prod(shape) * dtype.itemsize
    if size > max_bytes:
        raise ValueError(f"declares {size} bytes of elements; at most {max_bytes} are read")
    elements = _fill(stream, size, "elements")
    if stream.read(1):
        raise ValueError(f"goes on after its {size} bytes of elements")
    array = np.frombuffer(elements, dtype=dtype).reshape(shape)
    return array.astype(dtype.newbyteorder("="), copy=False)


def read(path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> npt.NDArray[Any]:
    """Return the array in an IDX file, gzipped or plain, told apart by content and not by name.

    Raises ValueError (naming the file) for a file that is not valid IDX or not valid gzip, and
    OSError for one that cannot be read.
    """
    with Path(path).open("rb") as raw:
        packed = raw.read(2) == _GZIP_MAGIC
        raw.seek(0)
        try:
            if not packed:
                return parse(raw, max_bytes=max_bytes)
            with gzip.GzipFile(fileobj=raw) as stream:
                return parse(stream, max_bytes=max_bytes)
        except (ValueError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from error
