"""What several links carry together, and the limit of a device that follows from it."""

from __future__ import annotations

import pytest

from protocols import limits
from protocols.network.shared_limit import FREE_WINDOWS, LEAST_WINDOWS, WINDOWS, SharedLimit
from protocols.network.together import Shared, Together

A, B, C = (bytes([k]) * limits.NODE_ID_BYTES for k in (1, 2, 3))
HEAD = limits.SHARED_HEAD_BYTES
SIZE = 64 << 10


def carry(together: Together, nodes: tuple[bytes, ...], rate: float, frames: int) -> float:
    """Let links take turns in carrying `frames` frames each at `rate` bytes/s in all; return how
    long that took."""
    now = 0.0
    for node in nodes:
        together.begins(node, now)
    for _ in range(frames):
        for node in nodes:
            now += SIZE / rate
            together.carried(node, SIZE, now)
    for node in nodes:
        together.ends(node, now)
    return now


def test_what_two_links_carry_together_is_counted_without_its_beginning() -> None:
    together = Together()
    took = carry(together, (B, A), 10e6, 100)
    found = together.take()
    assert found is not None
    assert [node for node, _ in found.carried] == [A, B]
    total = sum(size for _, size in found.carried)
    assert 200 * SIZE - 3 * HEAD < total < 200 * SIZE - HEAD
    assert total / found.seconds == pytest.approx(10e6, rel=0.02)
    assert found.seconds < took
    assert together.take() is None


def test_a_link_by_itself_counts_for_nothing() -> None:
    together = Together()
    carry(together, (A,), 10e6, 100)
    carry(together, (B,), 10e6, 100)
    assert together.take() is None
    assert not together.several
    together.carried(A, SIZE, 1e3)  # of a link that was said to have nothing to carry
    assert together.take() is None


def test_several_have_something_to_carry_until_one_has_not() -> None:
    together = Together()
    together.begins(A, 0.0)
    several = [together.several]
    together.begins(B, 0.0)
    together.begins(B, 0.0)
    several.append(together.several)
    together.ends(A, 1.0)
    together.ends(A, 1.0)
    several.append(together.several)
    assert several == [False, True, False]


def test_too_little_is_kept_until_there_is_more() -> None:
    together = Together()
    carry(together, (A, B), 100e6, 20)
    assert together.take() is None
    carry(together, (A, B), 100e6, 200)
    found = together.take()
    assert found is not None
    assert found.seconds >= limits.SHARED_SECONDS


def window(rate: float, *nodes: bytes) -> Shared:
    """A window of a second in which these links carry `rate` bytes/s together."""
    return Shared(1.0, tuple((node, int(rate / len(nodes))) for node in nodes))


ALONE = {A: 30e6, B: 30e6, C: 1e6}


def limited(rate: float = 20e6) -> SharedLimit:
    limit = SharedLimit()
    for _ in range(LEAST_WINDOWS):
        assert limit.value is None
        limit.saw(window(rate, A, B), ALONE)
    return limit


def test_links_that_together_carry_much_less_than_alone_show_a_limit() -> None:
    limit = limited()
    assert limit.value == 20e6
    limit.saw(window(24e6, A, B), ALONE)
    assert limit.value == 24e6, "the best window counts"
    for _ in range(WINDOWS):
        limit.saw(window(10e6, A, B), ALONE)
    assert limit.value == 10e6, "old windows are forgotten"


def test_links_that_carry_together_what_they_carry_alone_show_none() -> None:
    limit = SharedLimit()
    for _ in range(9):
        limit.saw(window(55e6, A, B), ALONE)
    assert limit.value is None


def test_a_limit_that_does_not_show_any_more_is_forgotten() -> None:
    limit = limited()
    for _ in range(FREE_WINDOWS - 1):
        limit.saw(window(55e6, A, B), ALONE)
    limit.saw(window(20e6, A, B), ALONE)
    for _ in range(FREE_WINDOWS - 1):
        limit.saw(window(55e6, A, B), ALONE)
    assert limit.value == 20e6, "it has shown once more between"
    limit.saw(window(55e6, A, B), ALONE)
    assert limit.value is None


def test_links_slower_than_the_limit_say_nothing_of_it() -> None:
    limit = limited()
    slow = {A: 5e6, B: 6e6}
    for _ in range(9):
        limit.saw(window(11e6, A, B), slow)
    assert limit.value == 20e6


def test_links_that_were_never_seen_alone_say_nothing() -> None:
    limit = SharedLimit()
    for _ in range(9):
        limit.saw(window(20e6, A, B), {A: 30e6})
        limit.saw(window(20e6, A), ALONE)
    assert limit.value is None
