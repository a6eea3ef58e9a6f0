"""Shards: cut without gap or overlap, hashed like the whole, received only where they fit."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.dataplane.shards import (
    leaves,
    shard_header,
    shard_target,
    shard_view,
    state_digest,
)
from protocols.errors import RemoteProtocolError
from protocols.wire.bulk import BulkKind, decode_header

STATES = st.binary(max_size=300)
SIZES = st.integers(1, 100)


@given(STATES, SIZES)
def test_shards_make_up_the_state_and_leaves_are_their_digests(data: bytes, size: int) -> None:
    state = memoryview(data)
    digests = leaves(state, size)
    shards = [bytes(shard_view(state, size, k)) for k in range(len(digests))]
    assert b"".join(shards) == data
    assert all(len(s) == size for s in shards[:-1])
    assert all(shards)
    assert digests == tuple(hashlib.sha256(s).digest() for s in shards)


@given(STATES.filter(len), SIZES, st.data())
def test_a_shard_arrives_where_it_was_cut(data: bytes, size: int, draw: st.DataObject) -> None:
    source, copy = memoryview(data), bytearray(len(data))
    count = len(leaves(source, size))
    for shard in draw.draw(st.permutations(range(count))):
        payload = shard_view(source, size, shard)
        header = shard_header(b"L" * 16, 7, 5, shard, payload)
        assert decode_header(header.encode()) == header
        assert (header.kind, header.reference, header.iteration) == (BulkKind.SHARD, 7, 5)
        shard_target(memoryview(copy), size, header)[:] = payload
    assert bytes(copy) == data


@pytest.mark.parametrize(
    ("shard", "length"), [(0, 9), (0, 11), (2, 10), (2, 0), (3, 0), (3, 5), ((1 << 32) - 1, 0)]
)
def test_a_shard_that_does_not_fit_is_refused(shard: int, length: int) -> None:
    state = memoryview(bytearray(25))
    good = shard_header(b"L" * 16, 1, 1, 2, state[20:])
    assert len(shard_target(state, 10, good)) == 5
    with pytest.raises(RemoteProtocolError, match="wrong length"):
        shard_target(state, 10, replace(good, index=shard, length=length))


@given(STATES, STATES, st.binary(max_size=50), st.binary(max_size=50))
def test_digests_tell_states_and_their_scalars_apart(
    one: bytes, two: bytes, first: bytes, second: bytes
) -> None:
    digest = state_digest(memoryview(one), first)
    assert len(bytes.fromhex(digest)) == 32
    assert digest == state_digest(memoryview(bytearray(one)), first)
    assert (digest == state_digest(memoryview(two), second)) == ((one, first) == (two, second))
    moved = state_digest(memoryview(first + one), b"")
    assert (digest == moved) == (not first)
