"""The order in which bulk frames are written."""

from __future__ import annotations

import random

import pytest

from edgeagent.transport.send_queue import SendQueue
from edgeagent.transport.urgency import USUAL, Urgency
from protocols.wire.bulk import BulkHeader, BulkKind

LINEAGE = b"L" * 16


def frame(kind: BulkKind, iteration: int, index: int, attempt: int = 0) -> BulkHeader:
    return BulkHeader(kind, LINEAGE, 1, 1, iteration, attempt, index, 1)


def push(queue: SendQueue, header: BulkHeader, urgency: Urgency | None = None) -> None:
    usual = USUAL[header.kind]
    queue.push(header, memoryview(b"x"), usual if urgency is None else urgency)


def order(queue: SendQueue) -> list[tuple[BulkKind, int, int]]:
    found = [queue.pop()[0] for _ in range(len(queue))]
    return [(header.kind, header.iteration, header.index) for header in found]


def test_chunks_of_one_round_go_in_ascending_order() -> None:
    queue = SendQueue()
    for index in (3, 1, 4):
        push(queue, frame(BulkKind.UP, 5, index))
    push(queue, frame(BulkKind.DOWN, 5, 2))
    push(queue, frame(BulkKind.DOWN, 5, 1))
    assert len(queue) == 5
    up, down = BulkKind.UP, BulkKind.DOWN
    assert order(queue) == [(up, 5, 1), (down, 5, 1), (down, 5, 2), (up, 5, 3), (up, 5, 4)]
    with pytest.raises(IndexError):
        queue.pop()


def test_a_later_chunk_passes_what_is_queued_but_not_what_has_left() -> None:
    queue = SendQueue()
    for index in (6, 7, 8):
        push(queue, frame(BulkKind.UP, 5, index))
    assert queue.pop()[0].index == 6
    push(queue, frame(BulkKind.DOWN, 5, 2))
    assert [index for *_, index in order(queue)] == [2, 7, 8]


def test_rounds_go_before_shards_and_these_before_what_a_joiner_follows_and_probes_last() -> None:
    queue = SendQueue()
    push(queue, frame(BulkKind.PROBE, 0, 0))
    push(queue, frame(BulkKind.DOWN, 5, 1), Urgency.FOLLOW)
    push(queue, frame(BulkKind.SHARD, 5, 9))
    push(queue, frame(BulkKind.SHARD, 5, 3))
    assert [queue.bytes_of(urgency) for urgency in Urgency] == [0, 2, 1, 1]
    assert order(queue) == [
        (BulkKind.SHARD, 5, 9),
        (BulkKind.SHARD, 5, 3),
        (BulkKind.DOWN, 5, 1),
        (BulkKind.PROBE, 0, 0),
    ]
    push(queue, frame(BulkKind.SHARD, 5, 9))
    push(queue, frame(BulkKind.UP, 6, 1))
    assert order(queue) == [(BulkKind.UP, 6, 1), (BulkKind.SHARD, 5, 9)]
    assert [queue.bytes_of(urgency) for urgency in Urgency] == [0, 0, 0, 0]


def test_a_joiner_that_has_become_a_member_gets_what_it_followed_before_its_first_round() -> None:
    queue = SendQueue()
    for index in (2, 1):
        push(queue, frame(BulkKind.DOWN, 5, index), Urgency.FOLLOW)
    push(queue, frame(BulkKind.SHARD, 5, 0))
    push(queue, frame(BulkKind.UP, 6, 1))
    assert queue.bytes_of(Urgency.FOLLOW) == 0
    assert [(kind, k, index) for kind, k, index in order(queue)] == [
        (BulkKind.DOWN, 5, 1),
        (BulkKind.DOWN, 5, 2),
        (BulkKind.UP, 6, 1),
        (BulkKind.SHARD, 5, 0),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_no_chunk_passes_another_round_and_no_shard_or_probe_its_like(seed: int) -> None:
    queue, chance = SendQueue(), random.Random(seed)
    pushed: list[BulkHeader] = []
    popped: list[BulkHeader] = []
    followed = chance.randrange(40)  # chunks up to this part are for a joiner
    for part in range(60):
        kind = chance.choice((BulkKind.SHARD, BulkKind.PROBE, BulkKind.UP, BulkKind.DOWN))
        header = frame(kind, part // 9, chance.randrange(9), attempt=part // 5)
        pushed.append(header)
        follows = kind in (BulkKind.UP, BulkKind.DOWN) and part < followed
        push(queue, header, Urgency.FOLLOW if follows else None)
        if chance.random() < 0.3:
            popped.append(queue.pop()[0])
    popped += [queue.pop()[0] for _ in range(len(queue))]
    assert sorted(map(id, popped)) == sorted(map(id, pushed))
    for same in (BulkKind.SHARD, BulkKind.PROBE):
        assert [id(h) for h in popped if h.kind is same] == [
            id(h) for h in pushed if h.kind is same
        ]
    rounds = [(h.iteration, h.attempt) for h in popped if h.kind in (BulkKind.UP, BulkKind.DOWN)]
    assert rounds == sorted(rounds)


def test_what_is_dropped_is_gone() -> None:
    queue = SendQueue()
    push(queue, frame(BulkKind.UP, 5, 1))
    queue.clear()
    assert len(queue) == 0
    push(queue, frame(BulkKind.UP, 5, 2))
    assert queue.pop()[0].index == 2
