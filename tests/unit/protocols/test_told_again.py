"""Nodes that have missed what they were told once, or whom a lost scheduler alone knew: they are
told when they ask again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from protocols import events, limits
from protocols.network.link_end import LinkEnd
from protocols.wire import messages as m
from tests.unit.protocols.clusters import cluster, enter, go_on, node_of, policy_of, state_of
from tests.unit.protocols.test_recovery import said, sent

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.cluster.policy import Policy
    from tests.simulation.world import Host, World


def missing(host: Host, misses: Callable[[Policy], bool]) -> tuple[list[float], Callable[..., Any]]:
    """Have no chunk reach `host` from the first result on whose word names a policy that `misses`
    is true for. Return the time of that, once it has come, and what takes chunks as before."""
    taken, since = host.chunk, list[float]()

    def take(sender: bytes, key: Any, kind: str, chunk: int, value: Any) -> None:
        if kind == "down" and chunk == 0 and not since:
            policy = node_of(host).context.policies.get((value[0].term, value[0].policy))
            if policy is not None and misses(policy):
                since.append(host.world.now)
        if not since:
            taken(sender, key, kind, chunk, value)

    host.chunk = take  # type: ignore[method-assign]
    return since, taken


@pytest.mark.parametrize("seed", range(3))
def test_a_joiner_that_only_a_lost_scheduler_knew_asks_again(seed: int) -> None:
    """Its pull is in force everywhere but at the heir when the scheduler is killed; the fence goes
    on without it."""
    world, hosts = cluster(seed, 4)
    scheduler = next(h for h in hosts if node_of(h).context.election.leads)
    heir = min((h for h in hosts if h is not scheduler), key=lambda h: h.me.node)
    other = next(h for h in hosts if h not in (scheduler, heir))
    since, taken = missing(heir, lambda policy: policy.pull_of(joiner.me.node) is not None)
    joiner = world.join(9, other)
    world.run(lambda: bool(since) and state_of(joiner) in ("following", "caught-up"))
    world.kill(scheduler)
    heir.chunk = taken  # type: ignore[method-assign]
    begun = world.now
    world.run(lambda: bool(joiner.joins_failed))
    assert joiner.joins_failed == ["the scheduler knows no such join"]
    assert world.now - begun < 3 * limits.RETRY_SECONDS
    go_on(world)


def test_a_scheduler_ends_no_join_that_a_stored_policy_names_or_while_it_leads_a_fence() -> None:
    world, hosts = cluster(0, 4)
    number = 77
    stranger = world.join(7, hosts[0])
    world.run(lambda: state_of(stranger) == "requested")
    node = node_of(hosts[0])
    aborted = m.JoinAborted(number, stranger.me.node, "the scheduler knows no such join")
    for message in (
        m.Pulled(number, 1),
        m.CaughtUp(number),
        m.JoinProgress(number, 1, 1, ()),
    ):
        assert aborted in sent(said(world, stranger, hosts[0], message))
    enter(world, stranger)
    assert aborted not in sent(said(world, stranger, hosts[0], m.CaughtUp(number)))
    world.kill(hosts[3])
    world.run(lambda: node.recovery.has_fence)
    assert not node.desk._is_lost(bytes(32), number)
    world.run(lambda: not node.recovery.has_fence)
    assert node.desk._is_lost(bytes(32), number)


@pytest.mark.parametrize("wanted", [events.StandAside(), events.LeaveWanted()])
def test_a_leaver_whose_last_result_is_lost_with_a_link_goes_soon(wanted: events.Event) -> None:
    world, hosts = cluster(1, 4)
    leaver = hosts[1]
    since, taken = missing(leaver, lambda policy: leaver.me.node not in policy.view.nodes)
    leaver.handle(wanted)
    world.run(lambda: bool(since))
    above = policy_of(leaver).tree.parent(leaver.me.node)
    assert above is not None
    parent = world.hosts[above]
    world.run(lambda: leaver.me.node not in policy_of(parent).view.nodes)
    world.unlink(parent, leaver, LinkEnd.SILENT)
    leaver.chunk = taken  # type: ignore[method-assign]
    begun = world.now
    world.run(lambda: leaver.gone is not None)
    assert leaver.gone in ("stalled", "left")
    assert world.now - begun < limits.LEAVER_RESULT_SECONDS + 3 * limits.RETRY_SECONDS
    go_on(world)


def frozen() -> tuple[World, list[Host], m.FenceReport]:
    """Return a world in which the last of four hosts was killed, and the third one, to which no
    decision gets through, has frozen for that and sent the report that is returned."""
    world, hosts = cluster(0, 4)
    reports: list[m.FenceReport] = []

    def lose(sender: Host, receiver: Host, message: m.Message) -> bool:
        if isinstance(message, m.FenceReport) and sender is hosts[2]:
            reports.append(message)
        return isinstance(message, m.Prepare | m.Commit) and receiver is hosts[2]

    world.lose = lose
    world.kill(hosts[3])
    world.run(lambda: bool(reports))
    return world, hosts, reports[-1]


def test_a_member_that_a_decision_left_out_is_told_again_and_needs_no_fence() -> None:
    world, hosts, report = frozen()
    leader = node_of(hosts[0])
    for other in hosts[:2]:
        world.unlink(other, hosts[2], LinkEnd.SILENT)
    world.unreachable = lambda host, other: hosts[2] in (host, other)
    world.run(lambda: hosts[2].me.node not in policy_of(hosts[0]).view.nodes)
    world.run(lambda: not leader.recovery.has_fence)
    late = sent(said(world, hosts[2], hosts[0], report, via=hosts[1]))
    (told,) = [x for x in late if isinstance(x, m.Commit)]
    assert told.restart.policy == policy_of(hosts[0])
    assert not leader.recovery.has_fence
    world, hosts, again = frozen()  # the same world, in which that member is not yet out of reach
    assert again == report
    node_of(hosts[2]).handle(world.now, of(hosts[0], told, hosts[2]))
    assert node_of(hosts[2]).over


def test_reports_that_need_no_answer_get_none() -> None:
    world, hosts, report = frozen()
    leader = node_of(hosts[0])
    assert leader.recovery.has_fence
    late = replace(report, number=report.number + 1)  # to another fence than the one that is open
    assert sent(said(world, hosts[2], hosts[0], late)) == []
    world, hosts = cluster(0, 3)
    stranger = world.join(7, hosts[0])
    world.run(lambda: state_of(stranger) == "requested")
    # There was no fence yet of which a decision could be told.
    answers = sent(said(world, stranger, hosts[0], report))
    assert not any(isinstance(x, m.Commit) for x in answers)
    assert not node_of(hosts[0]).recovery.has_fence


def of(sender: Host, message: m.Message, to: Host) -> events.Received:
    """Return the event that `message` of `sender` comes to `to` over their link."""
    context = node_of(sender).context
    tags = (context.lineage, context.election.term, 0, 0, 0, 0)
    return events.Received(sender.me.node, context.router.stamp(tags, to.me.node, message))


def test_a_frozen_member_reports_again_after_a_while() -> None:
    world, hosts, report = frozen()
    node = node_of(hosts[2])
    again = node.handle(world.now + limits.FENCE_AGAIN_SECONDS / 2, events.Tick())
    assert report not in sent(again)
    again = node.handle(world.now + limits.FENCE_AGAIN_SECONDS, events.Tick())
    assert report in sent(again)
