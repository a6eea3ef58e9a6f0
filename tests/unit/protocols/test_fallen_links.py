"""Links of a joiner that become slow while all its sources send."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from protocols import limits
from protocols.events import Incoming, Measured
from protocols.network.fallen_links import FallenLinks
from protocols.network.stretch import Carried, Stretch
from tests.simulation.test_failures import cluster
from tests.unit.protocols.clusters import node_of

if TYPE_CHECKING:
    from tests.simulation.world import Host

A, B = bytes([1]) * 32, bytes([2]) * 32
NOW = 100.0
USUAL = {A: 1e6, B: 1e6}  # bytes/s


def stretch(a: float, b: float, busy: float = 1.0) -> Stretch:
    """Return 0.3 s in which the links from A and B carried so many bytes/s, A for a part of it."""
    seconds = 0.3
    carried_a = Carried(A, round(a * seconds * busy), seconds * busy)
    return Stretch(seconds, (carried_a, Carried(B, round(b * seconds), seconds)))


def rate(*stretches: Stretch, known: float = 1e6, later: float = 0.0) -> float:
    """Return what the link from A is taken for after these stretches."""
    links = FallenLinks()
    for number, each in enumerate(stretches):
        links.add(NOW + 0.5 * number, each, USUAL)
    return links.rate(NOW + 0.5 * len(stretches) + later, A, known)


def test_a_link_that_carries_much_less_than_another_one_has_become_slow() -> None:
    assert rate(stretch(1e5, 1e6), stretch(2e5, 1e6)) == pytest.approx(2e5)
    other = Stretch(0.3, (Carried(A, 30_000, 0.3), Carried(B, 300_000, 0.2)))
    assert rate(other, other) == pytest.approx(1e5), "the other one was not always busy"


def test_one_stretch_is_not_enough() -> None:
    assert rate(stretch(1e5, 1e6)) == 1e6
    assert rate(stretch(1e5, 1e6), stretch(9e5, 1e6), stretch(1e5, 1e6)) == 1e6


def test_where_all_are_slow_the_device_may_hold_them_back() -> None:
    assert rate(stretch(3e5, 3e5), stretch(3e5, 3e5)) == 1e6
    assert rate(stretch(3e5, 5e5), stretch(3e5, 5e5)) == 1e6, "about evenly"


def test_a_link_that_had_nothing_to_carry_is_not_slow() -> None:
    idle = stretch(1e5, 1e6, busy=0.5)
    assert rate(idle, idle) == 1e6


def test_a_link_that_is_nearly_as_fast_as_it_is_known_to_be_has_not_become_slow() -> None:
    links = FallenLinks()
    for _ in range(2):
        links.add(NOW, stretch(1e5, 1e6), {A: 1.5e5, B: 1e6})
    assert links.rate(NOW, A, 1.5e5) == 1.5e5


def test_after_a_while_the_link_has_been_measured_again() -> None:
    slow = stretch(1e5, 1e6)
    assert rate(slow, slow, later=limits.FALLEN_SECONDS - 1.0) == pytest.approx(1e5)
    assert rate(slow, slow, later=limits.FALLEN_SECONDS) == 1e6
    assert rate(slow, slow, known=5e4) == 5e4, "the meter knows better"


def tell(host: Host, peer: bytes, other: bytes) -> float:
    """Let a host measure twice that the link from `peer` has become slow; return what it says."""
    node = node_of(host)
    slow = Stretch(0.3, (Carried(peer, 30_000, 0.3), Carried(other, 300_000, 0.3)))
    links = tuple(Incoming(n, 0.01, 1e6, 0, 0, alone=True) for n in (peer, other))
    for _ in range(2):
        node.handle(node.context.now, Measured(links, None, None, None, (), (slow,)))
    known = node.context.incoming(peer)
    assert known is not None
    assert node.monitor._down.rate(node.context.now) is None, "nothing limits the device"
    return known.rate


def test_a_joiner_tells_of_it_and_a_member_waits_until_the_link_is_measured_alone() -> None:
    world, hosts = cluster(1, 3)
    joiner = world.join(3, hosts[0])
    world.run(lambda: joiner.node is not None and joiner.node.joining is not None)
    world.run(lambda: len(node_of(joiner).context.links) > 1)
    peer, other = tuple(node_of(joiner).context.links)[:2]
    assert tell(joiner, peer, other) == pytest.approx(1e5)
    member = next(host for host in hosts if host.me.node not in (peer, other))
    assert tell(member, peer, other) == 1e6
