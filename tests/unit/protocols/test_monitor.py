"""What a node measures, floods and takes from others; and the meter of a link."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.planner.standard import StandardPlanner
from protocols import limits
from protocols.effects import Effect, Probe, Report, Send
from protocols.events import Incoming, LinkDown, LinkUp, Measured, Received
from protocols.member.joining_table import JoiningState
from protocols.member.node import Node
from protocols.network import monitor
from protocols.network.heartbeats import Heartbeats
from protocols.network.link_end import LinkEnd
from protocols.network.measures import KeepingUp, Measures, Rate
from protocols.network.meter import Meter
from protocols.wire import codec
from protocols.wire import messages as m
from protocols.wire.messages import EVERYONE
from tests.simulation.test_failures import cluster
from tests.simulation.world import Host, World, member
from tests.unit.protocols.clusters import node_of, reach

ONE, TWO = member(1).node, member(2).node


def told(effects: list[Effect]) -> list[m.Measured]:
    """Return the messages with measurements among the effects, each once."""
    sent = [e.envelope for e in effects if isinstance(e, Send)]
    found = [e.message for e in sent if e.tags.destination == EVERYONE]
    return list(dict.fromkeys(x for x in found if isinstance(x, m.Measured)))


def incoming(
    peer: bytes, rate: float | None = 1e6, delay: float | None = 0.01, sent: int = 0
) -> Incoming:
    return Incoming(peer, delay, rate, sent)


def measured(*links: Incoming, pace: float | None = None) -> Measured:
    return Measured(links, pace, 0.2, 0.1)


def three() -> tuple[list[Host], list[Node]]:
    """Return a cluster of three in the middle of training."""
    _, hosts = cluster(1, 3)
    nodes = [h.node for h in hosts if h.node is not None]
    for node in nodes:
        node.debt.began()  # so no trainer is overdue, though the tests let much time pass
    return hosts, nodes


def test_what_is_measured_is_told_and_heard_everywhere() -> None:
    hosts, nodes = three()
    a, b, _ = (h.me.node for h in hosts)
    now = 1000.0
    [word] = told(nodes[0].handle(now, measured(incoming(b), pace=0.05)))
    assert word.links == (m.LinkRate(b, 10_000, 1_000_000),)
    assert (word.micro_batch_us, word.compute_us, word.sync_us) == (50_000, 200_000, 100_000)
    known = nodes[0].monitor.measures
    # The others have said no more than what they told as joiners.
    assert {ends: rate for ends, rate in known.links.items() if ends[1] == a} == {
        (b, a): Rate(0.01, 1e6)
    }
    assert known.speeds == {a: pytest.approx(0.05)}
    assert nodes[0].monitor.incoming(b) == Rate(0.01, 1e6)
    assert nodes[0].monitor.incoming(TWO) is None
    nodes[1].monitor.heard(a, word)
    heard = nodes[1].monitor.measures
    assert heard.links[b, a] == Rate(0.01, 1e6)
    assert heard.speeds == known.speeds
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
    assert [link.peer for link in word.links] == [b]  # the other one is no open link


def test_what_strangers_say_is_forgotten() -> None:
    _hosts, nodes = three()
    before = nodes[0].monitor.measures
    nodes[0].monitor.heard(member(9).node, m.Measured((), 50, 0, 0))
    assert nodes[0].monitor.measures == before


def test_what_a_joiner_tells_the_scheduler_counts_until_it_is_a_member() -> None:
    world, hosts = cluster(1, 3)
    joiner = world.join(9, hosts[0])
    reach(world, joiner, JoiningState.PULLING)
    me, a, b = (h.me.node for h in (joiner, *hosts[:2]))
    monitor = node_of(hosts[0]).monitor
    node_of(hosts[0]).handle(world.now, measured(incoming(me)))  # 10 ms, from the joiner
    monitor.joiner_rates(me, {a: 5_000_000, b: 0})
    monitor.joiner_rates(me, {b: 300_000, member(8).node: 1})
    links = monitor.measures.links
    assert links[a, me] == Rate(0.01, 5e6)
    assert links[b, me] == Rate(0.0, 3e5)  # no delay is known
    assert (member(8).node, me) not in links
    before = monitor.measures
    monitor.joiner_rates(b, {a: 7})  # a member tells everybody itself
    assert monitor.measures == before


def test_what_members_tell_of_a_joiner_counts_before_a_policy_names_it() -> None:
    """The scheduler needs no link to it itself."""
    _, hosts = cluster(1, 3)
    joiner, a = member(9).node, hosts[1].me.node
    monitor = node_of(hosts[0]).monitor
    monitor.heard(a, m.Measured((m.LinkRate(joiner, 10_000, 250_000),), 0, 0, 0, 0, 0))
    assert (joiner, a) not in monitor.measures.links
    monitor.joiner_rates(joiner, {a: 5_000_000})
    assert monitor.measures.links[joiner, a].rate == 250_000.0
    assert monitor.measures.links[a, joiner].rate == 5e6
    for number in range(20, 20 + limits.MAX_OPEN_JOINS):  # only the last ones are remembered
        monitor.joiner_rates(member(number).node, {a: 7})
    assert (joiner, a) not in monitor.measures.links


def test_a_link_is_probed_when_it_opens_and_when_it_carries_nothing() -> None:
    hosts, nodes = three()
    b, now = hosts[1].me.node, 1000.0
    peer = hosts[1].me
    nodes[0].handle(now, LinkDown(b, LinkEnd.SILENT))
    assert Probe(b) in nodes[0].handle(now, LinkUp(peer))
    busy, idle = now, now

    def probes(at: float, sent: int) -> list[Effect]:
        event = measured(incoming(b, delay=0.001, sent=sent))
        return [e for e in nodes[0].handle(at, event) if e == Probe(b)]

    assert not probes(busy, 0)
    sent = 0
    for k in range(1, 14):
        sent += limits.METER_BYTES
        found = probes(busy + k * limits.PROBE_AGAIN_SECONDS, sent)
        assert bool(found) is (k * limits.PROBE_AGAIN_SECONDS == limits.PROBE_BUSY_SECONDS)
        sent += limits.MAX_PROBE_BYTES * bool(found)
    idle = busy + 13 * limits.PROBE_AGAIN_SECONDS
    assert not probes(idle + limits.PROBE_AGAIN_SECONDS - 1, sent)
    assert probes(idle + limits.PROBE_AGAIN_SECONDS, sent)
    assert not probes(idle + limits.PROBE_AGAIN_SECONDS + 1, sent)


def test_a_link_is_probed_again_once_its_delay_is_known_to_be_long() -> None:
    hosts, nodes = three()
    b = hosts[1].me.node

    def probed(at: float, delay: float | None) -> bool:
        return Probe(b) in nodes[0].handle(at, measured(incoming(b, delay=delay)))

    assert not probed(1000.0, None)
    assert not probed(1000.5, 0.03)
    assert probed(1000.0 + limits.PROBE_LONGER_SECONDS, 0.03)
    assert not probed(1001.0 + 2 * limits.PROBE_LONGER_SECONDS, 0.03)


def test_a_link_of_which_nothing_is_known_does_not_wait_for_the_others() -> None:
    hosts, nodes = three()
    old, new = (hosts[k].me.node for k in (1, 2))
    near = [incoming(old, delay=0.04)]
    for second in range(1000, 1030):
        nodes[0].handle(float(second), measured(*near))
    near.append(incoming(new, delay=0.04))
    probed = [
        effect.node
        for second in range(1030, 1034)
        for effect in nodes[0].handle(float(second), measured(*near))
        if isinstance(effect, Probe)
    ]
    assert probed == [new]


@pytest.mark.parametrize("rate", [None, 1e6])
def test_all_links_together_are_probed_1_percent_of_the_time(rate: float | None) -> None:
    hosts, nodes = three()
    ends = [hosts[k].me.node for k in (1, 2)]
    probed: dict[bytes, list[float]] = {n: [] for n in ends}
    if rate is not None:
        for n in ends:  # they measure how fast bytes from here arrive
            link = m.LinkRate(nodes[0].context.node, 1, int(rate))
            nodes[0].monitor.heard(n, m.Measured((link,), 0, 0, 0))
    for second in range(1000, 2000):
        event = measured(*(incoming(n, delay=0.02) for n in ends))
        for effect in nodes[0].handle(float(second), event):
            if isinstance(effect, Probe):
                probed[effect.node].append(float(second))
    one, other = (probed[n] for n in ends)
    each = monitor.probe_seconds(0.02) + (limits.PROBE_REST_BYTES / rate if rate else 0.0)
    seconds = each * (len(one) + len(other))
    firsts = 2 * each  # of links whose delay was not known, not put off
    assert 5.0 < seconds - firsts <= 1000.0 / limits.PROBE_SPACING
    assert abs(len(one) - len(other)) <= 1  # they take turns


def test_a_joiner_is_heard_over_the_wire() -> None:
    hosts, nodes = three()
    a, b = hosts[0].me.node, hosts[1].me.node
    [envelope] = [
        e.envelope
        for e in nodes[0].handle(1000.0, measured(incoming(b)))
        if isinstance(e, Send) and e.to == b and isinstance(e.envelope.message, m.Measured)
    ]
    nodes[1].handle(1000.0, Received(a, envelope))
    assert nodes[1].monitor.measures.links[b, a] == Rate(0.01, 1e6)


def test_measurements_change_the_policy_and_no_more_often_than_they_may() -> None:
    world, hosts = cluster(1, 3, steps=4000)
    scheduler = hosts[0].node
    assert scheduler is not None
    assert scheduler.negotiator is not None
    nodes = [h.me.node for h in hosts]
    assert scheduler.context.policy is not None
    assert scheduler.context.policy.tree.root == nodes[0]
    for host, slow in ((0, 1), (1, 0)):
        rates = {n: 1e5 if nodes[slow] == n else 1e7 for n in nodes if n != nodes[host]}
        hosts[host].handle(measured(*(incoming(n, rate) for n, rate in sorted(rates.items()))))
    hosts[2].handle(measured(*(incoming(n, 1e7) for n in sorted(nodes[:2]))))

    def avoided() -> bool:
        policy = scheduler.context.policy
        assert policy is not None
        return policy.tree.root == nodes[2]

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


FRAME = 64 << 10


class Line:
    """A link of `rate` bytes/s that a meter watches."""

    def __init__(self, rate: float, read: int = 4096) -> None:
        self.meter = Meter()
        self.rate = rate
        self.now = 100.0
        self._read = read

    def frames(self, count: int, burst: int = 0, *, shared: bool = False) -> None:
        """Let frames arrive right behind each other, the first `burst` bytes at once. `shared`:
        other links are busy, too."""
        for _ in range(count):
            self.meter.begins(self.now, shared=shared)
            left = FRAME
            while left:
                size = min(self._read, left)
                if burst < size:
                    self.now += size / self.rate
                burst = max(0, burst - size)
                self.meter.arrived(self.now, size)
                left -= size
            self.meter.ends(self.now)

    def rest(self, seconds: float = 0.1) -> None:
        self.now += seconds


def test_a_meter_needs_a_sample() -> None:
    line = Line(1e7)
    assert line.meter.rate(line.now) is None
    line.frames(1)
    assert line.meter.rate(line.now) is None
    line.frames(20)
    assert line.meter.rate(line.now) == pytest.approx(1e7)


def test_the_last_run_counts_although_nothing_follows() -> None:
    """A probe of a slow link may be all that comes over it, and shorter than a whole sample."""
    line = Line(2.4e6)
    line.frames(2)
    assert line.meter.rate(line.now) is None, "more may follow at once"
    line.rest(2 * limits.METER_GAP_SECONDS)
    assert line.meter.rate(line.now) == pytest.approx(2.4e6)
    line.frames(1)
    line.meter.begins(line.now)
    line.rest()
    assert line.meter.rate(line.now) == pytest.approx(2.4e6), "a frame is on its way"


def test_of_few_samples_the_fastest_counts_and_then_the_second_fastest() -> None:
    line = Line(1e5)
    for rate, known in ((1e5, 1e5), (2e5, 2e5), (2e5, 2e5), (3e5, 2e5), (1e5, 2e5)):
        line.rate = rate
        line.frames(2, burst=2 * FRAME - limits.METER_LEAST_BYTES)
        line.rest()
        line.meter.begins(line.now)  # the next run
        line.rest()
        assert line.meter.rate(line.now) == pytest.approx(known)


def test_short_frames_alone_do_not_make_a_link_look_fast() -> None:
    """A token bucket lets the first bytes of each frame arrive faster than the link's rate."""
    line = Line(17e6)
    line.frames(40)
    for _ in range(100):
        line.rest()
        line.frames(1, burst=40 << 10)
    assert line.meter.rate(line.now) == pytest.approx(17e6)


