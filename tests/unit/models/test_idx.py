"""The IDX reader takes what the format allows and raises ValueError for all else."""

from __future__ import annotations

import gzip
import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models import idx

VALID = bytes([0, 0, 0x08, 2]) + struct.pack(">II", 2, 3) + bytes(range(6))


def encode(array: np.ndarray[Any, np.dtype[Any]], code: int) -> bytes:
    """The array as IDX bytes, written independently of the reader."""
    header = bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(idx.DTYPES[code]).tobytes()


@pytest.mark.parametrize("code", sorted(idx.DTYPES))
def test_every_element_type(code: int) -> None:
    expected = np.arange(24).reshape(2, 3, 4)
    array = idx.parse(io.BytesIO(encode(expected, code)))
    assert array.dtype == idx.DTYPES[code].newbyteorder("=")
    assert array.flags.writeable
    np.testing.assert_array_equal(array, expected)


def test_plain_and_gzipped_files_are_told_apart_by_content(tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain.gz", tmp_path / "packed"
    plain.write_bytes(VALID)
    packed.write_bytes(gzip.compress(VALID))
    for path in (plain, packed):
        np.testing.assert_array_equal(idx.read(path), np.arange(6).reshape(2, 3))


def test_empty_dimension() -> None:
    assert idx.parse(io.BytesIO(encode(np.zeros((0, 28, 28)), 0x08))).shape == (0, 28, 28)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "ends after 0 of the 4 bytes of its magic number"),
        (b"\x01" + VALID[1:], "not an IDX magic number"),
        (b"\x00\x01" + VALID[2:], "not an IDX magic number"),
        (b"\x00\x00\x0a" + VALID[3:], "not an IDX magic number"),
        (b"\x00\x00\x08\x00" + VALID[4:], "has 0 dimensions"),
        (b"\x00\x00\x08\x09" + VALID[4:], "has 9 dimensions"),
        (VALID[:9], "ends after 5 of the 8 bytes of its dimensions"),
        (VALID[:-1], "ends after 5 of the 6 bytes of its elements"),
        (VALID + b"\0", "goes on after its 6 bytes"),
        (VALID[:4] + b"\xff" * 8 + VALID[12:], "at most 1073741824 are read"),
        (b"\x00\x00\x0e\x08" + b"\xff" * 32, "at most 1073741824 are read"),
    ],
)
def test_broken_files_are_refused_with_their_name(
    content: bytes, message: str, tmp_path: Path
) -> None:
    for name, stored in (("plain", content), ("packed.gz", gzip.compress(content))):
        path = tmp_path / name
        path.write_bytes(stored)
        with pytest.raises(ValueError, match=message) as caught:
            idx.read(path)
        assert str(path) in str(caught.value)


def test_broken_gzip_is_refused(tmp_path: Path) -> None:
    packed = gzip.compress(VALID)
    for stored in (packed[:-1], packed[:12], packed[:-8] + bytes(8), packed[:10] + b"\xff" * 20):
        path = tmp_path / "broken.gz"
        path.write_bytes(stored)
        with pytest.raises(ValueError, match=r"broken\.gz"):
            idx.read(path)


def test_small_limit() -> None:
    assert idx.parse(io.BytesIO(VALID), max_bytes=6).size == 6
    with pytest.raises(ValueError, match="at most 5 are read"):
        idx.parse(io.BytesIO(VALID), max_bytes=5)


@given(st.integers(0, len(VALID) - 1), st.integers(0, 255))
def test_mutated_byte_gives_an_array_of_the_same_size_or_value_error(place: int, byte: int) -> None:
    mutated = bytearray(VALID)
    mutated[place] = byte
    try:
        array = idx.parse(io.BytesIO(bytes(mutated)), max_bytes=1 << 16)
    except ValueError:
        return
    assert array.nbytes <= len(VALID) - 8


@given(st.binary(max_size=64))
def test_any_bytes_give_an_array_or_value_error(content: bytes) -> None:
    try:
        idx.parse(io.BytesIO(content), max_bytes=1 << 16)
    except ValueError:
        return
    assert content[:2] == b"\0\0"


def test_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        idx.read(tmp_path / "absent")
