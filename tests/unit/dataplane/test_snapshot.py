"""A snapshot gives the bytes of the state at its time, whatever shards are cut from it."""

from __future__ import annotations

import hashlib

import pytest

from edgeagent.dataplane.shards import leaves, shard_view
from edgeagent.dataplane.snapshot import Snapshot, take_parts, take_snapshot
from edgeagent.memory import Room

STATE = bytes(range(100))


@pytest.mark.parametrize("constant", [0, 1, 32, 50, 99, 100])
@pytest.mark.parametrize("shard_bytes", [7, 10, 50, 100, 1000])
def test_shards_are_those_of_the_state(constant: int, shard_bytes: int) -> None:
    live = bytearray(STATE)
    snapshot = Snapshot(memoryview(live)[:constant], memoryview(STATE[constant:]))
    live[constant:] = bytes(100 - constant)  # the training goes on
    assert len(snapshot) == len(STATE)
    count = -(-len(STATE) // shard_bytes)
    shards = [bytes(shard_view(snapshot, shard_bytes, k)) for k in range(count)]
    assert b"".join(shards) == STATE
    assert leaves(snapshot, shard_bytes) == tuple(hashlib.sha256(s).digest() for s in shards)


def test_what_lies_on_one_side_is_not_copied() -> None:
    live = bytearray(STATE)
    snapshot = Snapshot(memoryview(live)[:40], memoryview(STATE[40:]))
    before, across = snapshot[0:20], snapshot[30:50]
    live[:40] = bytes(40)
    assert bytes(before) == bytes(20)
    assert bytes(across) == STATE[30:50]


@pytest.mark.parametrize(
    ("free", "constant", "besides", "taken"),
    [
        (149, 0, 0, False),  # half as much again as the copy takes has to stay free
        (150, 0, 0, True),
        (150, 0, 50, True),
        (150, 0, 51, False),
        (60, 60, 20, True),
        (None, 0, 1 << 60, True),  # the system does not say
    ],
)
def test_a_snapshot_leaves_room_for_what_comes_with_it(
    monkeypatch: pytest.MonkeyPatch, free: int | None, constant: int, besides: int, *, taken: bool
) -> None:
    room = Room(free, 0, None, None)
    monkeypatch.setattr("edgeagent.dataplane.snapshot.room", lambda: room)
    found = take_snapshot(memoryview(STATE), constant, besides)
    assert (found is not None) is taken
    if found is not None:
        assert bytes(found[0:100]) == STATE


def test_parts_are_as_they_were_and_nothing_else_is_read() -> None:
    memory = bytearray(range(100))
    found = take_parts(memoryview(memory), [slice(10, 20), slice(50, 53)])
    assert found is not None
    memory[:] = bytes(100)
    assert bytes(found[10:20]) == bytes(range(10, 20))
    assert bytes(found[10:12]) == bytes(range(10, 12))
    assert bytes(found[50:53]) == bytes(range(50, 53))
    with pytest.raises(KeyError):
        found[20:21]


def test_without_room_for_parts_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = memoryview(bytearray(1000))
    room = [Room(149, 0, None, None)]
    monkeypatch.setattr("edgeagent.dataplane.snapshot.room", lambda: room[0])
    assert take_parts(memory, [slice(0, 100)]) is None
    room[0] = Room(150, 0, None, None)
    assert take_parts(memory, [slice(0, 100)]) is not None