def test_short_frames_on_a_slow_link_tell_how_slow_it_is() -> None:
    line = Line(17e6)
    line.frames(40)
    line.rate = 1.2e6
    for _ in range(2 * limits.METER_SAMPLES + 2):  # it takes two of them to make up a sample
        line.rest()
        line.frames(1, burst=16 << 10)
    assert line.meter.rate(line.now) == pytest.approx(1.2e6)


def test_a_link_beside_which_others_are_busy_is_no_slower_than_alone() -> None:
    line = Line(12e6)
    line.frames(40)
    assert line.meter.is_alone
    line.rate = 3e6  # its share of what the device can carry
    for _ in range(10):
        line.frames(20, shared=True)
    assert line.meter.rate(line.now) == pytest.approx(12e6)
    line.frames(30)  # the others are done, and it is still as slow
    assert line.meter.rate(line.now) == pytest.approx(3e6)


def test_a_link_that_is_never_alone_is_as_fast_as_its_share() -> None:
    line = Line(3e6)
    line.frames(20, shared=True)
    assert line.meter.rate(line.now) == pytest.approx(3e6)
    assert not line.meter.is_alone
    line.rate = 5e6
    line.frames(40, shared=True)
    assert line.meter.rate(line.now) == pytest.approx(5e6), "it has become faster"


