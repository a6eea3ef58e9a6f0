"""What a node does about losses when messages of fences come late, twice, or from the wrong node.

Each test sends a message to a node of a running cluster, mostly without performing the effects, and
checks the effects.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgeagent.planner.standard import StandardPlanner
from protocols import effects, events
from protocols.cluster.policy import Policy
from protocols.cluster.view import make_view
from protocols.member.cycle_table import CycleState
from protocols.member.joining_table import JoiningState
from protocols.network.link_end import LinkEnd
from protocols.rounds import control_word
from protocols.rounds.control_word import ControlWord
from protocols.scheduler.negotiator import Negotiator
from protocols.wire import messages as m
from tests.unit.protocols.clusters import cluster, go_on, line, node_of, policy_of, reach

if TYPE_CHECKING:
    from tests.simulation.world import Host, World

FIRST = (1, 1)  # epoch of the first fence of a founder


def effects_of(world: World, host: Host, event: events.Event) -> list[effects.Effect]:
    """Return the effects of `event` at the host's node, without performing them."""
    return node_of(host).handle(world.now, event)


def said(
    world: World, sender: Host, to: Host, message: m.Message, via: Host | None = None
) -> list[effects.Effect]:
    """Return the effects of a message of `sender` at the node of `to`, without performing them."""
    context = node_of(sender).context
    tags = (context.lineage, context.election.term, 0, 0, 0, 0)
    envelope = context.router.stamp(tags, to.me.node, message)
    return effects_of(world, to, events.Received((via or sender).me.node, envelope))


def sent(wanted: list[effects.Effect]) -> list[m.Message]:
    """Return the messages that the effects send."""
    return [e.envelope.message for e in wanted if isinstance(e, effects.Send)]


def without(policy: Policy, host: Host) -> Policy:
    """Return the policy that follows when `host` is gone."""
    view = policy.view
    members = [x for x in view.members if x.node != host.me.node]
    edges = [e for e in view.edges if host.me.node not in (e.low, e.high)]
    rest = make_view(view.lineage, view.number + 1, members, edges)
    plan = StandardPlanner().plan(rest, 8, ())
    return Policy(policy.term, policy.version + 1, rest, plan.parents, plan.shares, (), "")


def decision(policy: Policy, iteration: int) -> m.Restart:
    """Return a decision to do `iteration` again, with nothing kept."""
    nothing = (b"",) * len(policy.view.members)
    work = tuple(control_word.bits(policy.micro_batches(n)) for n in policy.view.nodes)
    return m.Restart(policy, iteration, False, 1, 1, bytes(32), nothing, work)


def failed_over(seed: int) -> tuple[World, Host, Host]:
    """Return a world that has lost its founder, the host that has been the scheduler since, and the
    other member."""
    world, hosts = cluster(seed)
    world.kill(hosts[0])
    world.run(lambda: all(len(policy_of(h).view.members) == 2 for h in hosts[1:]))
    go_on(world)
    scheduler, other = sorted(hosts[1:], key=lambda h: node_of(h).negotiator is None)
    assert node_of(other).negotiator is None
    return world, scheduler, other


# --- orders that are too old ----------------------------------------------------------------------


def test_a_decision_of_an_old_fence_is_not_stored() -> None:
    world, scheduler, other = failed_over(0)
    restart = decision(policy_of(other), node_of(other).context.iteration)
    assert said(world, scheduler, other, m.Prepare(*FIRST, restart)) == []
    newer = (node_of(other).context.election.term, 9)
    wanted = said(world, scheduler, other, m.Prepare(*newer, restart))
    assert sent(wanted) == [m.Prepared(*newer)]


def test_a_fence_of_an_old_term_freezes_nobody() -> None:
    world, hosts = cluster(0)
    world.say(hosts[1], hosts[2], m.Lead(2, "handed over"))
    assert said(world, hosts[0], hosts[2], m.Fence(*FIRST)) == []
    assert not node_of(hosts[2]).context.freeze.holds


def test_a_report_to_a_fence_that_is_not_open() -> None:
    world, hosts = cluster(0)
    wanted = said(world, hosts[0], hosts[1], m.Fence(*FIRST))
    assert effects.FreezeRound() in wanted
    (report,) = sent(effects_of(world, hosts[1], events.Frozen(b"")))
    assert isinstance(report, m.FenceReport)
    assert (report.fence_term, report.number) == FIRST
    assert said(world, hosts[1], hosts[0], report) == []
    assert node_of(hosts[0]).recovery.fence is None


# --- freezing -------------------------------------------------------------------------------------


