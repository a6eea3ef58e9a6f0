"""PNG files are read whatever filters their rows have, and refused by name if they are damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models.png import read_rgb
from tests.unit.models.pngs import chunk, png

PICTURE = np.random.default_rng(0).integers(0, 256, (10, 7, 3), dtype=np.uint8)
SMOOTH = (np.add.outer(np.arange(10), 3 * np.arange(7))[:, :, None] + [0, 90, 200]).astype(np.uint8)
FILTERS = (4, 3, 2, 1, 0, 4, 4, 3, 1, 2)


@pytest.mark.parametrize("picture", [PICTURE, SMOOTH])
@pytest.mark.parametrize("filters", [FILTERS, *((number,) * 10 for number in range(5))])
def test_any_filters(
    picture: np.ndarray[tuple[int, int, int], np.dtype[np.uint8]],
    filters: tuple[int, ...],
    tmp_path: Path,
) -> None:
    (tmp_path / "a.png").write_bytes(png(picture, filters))
    assert np.array_equal(read_rgb(tmp_path / "a.png"), picture)


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1)])
def test_thin_pictures(shape: tuple[int, int], tmp_path: Path) -> None:
    picture = np.resize(PICTURE, (*shape, 3))
    (tmp_path / "a.png").write_bytes(png(picture, [4] * shape[0]))
    assert np.array_equal(read_rgb(str(tmp_path / "a.png")), picture)


GOOD = png(PICTURE, FILTERS)
HEAD = GOOD[: GOOD.index(b"IDAT") - 4]
END = chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no PNG file"),
        (b"\xff\xd8\xff", "is no PNG file"),
        (GOOD[:-1], "is damaged or cut off"),
        (GOOD[:60] + bytes([GOOD[60] ^ 1]) + GOOD[61:], "is damaged or cut off"),
        (GOOD[:8] + END, "has no header"),
        (png(PICTURE, FILTERS, b"\x10\x02"), "is no picture of 8-bit colours"),
        (png(PICTURE, FILTERS, b"\x08\x06"), "is no picture of 8-bit colours"),
        (png(PICTURE[:0], ()), "is no picture of 8-bit colours"),
        (png(PICTURE, [5] * 10), "has a row with filter 5"),
        (png(PICTURE, FILTERS[:9]), "does not unpack to the 220 bytes"),
        (png(PICTURE, ()), "does not unpack"),
        (HEAD + chunk(b"IDAT", b"no zlib") + END, "Error -3"),
    ],
)
def test_damaged_and_other_files_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_rgb(path)
    assert str(path) in str(caught.value)


def test_large_files_are_refused_before_they_are_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(GOOD)
    with pytest.raises(ValueError, match="declares 220 bytes of pixels; at most 219"):
        read_rgb(path, max_bytes=219)