def test_one_frame_that_was_not_alone_makes_a_sample_shared() -> None:
    """Otherwise links that are busy in turn, each for a moment, would never be measured."""
    line = Line(0.6e6)
    for _ in range(20):
        line.frames(1, shared=True)
        line.rate = 0.5e6
        line.frames(1)
    assert line.meter.rate(line.now) == pytest.approx(0.5e6, rel=0.15)
    assert line.meter.is_alone, "a frame of 0.13 s is a sample by itself"
    short = Line(5e6)
    for k in range(40):
        short.frames(1, shared=k % 2 == 0)  # 13 ms
    assert not short.meter.is_alone
    assert short.meter.rate(short.now) == pytest.approx(5e6)


def test_bytes_that_arrive_in_lumps_make_no_sample_too_fast() -> None:
    """TLS delivers records of 16 KiB. Frames of 7,808 bytes and their headers end anywhere in them;
    at 0.13 MB/s a record takes 0.13 s."""
    meter, rate, record, now = Meter(), 0.13e6, 16 << 10, 100.0
    left = record  # of the record that has come last
    seen: list[float] = []
    for _ in range(400):
        if left < 80:
            now, left = now + record / rate, left + record
        left -= 80
        meter.begins(now)
        missing = 7808
        while missing:
            if not left:
                now, left = now + record / rate, record
            size = min(left, missing)
            left, missing = left - size, missing - size
            meter.arrived(now, size)
        meter.ends(now)
        if (known := meter.rate(now)) is not None:
            seen.append(known)
    payload = 7808 / 7888  # the rest is headers
    assert len(seen) > 100
    assert max(seen) == pytest.approx(payload * rate, rel=0.02)
    assert min(seen) == pytest.approx(payload * rate, rel=0.02)


