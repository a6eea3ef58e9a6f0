"""What a node measures, tells and hears; the meter of a link."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.planner import StandardPlanner
from protocols import codec, limits
from protocols import messages as m
from protocols.effects import (
    Effect,
    Incoming,
    LinkDown,
    LinkUp,
    Measured,
    Probe,
    Received,
    Report,
    Send,
)
from protocols.heartbeats import Heartbeats
from protocols.measures import Measures, Rate
from protocols.messages import EVERYONE
from protocols.meter import Meter
from protocols.node import Node
from tests.simulation.test_failures import cluster
from tests.simulation.world import Host, World, member

ONE, TWO = member(1).node, member(2).node


def told(effects: list[Effect]) -> list[m.Measured]:
    """Return what the effects tell all others of measurements, each once."""
    sent = [e.envelope for e in effects if isinstance(e, Send)]
    found = [e.message for e in sent if e.tags.destination == EVERYONE]
    return list(dict.fromkeys(x for x in found if isinstance(x, m.Measured)))


def incoming(peer: bytes, rate: float | None = 1e6, delay: float = 0.01, sent: int = 0) -> Incoming:
    return Incoming(peer, delay, rate, sent)


def measured(*links: Incoming, pace: float | None = None) -> Measured:
    return Measured(links, pace, 0.2, 0.1)


def three() -> tuple[list[Host], list[Node]]:
    """Return a cluster of three in the middle of training."""
    _, hosts = cluster(1, 3)
    nodes = [h.node for h in hosts if h.node is not None]
    return hosts, nodes


def test_what_is_measured_is_told_and_heard_everywhere() -> None:
    hosts, nodes = three()
    a, b, _ = (h.me.node for h in hosts)
    now = 1000.0
    [word] = told(nodes[0].handle(now, measured(incoming(b), pace=0.05)))
    assert word.links == (m.LinkRate(b, 10_000, 1_000_000),)
    assert (word.micro_batch_us, word.compute_us, word.sync_us) == (50_000, 200_000, 100_000)
    known = nodes[0].monitor.measures
    assert known.links == {(b, a): Rate(0.01, 1e6)}
    assert known.speeds == {a: pytest.approx(0.05)}
    assert nodes[0].monitor.incoming(b) == Rate(0.01, 1e6)
    assert nodes[0].monitor.incoming(TWO) is None
    nodes[1].monitor.heard(a, word)
    assert nodes[1].monitor.measures == known
    times = nodes[1].monitor.times(a)
    assert times is not None
    assert times.compute_s == pytest.approx(0.2)
    assert times.sync_s == pytest.approx(0.1)
    assert nodes[1].monitor.times(b) is None


@pytest.mark.parametrize(
    ("rate", "delay", "news"),
    [
        (1e6, 0.01, False),
        (1.05e6, 0.01, False),
        (0.5e6, 0.01, True),
        (None, 0.01, True),
        (1e6, 0.0115, False),
        (1e6, 0.02, True),
    ],
)
def test_only_news_is_told_soon(rate: float | None, delay: float, news: bool) -> None:
    hosts, nodes = three()
    b, now = hosts[1].me.node, 1000.0
    assert told(nodes[0].handle(now, measured(incoming(b))))
    soon = now + limits.TELL_SECONDS
    assert bool(told(nodes[0].handle(soon, measured(incoming(b, rate, delay))))) is news
    later = soon + limits.TELL_AGAIN_SECONDS
    assert told(nodes[0].handle(later, measured(incoming(b, rate, delay))))


def test_a_new_link_and_another_speed_are_news() -> None:
    hosts, nodes = three()
    b, c, now = hosts[1].me.node, hosts[2].me.node, 1000.0
    assert told(nodes[0].handle(now, measured(incoming(b), pace=0.1)))
    assert not told(nodes[0].handle(now + 0.1, measured(incoming(b), incoming(c), pace=0.1)))
    assert told(nodes[0].handle(now + 0.6, measured(incoming(b), incoming(c), pace=0.1)))
    assert told(nodes[0].handle(now + 1.2, measured(incoming(b), incoming(c), pace=0.2)))
    strange = incoming(member(9).node)
    [word] = told(nodes[0].handle(now + 9.0, measured(incoming(b), strange)))
    assert [link.peer for link in word.links] == [b]  # a link that is none


def test_what_strangers_say_is_forgotten() -> None:
    _hosts, nodes = three()
    nodes[0].monitor.heard(member(9).node, m.Measured((), 50, 0, 0))
    assert nodes[0].monitor.measures == Measures()


def test_a_link_is_probed_when_it_opens_and_when_it_carries_nothing() -> None:
    hosts, nodes = three()
    b, now = hosts[1].me.node, 1000.0
    peer = hosts[1].me
    nodes[0].handle(now, LinkDown(b, clean=False))
    assert Probe(b) in nodes[0].handle(now, LinkUp(peer))
    busy, idle = now, now

    def probes(at: float, sent: int) -> list[Effect]:
        return [e for e in nodes[0].handle(at, measured(incoming(b, sent=sent))) if e == Probe(b)]

    assert not probes(busy, 0)
    for k in range(1, 5):
        assert not probes(busy + k * limits.PROBE_AGAIN_SECONDS, k * limits.METER_BYTES)
    idle = busy + 4 * limits.PROBE_AGAIN_SECONDS
    assert not probes(idle + limits.PROBE_AGAIN_SECONDS - 1, 4 * limits.METER_BYTES)
    assert probes(idle + limits.PROBE_AGAIN_SECONDS, 4 * limits.METER_BYTES)
    assert not probes(idle + limits.PROBE_AGAIN_SECONDS + 1, 4 * limits.METER_BYTES)


def test_a_joiner_is_heard_over_the_wire() -> None:
    hosts, nodes = three()
    a, b = hosts[0].me.node, hosts[1].me.node
    [envelope] = [
        e.envelope
        for e in nodes[0].handle(1000.0, measured(incoming(b)))
        if isinstance(e, Send) and e.to == b and isinstance(e.envelope.message, m.Measured)
    ]
    nodes[1].handle(1000.0, Received(a, envelope))
    assert nodes[1].monitor.measures.links == {(b, a): Rate(0.01, 1e6)}


def test_measurements_change_the_policy_and_no_more_often_than_they_may() -> None:
    world, hosts = cluster(1, 3, steps=4000)
    scheduler = hosts[0].node
    assert scheduler is not None
    assert scheduler.negotiator is not None
    nodes = [h.me.node for h in hosts]
    assert scheduler.context.policy is not None
    assert scheduler.context.policy.root == nodes[0]
    for host, slow in ((0, 1), (1, 0)):
        rates = {n: 1e5 if nodes[slow] == n else 1e7 for n in nodes if n != nodes[host]}
        hosts[host].handle(measured(*(incoming(n, rate) for n, rate in sorted(rates.items()))))
    hosts[2].handle(measured(*(incoming(n, 1e7) for n in sorted(nodes[:2]))))

    def avoided() -> bool:
        policy = scheduler.context.policy
        assert policy is not None
        return policy.root == nodes[2]

    world.run(avoided)
    policy = scheduler.context.policy
    assert policy is not None
    assert "fastest aggregation paths" in policy.reason
    version = policy.version
    for _ in range(5):  # noise
        hosts[2].handle(measured(*(incoming(n, 1.05e7) for n in sorted(nodes[:2]))))
        world.run(lambda end=world.now + 2.0: world.now > end)  # type: ignore[misc]
    assert scheduler.context.policy is not None
    assert scheduler.context.policy.version == version


# --- the meter ------------------------------------------------------------------------------------


def test_a_meter_needs_a_sample() -> None:
    meter = Meter()
    assert meter.rate is None
    meter.arrived(limits.METER_FRAME_BYTES - 1, 10.0)
    assert meter.rate is None
    meter.arrived(limits.METER_FRAME_BYTES, limits.METER_SECONDS / 2)
    assert meter.rate is None
    meter.arrived(limits.METER_FRAME_BYTES, limits.METER_SECONDS / 2)
    assert meter.rate == pytest.approx(2 * limits.METER_FRAME_BYTES / limits.METER_SECONDS)


def test_of_few_samples_the_fastest_counts_and_then_the_median() -> None:
    meter, size = Meter(), 1 << 20
    for seconds, rate in ((1.0, 1), (0.5, 2), (0.25, 2), (0.25, 3), (10.0, 2)):
        meter.arrived(size, seconds)
        assert meter.rate == pytest.approx(rate * size)


def test_a_short_frame_alone_counts_only_if_the_link_has_become_faster() -> None:
    slow = Meter()
    for _ in range(3):
        slow.arrived(1 << 20, 0.1048576)  # 10 MB/s
    for _ in range(40):
        slow.arrived(50_000, 50_000 / 15e6, steady=False)
    assert slow.rate == pytest.approx(1e7)
    for _ in range(80):
        slow.arrived(50_000, 50_000 / 50e6, steady=False)
    assert slow.rate == pytest.approx(5e7)
    for _ in range(20):
        slow.arrived(50_000, 0.05, steady=False)
    assert slow.rate == pytest.approx(1e6)


def test_bytes_that_took_no_time_are_no_sample() -> None:
    meter = Meter()
    meter.arrived(limits.METER_BYTES, 0.0)
    assert meter.rate is None


@given(st.lists(st.floats(0.001, 1.0), min_size=20, max_size=40), st.floats(1e5, 1e9))
def test_a_steady_link_is_measured_right(sizes: list[float], rate: float) -> None:
    meter = Meter()
    for part in sizes:
        size = int(limits.METER_FRAME_BYTES + part * limits.MAX_CHUNK_BYTES)
        meter.arrived(size, size / rate)
    assert meter.rate == pytest.approx(rate)


def test_the_delay_is_half_of_the_shortest_round_trip() -> None:
    beats = Heartbeats()
    assert beats.delay(ONE) is None
    beats.linked(0.0, ONE)
    assert beats.delay(ONE) is None
    for seconds in (0.03, 0.01, 0.5):
        beats.answered(ONE, seconds)
    assert beats.delay(ONE) == 0.005


@pytest.mark.parametrize("claimed", [-1e4, -1e16, -1.7e308, 2000.0])
def test_an_answer_that_cannot_be_is_no_delay(claimed: float) -> None:
    hosts, nodes = three()
    b = hosts[1].me.node
    nodes[0].context.effects.clear()
    tags = nodes[1].context.router
    envelope = tags.stamp(
        (nodes[1].context.lineage, 1, 1, 1, 1, 0), hosts[0].me.node, m.Pong(claimed)
    )
    effects = nodes[0].handle(1000.0, Received(b, envelope))
    assert not [e for e in effects if isinstance(e, Report)]


def test_what_is_measured_beyond_all_bounds_is_told_within_them() -> None:
    hosts, nodes = three()
    b = hosts[1].me.node
    [word] = told(nodes[0].handle(1000.0, measured(incoming(b, 1e300, 1e300), pace=1e300)))
    envelope = nodes[0].context.router.stamp((bytes(16), 0, 0, 0, 0, 0), EVERYONE, word)
    assert codec.decode(codec.encode(envelope)) == envelope


def test_one_idle_link_is_probed_at_a_time() -> None:
    hosts, nodes = three()
    b, c, now = hosts[1].me.node, hosts[2].me.node, 1000.0
    seen: list[bytes] = []
    for k in range(25):
        effects = nodes[0].handle(now + k, measured(incoming(b), incoming(c)))
        probes = [e.node for e in effects if isinstance(e, Probe)]
        assert len(probes) <= 1
        seen += probes
    assert sorted(seen[:2]) == sorted((b, c))
    assert seen[2:] == seen[:2]


def test_who_is_no_member_says_nothing_that_is_kept() -> None:
    alone = Node(World(0).config(member(5)), StandardPlanner())
    alone.join(0.0, member(6))
    for k in range(5):
        assert not alone.monitor.heard(member(k).node, m.Measured((), 5, 5, 5))
    assert alone.monitor.measures == Measures()
