"""Claims cover every byte of a state in turn, and a difference is found in its tensor."""

from __future__ import annotations

import random

import pytest

from edgeagent.dataplane.claims import piece_digests, pieces, state_claim, window
from protocols import limits
from protocols.member.cycle import DIGEST_EVERY, digest_every
from protocols.rounds.divergence import PIECE_BYTES, first_difference

SIZE = 3 * limits.CLAIM_WINDOW_BYTES + 1000
TENSORS = (("small", 0, 100), ("large", 128, 2 * limits.CLAIM_WINDOW_BYTES), ("last", SIZE - 8, 8))


@pytest.mark.parametrize(
    ("size", "every"),
    [(0, 10), (64 << 20, 10), ((64 << 20) + 1, 20), (1 << 30, 160), (3 << 30, 480)],
)
def test_a_large_state_is_hashed_more_seldom(size: int, every: int) -> None:
    assert digest_every(size) == every


def test_the_windows_cover_the_state_in_turn() -> None:
    windows = [window(SIZE, i) for i in range(4)]
    assert windows[0][0] == 0
    assert [w[1] for w in windows[:-1]] == [w[0] for w in windows[1:]]
    assert windows[-1][1] == SIZE
    assert window(SIZE, 4) == windows[0]
    assert window(0, 5) == (0, 0)
    assert window(10, 5) == (0, 10)


def test_one_bit_anywhere_changes_one_claim_of_each_turn() -> None:
    draw = random.Random(1)
    right = memoryview(bytearray(SIZE))
    for _ in range(20):
        at = draw.randrange(SIZE)
        wrong = bytearray(SIZE)
        wrong[at] ^= 1 << draw.randrange(8)
        differ = [
            i
            for i in range(8)
            if state_claim(right, b"m", i) != state_claim(memoryview(wrong), b"m", i)
        ]
        assert len(differ) == 2
        assert window(SIZE, differ[0])[0] <= at < window(SIZE, differ[0])[1]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 10, 11, 20, 25, 30, 64, 100])
def test_every_window_is_looked_at_also_by_who_seldom_sees_the_state(count: int) -> None:
    size = count * limits.CLAIM_WINDOW_BYTES

    def looked_at(iterations: range) -> int:
        return len({window(size, i) for i in iterations})

    for start in (0, 10, 130, 7770):
        assert looked_at(range(start, start + 2 * DIGEST_EVERY * count, DIGEST_EVERY)) == count
        assert looked_at(range(start, start + count + 1)) == count
    assert looked_at(range(0, DIGEST_EVERY * count, DIGEST_EVERY)) == count


def test_other_scalars_are_another_claim() -> None:
    state = memoryview(bytes(SIZE))
    claims = {state_claim(state, meta, 3) for meta in (b"", b"a", b"b")}
    assert len(claims) == 3
    assert all(len(c) == limits.CLAIM_BYTES for c in claims)


def test_the_piece_that_differs_is_that_of_its_tensor() -> None:
    right, wrong = bytearray(SIZE), bytearray(SIZE)
    wrong[limits.CLAIM_WINDOW_BYTES + 7] = 1
    one, other = (piece_digests(memoryview(s), TENSORS, 1) for s in (right, wrong))
    found = first_difference(one, other)
    assert found is not None
    assert [name for name, _, _ in pieces(TENSORS, SIZE, 1)][found] == "large"
    assert [name for name, _, _ in pieces(TENSORS, SIZE, 0)] == ["small", "large"]
    assert [name for name, _, _ in pieces(TENSORS, SIZE, 3)] == ["last"]
    assert (
        first_difference(*(piece_digests(memoryview(s), TENSORS, 0) for s in (right, wrong)))
        is None
    )


def test_no_more_pieces_are_told_than_a_message_holds() -> None:
    many = tuple((str(n), 8 * n, 8) for n in range(2 * limits.MAX_PIECES))
    digests = piece_digests(memoryview(bytes(16 * limits.MAX_PIECES)), many, 0)
    assert len(digests) == limits.MAX_PIECES * PIECE_BYTES