def test_a_frame_that_had_to_be_waited_for_does_not_mark_the_sample_before() -> None:
    line = Line(0.6e6)
    line.frames(2, burst=2 * FRAME - limits.METER_LEAST_BYTES)
    assert not line.meter.is_alone, "no sample is taken while more may follow"
    line.rest(limits.METER_GAP_SECONDS / 2)
    line.frames(1, shared=True)
    assert line.meter.is_alone


def test_a_long_frame_that_was_not_alone_makes_shared_samples_only() -> None:
    line = Line(1e6)
    line.meter.begins(line.now, shared=True)
    for _ in range(256):  # 1 MiB
        line.now += 4096 / line.rate
        line.meter.arrived(line.now, 4096)
    line.meter.ends(line.now)
    line.rest()
    assert line.meter.rate(line.now) == pytest.approx(1e6)
    assert not line.meter.is_alone


def test_short_frames_that_were_not_alone_mark_no_sample_that_comes_later() -> None:
    line = Line(1e6)
    for old in (0.0, 2 * limits.METER_REST_SECONDS):
        line.frames(1, shared=not old)  # shorter than a sample
        line.rest(0.1 + old)
        line.rate = 0.5e6
        line.frames(2, burst=2 * FRAME - limits.METER_LEAST_BYTES)
        line.rest()
        assert line.meter.rate(line.now) == pytest.approx(0.5e6)
        assert line.meter.is_alone


