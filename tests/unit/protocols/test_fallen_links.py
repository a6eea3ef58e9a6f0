"""Links of a joiner that become slow while all its sources send."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from protocols import limits
from protocols.effects import LinkFell
from protocols.events import Incoming, Measured
from protocols.network.fallen_links import FallenLinks
from protocols.network.meter import Meter
from protocols.network.stretch import Carried, Stretch
from protocols.wire import messages as m
from tests.simulation.test_failures import cluster
from tests.simulation.world import member
from tests.unit.protocols.clusters import node_of

if TYPE_CHECKING:
    from protocols.effects import Effect
    from tests.simulation.world import Host

A, B = bytes([1]) * 32, bytes([2]) * 32


def stretch(a: float, b: float, busy: float = 1.0) -> Stretch:
    """Return 0.3 s in which the links from A and B carried so many bytes/s, A for a part of it."""
    seconds = 0.3
    carried_a = Carried(A, round(a * seconds * busy), seconds * busy)
    return Stretch(seconds, (carried_a, Carried(B, round(b * seconds), seconds)))


def found(*stretches: Stretch, known: float = 1e6) -> float | None:
    """Return the rate that the link from A has fallen to after the last of these stretches."""
    links, last = FallenLinks(), dict[bytes, float]()
    for each in stretches:
        last = links.add(each, {A: known, B: 1e6})
    return last.get(A)


def test_a_link_that_carries_much_less_than_another_one_has_become_slow() -> None:
    assert found(stretch(1e5, 1e6), stretch(2e5, 1e6)) == pytest.approx(2e5)
    other = Stretch(0.3, (Carried(A, 30_000, 0.3), Carried(B, 300_000, 0.2)))
    assert found(other, other) == pytest.approx(1e5), "the other one was not always busy"


def test_it_takes_two_stretches_in_a_row() -> None:
    assert found(stretch(1e5, 1e6)) is None
    assert found(stretch(1e5, 1e6), stretch(9e5, 1e6), stretch(1e5, 1e6)) is None


def test_where_all_are_slow_the_device_may_hold_them_back() -> None:
    assert found(stretch(3e5, 3e5), stretch(3e5, 3e5)) is None
    assert found(stretch(3e5, 5e5), stretch(3e5, 5e5)) is None, "about evenly"


def test_a_link_that_had_nothing_to_carry_is_not_slow() -> None:
    idle = stretch(1e5, 1e6, busy=0.5)
    assert found(idle, idle) is None


def test_a_link_that_is_nearly_as_fast_as_it_is_known_to_be_has_not_become_slow() -> None:
    assert found(stretch(1e5, 1e6), stretch(1e5, 1e6), known=1.5e5) is None


def measure(host: Host, peer: bytes, other: bytes) -> list[LinkFell]:
    """Let a host measure two stretches in which the link from `peer` was slow; return what it has
    done about that."""
    node = node_of(host)
    slow = Stretch(0.3, (Carried(peer, 30_000, 0.3), Carried(other, 300_000, 0.3)))
    links = tuple(Incoming(n, 0.01, 1e6, 0, 0, alone=True) for n in (peer, other))
    done: list[Effect] = []
    for _ in range(2):
        done += node.handle(node.context.now, Measured(links, None, None, None, (), (slow,)))
    return [effect for effect in done if isinstance(effect, LinkFell)]


def test_a_joiner_finds_such_links_and_a_member_waits_until_they_are_measured_alone() -> None:
    world, hosts = cluster(1, 3)
    joiner = world.join(3, hosts[0])
    world.run(lambda: joiner.node is not None and joiner.node.joining is not None)
    world.run(lambda: len(node_of(joiner).context.links) > 1)
    peer, other = tuple(node_of(joiner).context.links)[:2]
    (fell,) = measure(joiner, peer, other)
    assert fell.node == peer
    assert fell.rate == pytest.approx(1e5)
    known = node_of(joiner).monitor.incoming(peer)
    assert known is not None
    assert known.rate == pytest.approx(1e5), "it tells that at once if it has copied now"
    third = next(host for host in hosts if host.me.node not in (peer, other))
    assert measure(third, peer, other) == []


def test_what_a_link_carried_before_it_fell_says_nothing_any_more() -> None:
    meter = Meter()
    now = 0.0
    for _ in range(3):
        now = carried(meter, now, 1e7)
    now = carried(meter, now, 4e5, shared=True)
    assert meter.rate(now) == pytest.approx(1e7, rel=0.1)
    meter.fell(5e5)
    assert meter.rate(now) == 5e5
    assert meter.is_alone
    for _ in range(3):
        now = carried(meter, now, 2e7, shared=True)
    assert meter.rate(now) == pytest.approx(2e7, rel=0.1), "it has recovered"


def carried(meter: Meter, now: float, rate: float, *, shared: bool = False) -> float:
    """Let a frame of 2 MiB arrive at so many bytes/s, 16 KiB at a time; return when it was here."""
    now += 1.0
    meter.begins(now, shared=shared)
    for _ in range(128):
        now += (16 << 10) / rate
        meter.arrived(now, 16 << 10)
    meter.ends(now)
    return now


def test_the_other_direction_of_such_a_link_is_taken_for_slow_until_it_is_measured() -> None:
    _, hosts = cluster(1, 3)
    joiner, a, b = member(9).node, hosts[1].me.node, hosts[2].me.node
    node = node_of(hosts[0])
    monitor, context = node.monitor, node.context

    def rate() -> float:
        return monitor.measures.links[joiner, a].rate

    def measured(rate: int) -> None:
        monitor.heard(a, m.Measured((m.LinkRate(joiner, 10_000, rate),), 0, 0, 0, 0, 0))

    monitor.joiner_rates(joiner, {a: 1_000_000, b: 1_000_000})
    measured(400_000)
    monitor.joiner_rates(joiner, {a: 600_000, b: 1_000})
    assert rate() == 400_000.0, "it has not become slow"
    monitor.joiner_rates(joiner, {a: 60_000})
    begun = context.now
    assert rate() == pytest.approx(40_000.0)
    monitor.joiner_rates(joiner, {a: 60_000})
    measured(30_000)
    assert rate() == 30_000.0, "measured, and not once more a tenth of it"
    measured(400_000)
    context.now = begun + limits.FALLEN_BACK_SECONDS
    assert rate() == pytest.approx(40_000.0)
    context.now += 1.0
    assert rate() == 400_000.0
    monitor.joiner_rates(joiner, {a: 60_000})
    assert not monitor._other_directions._fallen, "it is forgotten"


def test_the_other_direction_falls_twice_and_recovers() -> None:
    _, hosts = cluster(1, 3)
    joiner, a = member(9).node, hosts[1].me.node
    monitor = node_of(hosts[0]).monitor
    rates = ((1_000_000, 4e5), (400_000, 1.6e5), (100_000, 4e4), (190_000, 7.6e4), (90_000, 3.6e4))
    for told, back in rates:
        monitor.joiner_rates(joiner, {a: told})
        monitor.heard(a, m.Measured((m.LinkRate(joiner, 10_000, 400_000),), 0, 0, 0, 0, 0))
        assert monitor.measures.links[joiner, a].rate == pytest.approx(back)
    monitor.joiner_rates(joiner, {a: 600_000})
    assert monitor.measures.links[joiner, a].rate == 4e5