def test_a_fence_repeated_freezes_once_and_reports_again() -> None:
    world, hosts = cluster(0)
    assert effects.FreezeRound() in said(world, hosts[0], hosts[1], m.Fence(*FIRST))
    assert said(world, hosts[0], hosts[1], m.Fence(*FIRST)) == [], "the report is on its way"
    reports = sent(effects_of(world, hosts[1], events.Frozen(b"")))
    assert len(reports) == 1
    assert sent(said(world, hosts[0], hosts[1], m.Fence(*FIRST))) == reports


def test_a_frozen_round_that_no_fence_asked_for() -> None:
    world, hosts = cluster(0)
    assert effects_of(world, hosts[1], events.Frozen(b"\1")) == []
    go_on(world)


def test_a_round_that_is_reduced_after_the_fence_came() -> None:
    world, hosts = cluster(0)
    node = node_of(hosts[1])
    world.run(lambda: node.cycle.state is CycleState.REDUCING)
    everything = control_word.bits(tuple(range(world.micro_batches)))
    word = ControlWord(*policy_of(hosts[1]).key, everything, b"", 0.0, b"", b"", True)
    at, attempt = node.context.iteration, node.context.attempt
    assert effects_of(world, hosts[1], events.RoundReduced(at, attempt + 1, word)) == []
    said(world, hosts[0], hosts[1], m.Fence(*FIRST))
    assert effects_of(world, hosts[1], events.RoundReduced(at, attempt, word)) == []
    assert node.cycle.state is CycleState.REDUCING


# --- who is lost ----------------------------------------------------------------------------------


def test_nobody_loses_a_link_to_itself() -> None:
    world, hosts = cluster(0)
    lost = m.LinkLost(hosts[1].me.node, True)
    assert said(world, hosts[1], hosts[0], lost) == []
    assert node_of(hosts[0]).recovery.fence is None
    go_on(world)
    assert len(world.members) == 3


def test_dropped_by_a_node_that_is_no_neighbour() -> None:
    world, hosts = line(0, 3)
    assert said(world, hosts[2], hosts[0], m.Dropped(), via=hosts[1]) == []
    assert list(node_of(hosts[0]).context.links) == [hosts[1].me.node]
    go_on(world)


def test_expelled_by_a_decision() -> None:
    world, hosts = cluster(0)
    node = node_of(hosts[1])
    restart = decision(without(policy_of(hosts[1]), hosts[1]), node.context.iteration)
    wanted = said(world, hosts[0], hosts[1], m.Commit(*FIRST, restart))
    assert sent(wanted) == [m.Committed(*FIRST)]
    assert effects.Depart("expelled", "") in wanted
    assert node.over


def test_an_isolated_member_yields_at_once() -> None:
    world, hosts = cluster(0, size=2)
    node = node_of(hosts[1])
    world.run(lambda: node.cycle.state is CycleState.COMPUTING)
    world.cut(hosts[0], hosts[1])
    wanted = effects_of(world, hosts[1], events.YieldWanted())
    assert effects.Depart("yielded", "") in wanted
    assert node.over


# --- the new scheduler ----------------------------------------------------------------------------


def test_an_entry_that_the_last_scheduler_decided_ends_a_fresh_join() -> None:
    world, hosts = cluster(0)
    policy = policy_of(hosts[1])
    before = replace(without(policy, hosts[2]), term=1, version=1)
    heir = Negotiator(hosts[1].me.node, 2, before, world.micro_batches, StandardPlanner())
    heir.joins.request(world.now, m.JoinRequest(hosts[2].me, ()))
    assert [join.joiner for join in heir.joins.open.values()] == [hosts[2].me]
    heir.in_force(world.now, policy)
    assert heir.joins.open == {}


def test_who_asks_to_leave_and_is_out_already_is_told_if_it_is_a_neighbour() -> None:
    world, hosts = cluster(0)
    near = world.join(7, hosts[0])
    reach(world, near, JoiningState.REQUESTED)
    assert policy_of(hosts[0]).view.member(near.me.node) is None
    (told,) = sent(said(world, near, hosts[0], m.LeaveRequest(1)))
    assert told == m.Welcome(hosts[0].me.node, policy_of(hosts[0]), node_of(hosts[0]).context.steps)
    world.unlink(hosts[0], near, LinkEnd.RESET)
    assert sent(said(world, near, hosts[0], m.LeaveRequest(1), via=hosts[1])) == []


def test_a_leaver_waits_for_the_end_of_its_last_round_unless_that_is_frozen() -> None:
    world, hosts = cluster(0)
    hosts[1].handle(events.LeaveWanted())
    leaver, later = node_of(hosts[1]), without(policy_of(hosts[0]), hosts[1])
    told = m.Welcome(hosts[0].me.node, later, leaver.context.steps)
    said(world, hosts[0], hosts[1], told)
    assert not leaver.over
    leaver.context.freeze.asked()
    said(world, hosts[0], hosts[1], told)
    assert leaver.over
