"""The header of bulk frames: exact round trips; anything but a valid header is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols import limits
from protocols.errors import RemoteProtocolError
from protocols.wire.bulk import BulkHeader, BulkKind, checksum, decode_header, is_shared

HEADER = BulkHeader(BulkKind.DOWN, b"L" * 16, 2, 3, 4, 5, 6, 7, 0.5, 8, 9)
COUNT = st.integers(0, (1 << 32) - 1)


def up_to(most: int) -> st.SearchStrategy[int]:
    """Strategy for numbers up to a limit, often the limit itself."""
    return st.integers(0, most) | st.just(most)


LARGEST = {
    BulkKind.UP: limits.MAX_CHUNK_BYTES,
    BulkKind.DOWN: limits.MAX_CHUNK_BYTES,
    BulkKind.SHARD: limits.MAX_SHARD_BYTES,
    BulkKind.PROBE: limits.MAX_CHUNK_BYTES,
    BulkKind.UPDATE: limits.MAX_SHARD_BYTES,
    BulkKind.SUM: limits.MAX_CHUNK_BYTES,
    BulkKind.SLOT: limits.MAX_CHUNK_BYTES,
}
HEADERS = st.builds(
    BulkHeader,
    st.just(BulkKind.DOWN),
    st.binary(min_size=16, max_size=16),
    up_to(limits.MAX_VIEW),
    up_to(limits.MAX_VERSION),
    up_to(limits.MAX_ITERATION),
    up_to(limits.MAX_ATTEMPT),
    COUNT,
    st.integers(0, limits.MAX_CHUNK_BYTES),
    st.floats(min_value=0.0),
    up_to(limits.MAX_INTEGER),
    up_to(limits.MAX_TERM),
    COUNT,
) | st.builds(
    BulkHeader,
    st.sampled_from((BulkKind.UP, BulkKind.SHARD, BulkKind.PROBE, BulkKind.UPDATE)),
    st.just(bytes(16)),
    *[st.integers(0, 9)] * 6,
)


@given(HEADERS)
def test_headers_read_back(header: BulkHeader) -> None:
    data = header.encode()
    assert len(data) == limits.BULK_HEADER_BYTES
    for form in (data, bytearray(data), memoryview(data)):
        assert decode_header(form) == header


@pytest.mark.parametrize("kind", BulkKind)
def test_payloads_are_bounded_by_their_kind(kind: BulkKind) -> None:
    header = replace(HEADER, kind=kind, length=LARGEST[kind], square_sum=0.0)
    assert decode_header(header.encode()) == header
    with pytest.raises(RemoteProtocolError, match="over the limit"):
        decode_header(replace(header, length=LARGEST[kind] + 1).encode())


@pytest.mark.parametrize("size", [0, 1, limits.BULK_HEADER_BYTES - 1, limits.BULK_HEADER_BYTES + 1])
def test_headers_of_another_size_are_refused(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match="wrong size"):
        decode_header((HEADER.encode() * 2)[:size])


def test_a_header_says_whether_other_links_of_the_sender_are_busy() -> None:
    assert not is_shared(HEADER.encode())
    assert is_shared(HEADER.encode(shared=True))
    assert decode_header(HEADER.encode(shared=True)) == HEADER


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
    assert math.isnan(header.square_sum) or header.encode(shared=is_shared(data)) == data
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


@pytest.mark.parametrize("place", [0, 2, 3, *range(72, 80)])
def test_marks_and_reserved_bytes_must_be_right(place: int) -> None:
    data = bytearray(HEADER.encode())
    data[place] ^= 0x10
    with pytest.raises(RemoteProtocolError, match="marks"):
        decode_header(data)


LIMITED = {
    "view": limits.MAX_VIEW,
    "policy": limits.MAX_VERSION,
    "iteration": limits.MAX_ITERATION,
    "attempt": limits.MAX_ATTEMPT,
    "reference": limits.MAX_INTEGER,
    "term": limits.MAX_TERM,
}


def changed(name: str, value: int) -> BulkHeader:
    """Return a header with another number in one field."""
    fields: dict[str, Any] = {name: value}
    return replace(HEADER, **fields)


@pytest.mark.parametrize("name", LIMITED)
def test_numbers_are_held_to_the_limits_of_control_messages(name: str) -> None:
    """Whatever follows from the largest number that is read can still be written."""
    most = changed(name, LIMITED[name])
    assert decode_header(most.encode()) == most
    with pytest.raises(RemoteProtocolError, match="over its limit"):
        decode_header(changed(name, LIMITED[name] + 1).encode())


@pytest.mark.parametrize("squares", [-1.0, -5e-324, -math.inf])
def test_no_sum_of_squares_is_negative(squares: float) -> None:
    with pytest.raises(RemoteProtocolError, match="sum of squares"):
        decode_header(replace(HEADER, square_sum=squares).encode())


@pytest.mark.parametrize("kind", [BulkKind.UP, BulkKind.SHARD, BulkKind.PROBE])
def test_only_reduced_chunks_have_a_sum_of_squares(kind: BulkKind) -> None:
    with pytest.raises(RemoteProtocolError, match="sum of squares"):
        decode_header(replace(HEADER, kind=kind).encode())
    with pytest.raises(RemoteProtocolError, match="checksum"):
        decode_header(replace(HEADER, kind=kind, square_sum=0.0, check=1).encode())


@given(st.binary(min_size=1, max_size=99), st.floats(), st.data())
def test_a_checksum_changes_with_the_chunk_and_with_its_squares(
    payload: bytes, squares: float, data: st.DataObject
) -> None:
    right = checksum(payload, squares)
    assert checksum(memoryview(payload), squares) == right
    place = data.draw(st.integers(0, 8 * len(payload) - 1))
    altered = bytearray(payload)
    altered[place // 8] ^= 1 << place % 8
    assert checksum(altered, squares) != right
    assert checksum(payload, math.nextafter(squares, 9.0)) != right or not squares < 9.0


def test_sums_of_squares_may_be_no_numbers() -> None:
    for squares in (math.inf, math.nan):
        read = decode_header(replace(HEADER, square_sum=squares).encode())
        assert repr(read.square_sum) == repr(squares)
