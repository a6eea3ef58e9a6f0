"""Neighbours that speak in another lineage: when they count as lost, and when they do not."""

from __future__ import annotations

from dataclasses import replace

from protocols import effects, events, limits
from protocols.cluster.ancestry import Ancestor
from protocols.network.routing import Router
from protocols.recovery.elsewhere import NO_LINEAGE, Elsewhere
from protocols.wire import messages as m
from protocols.wire.envelope import Tags
from tests.unit.protocols.clusters import cluster, node_of, policy_of
from tests.unit.protocols.reports import report_of

WAIT = limits.PARTITION_WAIT_SECONDS
OTHER, THIRD = b"o" * limits.LINEAGE_BYTES, b"t" * limits.LINEAGE_BYTES


class Bench:
    """A member of three that hears its neighbour `one`."""

    def __init__(self) -> None:
        _, hosts = cluster(0)
        self.node = node_of(hosts[0])
        self.context = self.node.context
        self.policy = policy_of(hosts[0])
        self.one, self.two = hosts[1].me, hosts[2].me
        self.elsewhere = Elsewhere(self.context)
        self.context.now = 1000.0

    def hears(self, lineage: bytes, *, origin: bytes = b"", incarnation: int = 0) -> bool:
        """Let a message come over the link to `one`, which has sent it unless told otherwise."""
        who, life = origin or self.one.node, incarnation or self.one.incarnation
        tags = Tags(lineage, 1, 1, 1, 1, 0, who, life, 1, b"", 0)
        return self.elsewhere.heard(self.context.now, self.one.node, tags)

    def gone(self, after: float) -> tuple[bytes, ...]:
        return self.elsewhere.gone(self.context.now + after, self.policy.view)

    def tells(self) -> list[bytes]:
        """Return the lost links of which the node tells `two` now."""
        wanted = self.node.handle(self.context.now, events.Tick())
        sent = [x for x in wanted if isinstance(x, effects.Send) and x.to == self.two.node]
        said = [x.envelope.message for x in sent]
        return [x.peer for x in said if isinstance(x, m.LinkLost)]


def test_who_speaks_in_another_lineage_for_long_is_lost() -> None:
    bench = Bench()
    assert bench.hears(OTHER)
    assert bench.gone(WAIT - 0.1) == ()
    assert bench.elsewhere.deadline == bench.context.now + WAIT
    bench.context.now += WAIT
    assert bench.hears(OTHER)
    assert bench.gone(0.0) == (bench.one.node,)


def test_nothing_is_due_while_nobody_is_heard_elsewhere_or_all_count_as_lost() -> None:
    bench = Bench()
    dues = [bench.elsewhere.deadline]
    bench.hears(OTHER)
    bench.context.now += WAIT
    dues.append(bench.elsewhere.deadline)
    assert dues == [None, None]


def test_who_speaks_in_ours_or_in_none_again_is_not_lost() -> None:
    for lineage in (b"", NO_LINEAGE):
        bench = Bench()
        bench.hears(OTHER)
        assert not bench.hears(lineage or bench.context.lineage)
        assert bench.gone(2 * WAIT) == ()


def test_the_time_begins_anew_with_each_lineage() -> None:
    bench = Bench()
    bench.hears(OTHER)
    bench.context.now += WAIT
    bench.hears(THIRD)
    assert bench.gone(0.0) == ()
    assert bench.gone(WAIT) == (bench.one.node,)


def test_who_is_behind_or_no_member_or_gone_is_not_lost_by_that() -> None:
    bench = Bench()
    bench.hears(OTHER, incarnation=bench.one.incarnation + 1)  # another life of the device
    assert bench.gone(WAIT) == ()
    bench.hears(OTHER, origin=bench.two.node)  # passed on, which proves nothing
    assert bench.gone(WAIT) == ()
    bench.hears(OTHER)
    assert bench.gone(WAIT) == (bench.one.node,)
    without = replace(
        bench.policy.view,
        members=tuple(m for m in bench.policy.view.members if m != bench.one),
        edges=(),
    )
    assert bench.elsewhere.gone(bench.context.now + WAIT, without) == ()
    bench.context.ancestors = (Ancestor(OTHER, 1),)
    assert bench.gone(WAIT) == ()
    bench.context.ancestors = ()
    del bench.context.links[bench.one.node]
    assert bench.gone(WAIT) == ()


