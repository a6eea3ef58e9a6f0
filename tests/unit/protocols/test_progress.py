"""Which connections are found to stand still, heartbeat by heartbeat."""

from __future__ import annotations

import pytest

from protocols import limits
from protocols.network.progress import Progress, Sending

BEAT = limits.HEARTBEAT_SECONDS
PEER, OTHER = b"p" * 32, b"o" * 32


class Bench:
    """Heartbeats of one node with a link of several connections."""

    def __init__(self) -> None:
        self.progress = Progress()
        self.now = 100.0
        self.bytes = {PEER: 0, OTHER: 0}

    def beat(
        self, peer: int = 0, *, resends: bool, delay: float = 0.0, hears: bool = True
    ) -> tuple[bytes, ...]:
        """`peer`: bytes acknowledged since the last beat; the other connections always move."""
        self.now += BEAT
        self.bytes[PEER] += peer
        self.bytes[OTHER] += 1000
        moves = Sending(self.bytes[OTHER], False)
        bulk = Sending(self.bytes[PEER], resends, hears)
        sending = {OTHER: (moves, moves), PEER: (moves, bulk)}
        return self.progress.beat(self.now, sending, {PEER: delay, OTHER: None})

    def stands_for(self, delay: float = 0.0, *, hears: bool = True) -> float:
        """Return after how many seconds without acknowledgements that is noticed."""
        start = self.now
        while not (found := self.beat(resends=True, delay=delay, hears=hears)):
            assert self.now - start < 60.0
        assert found == (PEER,)
        return self.now - start


def test_a_connection_that_sends_in_vain_stands_still_after_a_while() -> None:
    bench = Bench()
    bench.beat(1_000_000, resends=False)
    bench.beat(1_000_000, resends=False)
    assert limits.STALL_SECONDS < bench.stands_for() <= limits.STALL_SECONDS + 3 * BEAT


def test_a_reader_that_takes_nothing_is_not_cut() -> None:
    bench = Bench()
    assert [bench.beat(resends=False) for _ in range(100)] == [()] * 100


def test_a_lossy_link_that_moves_is_not_cut() -> None:
    bench = Bench()
    for k in range(100):
        assert bench.beat(1460 if k % 5 == 0 else 0, resends=True) == ()


def test_a_slow_or_long_link_has_longer() -> None:
    fast = Bench()
    fast.beat(1_000_000, resends=False)
    fast.beat(1_000_000, resends=False)
    slow = Bench()
    for _ in range(12):
        slow.beat(8_000, resends=False)  # 16 kB/s
    far = Bench()
    assert slow.stands_for() > fast.stands_for() + 2.0
    assert far.stands_for(delay=0.25) > limits.STALL_SECONDS + 4 * 0.5
    assert far.progress.timeout(0.0, 1e9) == limits.MOST_STALL_SECONDS


def test_who_slept_has_seen_nothing() -> None:
    bench = Bench()
    bench.beat(resends=True)
    for _ in range(20):
        bench.now += 60.0
        assert bench.beat(resends=True) == ()


def test_segments_get_shorter_with_each_stall_of_a_link() -> None:
    bench = Bench()
    assert bench.progress.segment(PEER) is None
    for expected in (1220, 536, 536):
        bench.stands_for()
        assert bench.progress.segment(PEER) == expected
    assert bench.progress.segment(OTHER) is None


def test_where_nothing_at_all_is_heard_segments_are_not_to_blame() -> None:
    bench = Bench()
    bench.stands_for(hears=False)
    assert bench.progress.segment(PEER) is None
    bench.now += limits.SWALLOW_SECONDS
    bench.beat(resends=False)
    bench.stands_for(hears=False)
    assert bench.progress.segment(PEER) is None


def test_segments_are_to_blame_if_a_link_that_could_be_opened_anew_stands_still_again() -> None:
    bench = Bench()
    for expected in (None, 536, 536):
        bench.stands_for(hears=False)
        assert bench.progress.segment(PEER) == expected


def test_silence_while_only_small_packets_pass_is_to_blame_on_large_ones() -> None:
    progress = Progress()
    progress.ends(0.0, PEER, (Sending(7, False, True), Sending(7, True, False)))
    progress.ends(0.0, PEER, ())
    assert progress.segment(PEER) is None
    progress.ends(
        2 * limits.SWALLOW_SECONDS, PEER, (Sending(7, True, True), Sending(7, False, True))
    )
    assert progress.segment(PEER) == limits.SHORT_SEGMENTS[0]


def test_the_other_end_may_notice_first_that_large_packets_are_swallowed() -> None:
    bench = Bench()
    bench.beat(1_000_000, resends=False)
    bench.progress.gone(bench.now, PEER)
    assert bench.progress.segment(PEER) is None  # nothing was wrong
    for expected in (1220, 536):
        for _ in range(3):
            bench.beat(resends=True)
        bench.progress.gone(bench.now, PEER)
        bench.progress.gone(bench.now, PEER)  # a second report of the same end
        assert bench.progress.segment(PEER) == expected


def test_a_new_connection_begins_anew() -> None:
    bench = Bench()
    for _ in range(5):
        bench.beat(resends=True)
    bench.progress.gone(bench.now, PEER)
    assert bench.stands_for() > limits.STALL_SECONDS


@pytest.mark.parametrize("now", [0.0, -1.0])
def test_two_beats_at_one_moment_say_nothing_about_the_rate(now: float) -> None:
    progress = Progress()
    for count in (0, 1000):
        assert progress.beat(now, {PEER: (Sending(count, False),)}, {}) == ()
    assert progress._senders[PEER][0].rate == 0.0
