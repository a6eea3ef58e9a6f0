"""Heartbeats: which neighbours count as silent, on fast and slow links, and after our own sleep."""

from __future__ import annotations

import random

import pytest

from protocols import limits
from protocols.network.heartbeats import Heartbeats

from .records import node

ONE, TWO = node(1), node(2)
BEAT = limits.HEARTBEAT_SECONDS


def beats(hearing: Heartbeats, start: float, seconds: float) -> list[tuple[bytes, ...]]:
    """Call `beat` regularly from `start` on; return its results."""
    return [hearing.beat(start + k * BEAT) for k in range(int(seconds / BEAT) + 1)]


def test_a_silent_neighbour_is_found_once_its_time_is_over() -> None:
    hearing = Heartbeats()
    hearing.linked(0.0, ONE)
    hearing.linked(0.0, TWO)
    assert beats(hearing, 0.0, limits.SILENCE_SECONDS) == [()] * 5
    hearing.heard(2.0, TWO)
    assert hearing.beat(2.5) == (ONE,)
    hearing.gone(ONE)
    hearing.heard(2.6, ONE)  # too late
    assert hearing.beat(3.0) == ()


def test_nobody_is_silent_because_we_slept() -> None:
    hearing = Heartbeats()
    hearing.linked(0.0, ONE)
    beats(hearing, 0.0, 1.0)
    assert hearing.beat(1000.0) == ()
    assert hearing.beat(1000.5) == ()
    assert beats(hearing, 1001.0, 2.0)[-1] == (ONE,)


def test_the_time_out_follows_delay_and_jitter() -> None:
    hearing = Heartbeats()
    hearing.linked(0.0, ONE)
    assert hearing.timeout(ONE) == hearing.timeout(TWO) == limits.SILENCE_SECONDS
    for _ in range(50):
        hearing.answered(ONE, 0.001)
    assert hearing.timeout(ONE) == limits.LEAST_SILENCE_SECONDS
    chance = random.Random(1)
    for _ in range(200):
        hearing.answered(ONE, chance.uniform(0.0, 2.0))
    shaky = hearing.timeout(ONE)
    assert limits.SILENCE_SECONDS < shaky <= limits.MOST_SILENCE_SECONDS
    for _ in range(200):
        hearing.answered(ONE, 60.0)
    assert hearing.timeout(ONE) == limits.MOST_SILENCE_SECONDS
    for _ in range(200):
        hearing.answered(ONE, 0.3)
    assert hearing.timeout(ONE) == pytest.approx(limits.LEAST_SILENCE_SECONDS, abs=0.2)


def test_answers_of_strangers_are_nothing() -> None:
    hearing = Heartbeats()
    hearing.answered(ONE, 1.0)
    assert hearing.timeout(ONE) == limits.SILENCE_SECONDS
    assert hearing.beat(0.0) == ()


def test_who_has_missed_two_heartbeats_is_quiet_but_not_yet_silent() -> None:
    beats = Heartbeats()
    for peer in (b"a", b"b"):
        beats.linked(0.0, peer)
    beats.answered(b"b", 0.5)
    assert beats.quiet(2 * limits.HEARTBEAT_SECONDS) == ()
    assert beats.quiet(2 * limits.HEARTBEAT_SECONDS + 0.1) == (b"a",)
    assert beats.quiet(2 * limits.HEARTBEAT_SECONDS + 0.6) == (b"a", b"b")
    beats.heard(1.0, b"a")
    assert beats.quiet(2 * limits.HEARTBEAT_SECONDS + 0.6) == (b"b",)
