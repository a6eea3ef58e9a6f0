"""What all links of a device bring at the same time."""

from __future__ import annotations

from edgeagent.transport.traffic import QUIET_SECONDS, Traffic
from protocols import limits

A, B = b"a", b"b"
SIZE = 64 << 10


def bring(traffic: Traffic, nodes: tuple[bytes, ...], seconds: float, rate: float) -> None:
    """Let bytes arrive on these links in turn, at `rate` bytes/s in all."""
    now = 0.0
    while now < seconds:
        for node in nodes:
            now += SIZE / rate
            traffic.arrived(node, SIZE, now)


def test_links_that_bring_bytes_at_the_same_time_are_counted_together() -> None:
    traffic = Traffic()
    bring(traffic, (A, B), 1.0, 20e6)
    found = traffic.received.take()
    assert found is not None
    assert 19e6 < sum(size for _, size in found.carried) / found.seconds < 21e6
    assert traffic.sent.take() is None


def test_a_link_that_has_brought_nothing_for_a_while_is_no_other() -> None:
    traffic = Traffic()
    traffic.arrived(A, SIZE, 1.0)
    assert traffic.brings_others(B, 1.0 + QUIET_SECONDS / 2)
    assert not traffic.brings_others(A, 1.0)
    assert not traffic.brings_others(B, 1.0 + 2 * QUIET_SECONDS)
    traffic.arrived(B, SIZE, 2.0)  # A has ended meanwhile
    several = [traffic.received.several]
    traffic.arrived(A, SIZE, 2.0)
    several.append(traffic.received.several)
    traffic.forget(A, 2.0)
    several.append(traffic.received.several)
    assert several == [False, True, False]
    assert not traffic.brings_others(B, 2.0)


def test_links_that_take_turns_show_nothing() -> None:
    traffic = Traffic()
    for turn in range(100):
        for size in [limits.SHARED_HEAD_BYTES] * 4:
            traffic.arrived((A, B)[turn % 2], size, turn * 1.0)
    assert traffic.received.take() is None
