"""How many bytes may wait below a link, on links that are simulated."""

from __future__ import annotations

import pytest

from edgeagent.transport import pacing
from edgeagent.transport.pacing import Pacing

HEADROOM = 4 << 10  # a piece may be so long that a little more waits than may


class Line:
    """A connection of `rate` bytes/s to which a sender always has more to write. `late`: seconds
    by which it looks later than it should."""

    def __init__(self, rate: float, late: float = 0.0) -> None:
        self.pacing = Pacing()
        self.rate = rate
        self.late = late
        self.now = 50.0
        self.acknowledged = 1000.0
        self.unsent = 0.0
        self.dry_s = 0.0
        self.most = 0.0

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end and self.pacing.looks:
            self.unsent = max(self.unsent, self.pacing.allowance)
            self.most = max(self.most, self.unsent)
            wait = self.pacing.look_after(int(self.unsent)) + self.late
            sent = min(self.unsent, wait * self.rate)
            self.dry_s += wait - sent / self.rate
            self.unsent -= sent
            self.acknowledged += sent
            self.now += wait
            self.pacing.looked(self.now, int(self.acknowledged), int(self.unsent), stopped=True)


@pytest.mark.parametrize("mbit", [1, 4, 20, 45])
def test_about_20_ms_wait_below_a_slow_link(mbit: float) -> None:
    line = Line(mbit * 125_000)
    line.run(1.0)
    line.most = line.dry_s = 0.0
    line.run(5.0)
    assert line.pacing.rate == pytest.approx(line.rate, rel=0.05)
    expected = max(pacing.LEAST_BYTES, line.rate * pacing.AHEAD_SECONDS)
    assert line.most == pytest.approx(expected, rel=0.06)
    assert line.dry_s == 0.0


def test_a_fast_link_is_soon_looked_at_no_more() -> None:
    line = Line(125e6)
    line.run(1.0)
    assert not line.pacing.looks
    assert line.now < 50.01


def test_a_new_link_of_which_nothing_is_known_gets_little() -> None:
    line = Line(125_000)
    line.run(0.2)
    assert line.most <= pacing.FIRST_BYTES


def test_a_process_that_comes_late_does_not_let_the_link_run_dry_for_long() -> None:
    line = Line(1e6, late=0.03)
    line.run(1.0)
    line.most = line.dry_s = 0.0
    line.run(5.0)
    assert line.dry_s < 1.0  # half of the 5 s if no more than usual could wait
    assert line.most <= pacing.MOST_LATENESS * pacing.AHEAD_SECONDS * 1e6 * 1.1


def test_a_link_that_has_become_faster_is_noticed() -> None:
    line = Line(250_000)
    line.run(1.0)
    line.rate, line.dry_s = 5e6, 0.0
    line.run(1.0)
    assert line.pacing.allowance >= 0.9 * 5e6 * pacing.AHEAD_SECONDS
    assert line.dry_s < 0.2


def test_a_fast_link_that_has_become_slow_is_noticed() -> None:
    found = Pacing()
    found.nothing_known()
    assert not found.looks
    for k in range(3):
        found.looked(9.0 + 0.06 * k, 5000 + 15_000 * k, 100_000, stopped=False)
    assert found.rate == pytest.approx(250_000)
    assert found.allowance == pacing.LEAST_BYTES


def test_a_sender_that_was_idle_does_not_make_the_link_look_slow() -> None:
    found = Pacing()
    found.looked(1.0, 0, 9000, stopped=False)
    found.idle()
    found.looked(3.0, 9000, 9000, stopped=False)
    assert found.rate is None
    found.looked(3.1, 109_000, 9000, stopped=False)
    assert found.rate == pytest.approx(1e6)
    found.looked(3.1, 109_000, 0, stopped=True)  # no time has passed
    assert found.rate == pytest.approx(1e6)
    found.idle()
    found.looked(3.2, 209_000, 0, stopped=True)  # nothing is known of the time before
    assert found.rate == pytest.approx(1e6)


def test_a_peer_that_reads_nothing_is_looked_at_now_and_then() -> None:
    found = Pacing()
    for k in range(3):
        found.looked(1.0 + k, 0, 32_000, stopped=True)
    assert found.rate == 0.0
    assert 0.0 < found.look_after(32_000) <= pacing.MOST_LOOK_SECONDS
