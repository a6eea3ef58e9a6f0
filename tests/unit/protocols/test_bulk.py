"""The header of bulk frames: exact round trips; anything but a valid header is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols import limits
from protocols.bulk import BulkHeader, BulkKind, decode_header
from protocols.errors import RemoteProtocolError

HEADER = BulkHeader(BulkKind.UP, b"L" * 16, 2, 3, 4, 5, 6, 7, 0.5, 8, 9)
COUNT = st.integers(0, (1 << 32) - 1)
LONG = st.integers(0, (1 << 64) - 1)
LARGEST = {
    BulkKind.UP: limits.MAX_CHUNK_BYTES,
    BulkKind.DOWN: limits.MAX_CHUNK_BYTES,
    BulkKind.SHARD: limits.MAX_SHARD_BYTES,
    BulkKind.PROBE: limits.MAX_CHUNK_BYTES,
}
HEADERS = st.builds(
    BulkHeader,
    st.sampled_from(BulkKind),
    st.binary(min_size=16, max_size=16),
    COUNT,
    COUNT,
    LONG,
    COUNT,
    COUNT,
    st.integers(0, limits.MAX_CHUNK_BYTES),
    st.floats(allow_nan=False),
    LONG,
    COUNT,
)


@given(HEADERS)
def test_headers_read_back(header: BulkHeader) -> None:
    data = header.encode()
    assert len(data) == limits.BULK_HEADER_BYTES
    for form in (data, bytearray(data), memoryview(data)):
        assert decode_header(form) == header


@pytest.mark.parametrize("kind", BulkKind)
def test_payloads_are_bounded_by_their_kind(kind: BulkKind) -> None:
    header = replace(HEADER, kind=kind, length=LARGEST[kind])
    assert decode_header(header.encode()) == header
    with pytest.raises(RemoteProtocolError, match="over the limit"):
        decode_header(replace(header, length=LARGEST[kind] + 1).encode())


@pytest.mark.parametrize("size", [0, 1, limits.BULK_HEADER_BYTES - 1, limits.BULK_HEADER_BYTES + 1])
def test_headers_of_another_size_are_refused(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match="wrong size"):
        decode_header((HEADER.encode() * 2)[:size])


@pytest.mark.parametrize("kind", [0, len(BulkKind) + 1, 255])
def test_unknown_kinds_are_refused(kind: int) -> None:
    data = bytearray(HEADER.encode())
    data[1] = kind
    with pytest.raises(RemoteProtocolError, match="unknown bulk kind"):
        decode_header(data)


def read_or_refuse(data: bytes) -> bool:
    """Decode; what is accepted is exactly what its header encodes to."""
    try:
        header = decode_header(data)
    except RemoteProtocolError:
        return False
    assert math.isnan(header.square_sum) or header.encode() == data
    return True


def test_every_single_byte_change_is_read_or_refused() -> None:
    data = HEADER.encode()
    read = 0
    for place in range(len(data)):
        for value in range(256):
            read += read_or_refuse(data[:place] + bytes([value]) + data[place + 1 :])
    assert 0 < read < 256 * len(data)


@given(st.binary(min_size=80, max_size=80))
def test_random_bytes_are_read_or_refused(data: bytes) -> None:
    read_or_refuse(data)
    read_or_refuse(HEADER.encode()[:2] + data[2:])


@pytest.mark.parametrize("place", [0, 2, 3, *range(68, 80)])
def test_marks_and_reserved_bytes_must_be_right(place: int) -> None:
    data = bytearray(HEADER.encode())
    data[place] ^= 0x10
    with pytest.raises(RemoteProtocolError, match="marks"):
        decode_header(data)