def test_nobody_waits_for_the_vote_of_who_is_elsewhere() -> None:
    bench = Bench()
    recovery, view = bench.node.recovery, bench.policy.view
    now = bench.context.now
    assert recovery._lost(now, view).nodes == ()
    recovery.elsewhere = bench.elsewhere
    bench.hears(OTHER)
    assert recovery._lost(now + WAIT, view).nodes == (bench.one.node,)
    recovery.losses.note(now, bench.two.node, bench.one.node, reset=False)
    recovery.losses.note(now, bench.context.node, bench.one.node, reset=False)
    assert recovery._lost(now + WAIT, view).nodes == (bench.one.node,)


def test_the_others_are_told_of_who_is_elsewhere() -> None:
    """One that is linked to `two` alone would otherwise count who is elsewhere as in reach."""
    bench = Bench()
    recovery = bench.node.recovery
    recovery.elsewhere = bench.elsewhere
    bench.hears(OTHER)
    assert bench.tells() == []
    bench.context.now += WAIT
    assert bench.tells() == [bench.one.node]
    assert bench.tells() == []
    assert recovery._remind_at in recovery.deadlines
    bench.context.now += limits.RETRY_SECONDS
    assert bench.tells() == [bench.one.node]
    assert (bench.context.node, bench.one.node) not in recovery.losses._broken


# --- what another lineage may order ---------------------------------------------------------------


def heard_in(lineage: bytes, incarnation: int, message: m.Message) -> tuple[bool, list[m.Message]]:
    """Let a member hear its scheduler in a lineage and incarnation, in the term that it knows;
    return whether a fence holds the member then, and what it sends."""
    world, hosts = cluster(0)
    scheduler, node = hosts[0].me, node_of(hosts[1])
    tags = (lineage or node.context.lineage, node.context.election.term, 0, 0, 0, 0)
    router = Router(scheduler.node, incarnation)
    router._sequence = 1000  # later than all that it has sent
    envelope = router.stamp(tags, hosts[1].me.node, message)
    wanted = node.handle(world.now, events.Received(scheduler.node, envelope))
    sent = [x.envelope.message for x in wanted if isinstance(x, effects.Send)]
    return node.context.freeze.holds, sent


def test_a_cluster_that_the_scheduler_has_founded_since_has_no_say_here() -> None:
    """It is in the same term again, so only the incarnation tells them apart (protocol.md, H90)."""
    fence = m.Fence(1, 1)
    assert heard_in(b"", 1, fence)[0]
    assert heard_in(OTHER, 1, fence)[0], "it may have acted on a fork that we have not heard of"
    assert heard_in(OTHER, 2, fence) == (False, [])


def test_reports_from_the_lineage_of_a_stranger_do_not_count_in_a_fence() -> None:
    world, hosts = cluster(0, size=4, pauses=True)
    node = node_of(hosts[0])
    for host in hosts[2:]:
        world.cut(hosts[0], host)
        world.cut(hosts[1], host)
    world.run(lambda: node.recovery.fence is not None and node.recovery.fence.epoch == (1, 1))
    fence, policy = node.recovery.fence, policy_of(hosts[0])
    assert fence is not None
    before = fence.base
    for lineage, counts in ((OTHER, False), (policy.view.lineage, True)):
        view = replace(policy.view, lineage=lineage)
        newer = replace(policy, version=policy.version + 1, view=view)
        report = report_of(newer, iteration=hosts[0].iteration)
        report = replace(report, fence_term=1, number=1)
        node.recovery.reported(world.now, hosts[2].me.node, report)
        assert (hosts[2].me.node in fence._reports) is counts
    assert before.view.lineage == fence.base.view.lineage
