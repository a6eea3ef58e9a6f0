"""The order in which bulk frames are written."""

from __future__ import annotations

import random

import pytest

from edgeagent.transport.send_queue import SendQueue
from protocols.wire.bulk import BulkHeader, BulkKind

LINEAGE = b"L" * 16


def frame(kind: BulkKind, iteration: int, index: int, attempt: int = 0) -> BulkHeader:
    return BulkHeader(kind, LINEAGE, 1, 1, iteration, attempt, index, 1)


def order(queue: SendQueue) -> list[tuple[BulkKind, int, int]]:
    found = [queue.pop()[0] for _ in range(len(queue))]
    return [(header.kind, header.iteration, header.index) for header in found]


def test_chunks_of_one_round_go_in_ascending_order() -> None:
    queue = SendQueue()
    for index in (3, 1, 4):
        queue.push(frame(BulkKind.UP, 5, index), memoryview(b"x"))
    queue.push(frame(BulkKind.DOWN, 5, 2), memoryview(b"x"))
    queue.push(frame(BulkKind.DOWN, 5, 1), memoryview(b"x"))
    assert len(queue) == 5
    up, down = BulkKind.UP, BulkKind.DOWN
    assert order(queue) == [(up, 5, 1), (down, 5, 1), (down, 5, 2), (up, 5, 3), (up, 5, 4)]
    with pytest.raises(IndexError):
        queue.pop()


def test_a_later_chunk_passes_what_is_queued_but_not_what_has_left() -> None:
    queue = SendQueue()
    for index in (6, 7, 8):
        queue.push(frame(BulkKind.UP, 5, index), memoryview(b"x"))
    assert queue.pop()[0].index == 6
    queue.push(frame(BulkKind.DOWN, 5, 2), memoryview(b"x"))
    assert [index for *_, index in order(queue)] == [2, 7, 8]


def test_nothing_passes_another_round_a_shard_or_a_probe() -> None:
    queue, chance = SendQueue(), random.Random(1)
    pushed = []
    for part in range(60):
        kind = chance.choice((BulkKind.SHARD, BulkKind.PROBE, BulkKind.UP, BulkKind.DOWN))
        header = frame(kind, part // 9, chance.randrange(9), attempt=part // 5)
        pushed.append(header)
        queue.push(header, memoryview(b"x"))
    popped = [queue.pop()[0] for _ in pushed]

    def block(header: BulkHeader) -> object:
        """What a frame must not leave: its round, or its own place."""
        chunk = header.kind in (BulkKind.UP, BulkKind.DOWN)
        return (header.iteration, header.attempt) if chunk else id(header)

    assert [block(h) for h in popped] == [block(h) for h in pushed]
    assert sorted(map(id, popped)) == sorted(map(id, pushed))


def test_what_is_dropped_is_gone() -> None:
    queue = SendQueue()
    queue.push(frame(BulkKind.UP, 5, 1), memoryview(b"x"))
    queue.clear()
    assert len(queue) == 0
    queue.push(frame(BulkKind.UP, 5, 2), memoryview(b"x"))
    assert queue.pop()[0].index == 2


def test_partial_sums_can_be_dropped() -> None:
    queue = SendQueue()
    for kind, iteration, index in (
        (BulkKind.UP, 4, 1),
        (BulkKind.SHARD, 4, 9),
        (BulkKind.UP, 5, 3),
        (BulkKind.DOWN, 5, 4),
        (BulkKind.UP, 5, 2),
        (BulkKind.DOWN, 5, 1),
    ):
        queue.push(frame(kind, iteration, index), memoryview(b"xyz"))
    assert queue.drop(BulkKind.UP) == 9
    assert len(queue) == 3
    assert queue.drop(BulkKind.UP) == 0
    queue.push(frame(BulkKind.UP, 5, 2, attempt=1), memoryview(b"x"))
    kinds = [kind for kind, _, _ in order(queue)]
    assert kinds == [BulkKind.SHARD, BulkKind.DOWN, BulkKind.DOWN, BulkKind.UP]
    assert queue.drop(BulkKind.UP) == len(queue) == 0
