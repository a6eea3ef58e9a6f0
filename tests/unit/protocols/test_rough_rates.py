"""A link on which nothing makes up a sample has a rough rate, so that no plan takes it for a usual
one."""

from __future__ import annotations

import pytest

from protocols import limits
from protocols.network.meter import Meter

FRAME = 16 << 10  # of a probe; here each one arrives at once, as TLS delivers it
RATE = 60e3  # bytes/s


def frame(meter: Meter, now: float, size: int = FRAME) -> None:
    """Let a frame arrive at once."""
    meter.begins(now)
    meter.arrived(now, size)
    meter.ends(now)


def test_frames_that_are_runs_of_their_own_are_measured_roughly() -> None:
    meter, now = Meter(), 100.0
    seen = []
    for _ in range(7):
        frame(meter, now)
        seen.append(meter.rate(now))
        now += FRAME / RATE
    early = sum(k * FRAME / RATE < limits.METER_ROUGH_SECONDS for k in range(7))
    assert seen[:early] == [None] * early
    assert seen[early:] == [pytest.approx(RATE)] * (7 - early)
    assert not meter.is_alone


def test_a_pause_counts_little() -> None:
    meter = Meter()
    frame(meter, 100.0)
    for k in range(4):
        frame(meter, 200.0 + k * FRAME / RATE)
    least = 4 * FRAME / (3 * FRAME / RATE + limits.METER_PAUSE_SECONDS)
    assert meter.rate(202.0) == pytest.approx(least)


def test_too_little_says_nothing() -> None:
    meter = Meter()
    assert meter.rate(100.0) is None
    for k in range(3):
        frame(meter, 100.0 + k)
    assert meter.rate(200.0) is None, "two frames after the first one"
    frame(meter, 103.0)
    assert meter.rate(200.0) is not None


def test_a_sample_counts_more() -> None:
    meter, now = Meter(), 100.0
    for k in range(7):
        frame(meter, now + k * FRAME / RATE)
    now += 10.0
    meter.begins(now)
    for _ in range(40):
        now += FRAME / 1e6
        meter.arrived(now, FRAME)
    meter.ends(now)
    assert meter.rate(now + 1.0) == pytest.approx(1e6)
    frame(meter, now + 2.0)
    assert meter.rate(now + 3.0) == pytest.approx(1e6)
