"""What a joiner takes its sources for: as fast as they sent last, and slower if they are quiet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from protocols.member.source_rates import (
    FORGET_SECONDS,
    LEAST_RECENT_SECONDS,
    QUIET_TIMES,
    RECENT_PIECES,
    RECENT_SECONDS,
    SourceRates,
)
from tests.unit.protocols.clusters import cluster, node_of

if TYPE_CHECKING:
    from protocols.member.context import Context

SIZE = 1000
LINK = 1e4  # bytes/s: a piece in 0.1 s


class Bench:
    """The rates of one source, and a clock."""

    def __init__(self) -> None:
        _, hosts = cluster(0, 2)
        self.context: Context = node_of(hosts[0]).context
        self.source = hosts[1].me.node
        self.owed = 9  # pieces, before one has come
        self.rates = SourceRates(self.context, lambda _source: self.owed)

    def send(self, count: int, every_s: float, rate: float | None = LINK) -> None:
        """So many pieces come, one every so many seconds."""
        for _ in range(count):
            self.context.now += every_s
            self.rates.arrived(self.source, rate, SIZE)

    def rate(self, busy_bytes: int = SIZE) -> float | None:
        """What the source is taken for."""
        return self.rates.offer(self.source, busy_bytes).rate


def test_a_source_that_owes_something_and_is_quiet_is_taken_for_slower() -> None:
    bench = Bench()
    bench.send(1, 0.0)
    begun = bench.context.now
    for passed, rate in ((0.1, 1e4), (0.1 * QUIET_TIMES, 1e4), (2.0, 1e3), (20.0, 1e2)):
        bench.context.now = begun + passed
        assert bench.rate() == pytest.approx(rate)
        assert bench.rate(0) == LINK, "of something else it owes nothing"
    bench.send(1, 0.0, None)
    assert bench.rate() == LINK


def test_a_source_that_is_asked_again_after_a_pause_is_quiet_only_from_then_on() -> None:
    bench = Bench()
    bench.owed = 1
    bench.send(1, 0.0)
    bench.context.now += 20.0
    assert bench.rate(0) == LINK, "it owes nothing, so it may well be quiet"
    assert bench.rate() == LINK
    bench.context.now += 20.0
    known = bench.context.incoming(bench.source)
    quiet_s = 20.0 - 2 * (known.delay_s if known is not None else 0.0)
    assert bench.rate() == pytest.approx(QUIET_TIMES * SIZE / quiet_s)


def test_after_a_while_the_rate_of_the_link_counts_again() -> None:
    bench = Bench()
    bench.send(10, 0.2)
    assert bench.rate(0) == pytest.approx(SIZE / 0.2)
    bench.context.now += FORGET_SECONDS + 0.1
    assert bench.rate(0) == LINK, "it was slow once, and is tried again"


def test_a_source_of_which_nothing_has_come_is_as_fast_as_its_link() -> None:
    bench = Bench()
    known = bench.context.incoming(bench.source)
    assert bench.rate() == (known.rate if known is not None else None)


def test_a_source_is_as_fast_as_it_has_sent_a_moment_ago() -> None:
    bench = Bench()
    bench.send(RECENT_PIECES, 0.2)
    assert bench.rate() == LINK, "too little has come to say anything else"
    bench.send(10, 0.2)
    assert bench.rate() == pytest.approx(SIZE / 0.2), "its link carries other things, too"
    bench.send(20, 0.01)
    assert bench.rate() == pytest.approx(SIZE / 0.01), "and now it does not"
    bench.send(RECENT_PIECES + 1, RECENT_SECONDS)
    assert bench.rate() == pytest.approx(SIZE / RECENT_SECONDS)
    assert bench.rates.pulled((bench.source,), None, SIZE)[0].rate == LINK
    assert bench.rates.offer(bench.source, SIZE).link_rate == LINK


def test_pieces_that_come_all_at_once_say_nothing() -> None:
    bench = Bench()
    bench.send(10, LEAST_RECENT_SECONDS / 20)
    assert bench.rate() == LINK


def test_a_pause_in_which_a_source_owes_nothing_does_not_count() -> None:
    bench = Bench()
    bench.send(9, 0.01)
    bench.owed = 1
    bench.send(1, 0.01)
    bench.context.now += 2.0
    bench.owed = 9
    bench.send(1, 0.0)
    assert bench.rate() == pytest.approx(SIZE / 0.01)
    bench.send(9, 0.01)
    assert bench.rate() == pytest.approx(SIZE / 0.01)