def test_a_meter_says_since_when_its_link_has_been_busy() -> None:
    line = Line(1e6)
    assert line.meter.busy_since(line.now) is None
    assert not line.meter.was_busy(line.now)
    began = line.now
    line.frames(3)
    assert line.meter.busy_since(line.now) == began
    line.rest(2 * limits.METER_GAP_SECONDS)
    assert line.meter.busy_since(line.now) is None
    assert line.meter.was_busy(line.now)
    line.rest(limits.SHARED_SECONDS)
    assert not line.meter.was_busy(line.now)
    line.meter.begins(line.now)
    line.rest()
    assert line.meter.was_busy(line.now)
    assert line.meter.busy_since(line.now) == line.now - 0.1


def test_what_had_waited_for_its_reader_does_not_count() -> None:
    line = Line(17e6)
    for _ in range(limits.METER_SAMPLES):
        line.rest()
        line.frames(20, burst=200 << 10)
    assert line.meter.rate(line.now) == pytest.approx(17e6)


def test_of_a_fast_link_all_bytes_come_close_behind_each_other() -> None:
    line = Line(5e8)
    line.frames(60)
    assert line.meter.rate(line.now) == pytest.approx(5e8)


def test_bytes_that_took_no_time_are_no_sample() -> None:
    line = Line(1e7)
    line.frames(40, burst=40 * FRAME)
    assert line.meter.rate(line.now) is None


@given(st.floats(1e5, 1e9), st.integers(1000, 30_000), st.integers(0, FRAME))
def test_a_steady_link_is_measured_right(rate: float, read: int, burst: int) -> None:
    line = Line(rate, read)
    for _ in range(3):
        line.rest()
        line.frames(60, burst)
    assert line.meter.rate(line.now) == pytest.approx(rate, rel=0.03)


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
    assert not [e for e in effects if isinstance(e, Report) and e.event == "delay"]


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
    for k in range(30):
        near = [incoming(n, delay=0.001) for n in (b, c)]
        effects = nodes[0].handle(now + k, measured(*near))
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


def test_members_are_told_whose_trainer_does_not_keep_up() -> None:
    hosts, nodes = three()
    a, b = (h.me.node for h in hosts[:2])
    name = hosts[0].me.name

    def hears(keeping_up: KeepingUp, owed_us: int = 0) -> tuple[list[tuple[str, Any]], bool]:
        word = m.Measured((), 50_000, 0, 0, int(keeping_up), owed_us)
        news = nodes[1].monitor.heard(a, word)
        found, nodes[1].context.effects = nodes[1].context.effects, []
        return [(e.event, e.values) for e in found if isinstance(e, Report)], news

    nodes[1].context.effects, nodes[1].context.now = [], 50.0
    assert nodes[1].monitor.waits_for(a) == (KeepingUp.PROMPT, 0.0)
    hears(KeepingUp.PROMPT)
    assert nodes[1].monitor.waits_for(a) == (KeepingUp.PROMPT, 0.0)
    assert hears(KeepingUp.SLOW, 2_000_000) == ([], True)
    assert hears(KeepingUp.SLOW, 2_500_000) == ([], False)
    nodes[1].context.now = 51.0
    assert nodes[1].monitor.waits_for(a) == (KeepingUp.SLOW, 3.5)
    assert hears(KeepingUp.PROMPT) == ([], True)
    late = [("member_late", {"node": name, "away": False})]
    assert hears(KeepingUp.LATE, 3_000_000) == (late, True)
    away = [("member_late", {"node": name, "away": True})]
    assert hears(KeepingUp.AWAY, 3_000_000) == (away, True)
    assert hears(KeepingUp.PROMPT) == ([("member_back", {"node": name, "seconds": None})], True)
    assert nodes[1].monitor.waits_for(b) == nodes[1].debt.standing


def test_a_node_tells_how_its_own_trainer_keeps_up() -> None:
    _, nodes = three()
    now = nodes[0].context.now + limits.TRAINER_FIRST_SECONDS / 2
    nodes[0].debt.give(nodes[0].context.iteration, (0,))
    [word] = told(nodes[0].handle(now, measured(pace=0.05)))
    assert word.keeping_up == KeepingUp.SLOW
    assert word.owed_us > 1e6
