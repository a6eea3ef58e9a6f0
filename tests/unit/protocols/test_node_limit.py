"""What all links of a device carry together, and whether something limits it."""

from __future__ import annotations

import pytest

from protocols import limits
from protocols.events import Incoming, Measured
from protocols.network.measures import Measures
from protocols.network.node_limit import NodeLimit
from protocols.network.stretch import Carried, Stretch, Together, Use
from protocols.wire import messages as m
from tests.unit.protocols.test_monitor import three, told

A, B, C = (bytes([k]) * 32 for k in (1, 2, 3))
LOOK_S = limits.STRETCH_LOOK_SECONDS


class Device:
    """Links that carry so many bytes/s each, all busy unless `idle`."""

    def __init__(self, **rates: float) -> None:
        self.rates = {{"a": A, "b": B, "c": C}[name]: rate for name, rate in rates.items()}
        self.moved = dict.fromkeys(self.rates, 0.0)
        self.since: dict[bytes, float | None] = dict.fromkeys(self.rates, 0.0)
        self.now = 1.0
        self.together = Together()
        self.counts = True

    def carry(self, seconds: float, every: float = LOOK_S) -> None:
        """Let all links carry for that long, and look at them."""
        for _ in range(round(seconds / every)):
            self.now += every
            for node, rate in self.rates.items():
                self.moved[node] += rate * every
            self.look()

    def look(self) -> None:
        uses = [Use(n, round(self.moved[n]), self.since[n]) for n in self.rates]
        self.together.look(self.now, uses, counts=self.counts)


def test_a_stretch_is_what_busy_links_carried_together() -> None:
    device = Device(a=1e6, b=2e6)
    device.look()
    device.carry(1.0)
    found = device.together.take()
    assert len(found) == 3
    assert device.together.take() == ()
    assert all(s.rate == pytest.approx(3e6, rel=0.01) for s in found)
    assert all(s.seconds == pytest.approx(limits.STRETCH_SECONDS, abs=LOOK_S) for s in found)
    assert [link.node for link in found[0].links] == [A, B]
    assert all(link.busy_s == pytest.approx(found[0].seconds) for link in found[0].links)


def test_what_another_link_carries_beside_them_counts() -> None:
    device = Device(a=1e6, b=1e6, c=1e6)
    device.since[C] = None
    device.look()
    device.carry(0.4)
    (found,) = device.together.take()
    assert found.rate == pytest.approx(3e6, rel=0.01)
    assert [link.busy_s > 0 for link in found.links] == [True, True, False]


def test_one_busy_link_makes_no_stretch() -> None:
    device = Device(a=1e6, b=1e6)
    device.since[B] = None
    device.look()
    device.carry(1.0)
    assert device.together.take() == ()


def test_a_link_that_became_busy_since_the_last_look_is_not_counted_yet() -> None:
    device = Device(a=1e6, b=1e6)
    device.look()
    device.since[B] = device.now + LOOK_S / 2
    device.carry(limits.STRETCH_SECONDS)
    assert device.together.take() == ()
    device.carry(2 * LOOK_S)
    assert len(device.together.take()) == 1


def test_looks_that_are_far_apart_say_nothing() -> None:
    device = Device(a=1e6, b=1e6)
    device.look()
    device.carry(3.0, every=1.5 * limits.STRETCH_MOST_LOOK_SECONDS)
    assert device.together.take() == ()
    device.look()  # twice at one moment
    assert device.together.take() == ()


def test_time_in_which_something_else_held_the_links_up_does_not_count() -> None:
    device = Device(a=1e6, b=1e6)
    device.look()
    device.counts = False
    device.carry(1.0)
    assert device.together.take() == ()
    device.counts = True
    device.carry(0.4)
    (found,) = device.together.take()
    assert found.rate == pytest.approx(2e6, rel=0.01)


def test_slow_links_need_longer() -> None:
    device = Device(a=50e3, b=50e3)
    device.look()
    device.carry(1.2)
    assert device.together.take() == ()
    device.carry(0.2)
    assert len(device.together.take()) == 1


def test_a_link_whose_other_end_takes_nothing_is_not_busy() -> None:
    device = Device(a=1e6, b=0.0)
    device.look()
    device.carry(1.0)
    assert device.together.take() == ()


def test_a_link_that_has_just_opened_has_carried_nothing() -> None:
    device = Device(a=1e6, b=1e6)
    device.look()
    device.rates[C], device.moved[C], device.since[C] = 1e6, 5e9, 0.0
    device.carry(0.4)
    assert device.together.take()[0].rate < 4e6


def stretch(rate: float, *nodes: bytes, busy: bool = True) -> Stretch:
    """Return a stretch of a second in which these links carried `rate` bytes/s together."""
    each = round(rate / len(nodes))
    return Stretch(1.0, tuple(Carried(n, each, float(busy)) for n in nodes))


def test_links_that_hinder_each_other_show_a_limit() -> None:
    limit = NodeLimit()
    alone = {A: 10e6, B: 10e6, C: 10e6}
    limit.add(0.0, stretch(12e6, A, B, C), alone)
    assert limit.rate(0.0) is None, "one stretch may be a matter of chance"
    limit.add(1.0, stretch(9e6, A, B, C), alone)
    assert limit.rate(1.0) == pytest.approx(9e6)
    limit.add(2.0, stretch(11e6, A, B, C), alone)
    assert limit.rate(2.0) == pytest.approx(11e6), "the second best"
    assert limit.rate(1.0 + limits.NODE_LIMIT_SECONDS + 0.5) is None, "that is long ago"


def test_what_limits_a_device_is_told_and_planned_with() -> None:
    hosts, nodes = three()
    a, b, c = (h.me.node for h in hosts)
    for other in (b, c):  # what a sends arrives there at 40 MB/s while it sends nothing else
        nodes[0].monitor.heard(other, m.Measured((m.LinkRate(a, 0, 40_000_000, 1),), 0, 0, 0))
    links = (Incoming(b, 0.0, 40e6, 0, 0, True), Incoming(c, 0.0, 40e6, 0, 0, True))
    sent, received = stretch(28e6, b, c), stretch(50e6, b, c)

    def tells(now: float, *more: Stretch) -> m.Measured:
        event = Measured(links, None, None, None, (sent, *more), (received,))
        [word] = told(nodes[0].handle(now, event))
        return word

    assert (tells(1000.0).up, tells(1010.0).up) == (0, 28_000_000)
    word = tells(1020.0)
    assert word.down == 50_000_000
    assert [link.alone for link in word.links] == [1, 1]
    nodes[1].monitor.heard(a, word)
    for node, up in zip(nodes, (40e6, 28e6), strict=False):
        known = node.monitor.measures
        assert known.up == {a: up}, "the first knows that one link alone carries 40 MB/s"
        assert known.down == {a: 50e6}
    [news] = told(
        nodes[0].handle(
            1020.6, Measured(links, None, None, None, (stretch(48e6, b, c),) * 2, (received,))
        )
    )
    assert news.up == 48_000_000, "a limit that has changed is news"


def test_a_rate_that_was_not_measured_alone_shows_no_limit() -> None:
    hosts, nodes = three()
    a, b, c = (h.me.node for h in hosts)
    for other in (b, c):
        nodes[0].monitor.heard(other, m.Measured((m.LinkRate(a, 0, 10_000_000, 0),), 0, 0, 0))
    links = (Incoming(b, 0.0, 10e6, 0), Incoming(c, 0.0, 10e6, 0))
    slow = (stretch(8e6, b, c),) * 3
    [word] = told(nodes[0].handle(1000.0, Measured(links, None, None, None, slow, slow)))
    assert (word.up, word.down) == (0, 0)


def test_a_member_may_tell_limits_and_no_links() -> None:
    hosts, nodes = three()
    b = hosts[1].me.node
    nodes[0].monitor.heard(b, m.Measured((), 0, 0, 0, 0, 0, 7, 1))
    links = [rate.rate for ends, rate in nodes[0].monitor.measures.links.items() if ends[0] == b]
    assert nodes[0].monitor.measures.up[b] == max([7.0, *links])
    assert nodes[0].monitor.measures.down[b] == 1.0


@pytest.mark.parametrize("limit", [0.0, -1.0, float("inf"), float("nan")])
def test_a_limit_is_a_positive_number(limit: float) -> None:
    with pytest.raises(ValueError, match="limit"):
        Measures(up={A: limit})
    with pytest.raises(ValueError, match="limit"):
        Measures(down={A: limit})


def test_links_that_carry_what_they_do_alone_show_none() -> None:
    limit = NodeLimit()
    for at in range(3):
        limit.add(float(at), stretch(18e6, A, B), {A: 10e6, B: 10e6})
    assert limit.rate(2.0) is None


def test_a_link_whose_rate_is_not_known_counts_as_just_as_fast_as_it_was() -> None:
    limit = NodeLimit()
    for at in range(3):
        limit.add(float(at), stretch(6e6, A, B), {A: 10e6})
    assert limit.rate(2.0) == pytest.approx(6e6), "A alone lacks 7 MB/s of 13"
    unknown = NodeLimit()
    for at in range(3):
        unknown.add(float(at), stretch(12e6, A, B), {})
    assert unknown.rate(2.0) is None


def test_a_link_that_was_not_busy_cannot_have_carried_more() -> None:
    limit = NodeLimit()
    for at in range(3):
        limit.add(float(at), stretch(2e6, A, B, busy=False), {A: 10e6, B: 10e6})
    assert limit.rate(2.0) is None


def test_a_device_does_not_hold_some_links_back_while_another_one_is_as_fast_as_alone() -> None:
    alone = {A: 10e6, B: 10e6, C: 2e6}
    carried = Stretch(1.0, tuple(Carried(n, x, 1.0) for n, x in ((A, 9_500_000), (B, 1_000_000))))
    limit = NodeLimit()
    for at in range(3):
        limit.add(float(at), carried, alone)
    assert limit.rate(2.0) is None, "it is the other end of B that is slow"
    shares = ((A, 2_200_000), (B, 2_100_000), (C, 1_900_000))
    for at in range(5):
        limit.add(float(at), Stretch(1.0, tuple(Carried(n, x, 1.0) for n, x in shares)), alone)
    assert limit.rate(4.0) == pytest.approx(6.2e6), "C alone is no faster than its share"


def test_a_limit_ends_only_when_links_hardly_hinder_each_other() -> None:
    limit, alone = NodeLimit(), {A: 10e6, B: 10e6}
    found = []
    for at, rate in enumerate((13e6, 13e6, 16e6, 16e6, 18e6, 18e6)):
        limit.add(float(at), stretch(rate, A, B), alone)
        found.append(limit.rate(float(at)) is not None)
    assert found == [False, True, True, True, True, False]
