"""Clusters that split, devices that start again, fences that meet joiners: one case at a time."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from edgeagent.planner.standard import StandardPlanner
from protocols import limits
from protocols.cluster.policy import Pull
from protocols.cluster.view import make_view
from protocols.effects import FreezeRound, JoinFailed, Trust
from protocols.events import (
    ExpelWanted,
    LeaveWanted,
    LinkDown,
    LinkUp,
    Received,
    RoundReduced,
    Tick,
)
from protocols.member.cycle_table import CycleState
from protocols.member.joining_table import JoiningState
from protocols.network.link_end import LinkEnd
from protocols.rounds.control_word import ControlWord
from protocols.scheduler.fence import FenceState
from protocols.scheduler.negotiator import Negotiator
from protocols.wire import messages as m
from tests.simulation.world import World
from tests.unit.protocols.clusters import cluster, go_on, node_of, policy_of, reach, state_of
from tests.unit.protocols.records import member, node, star_policy
from tests.unit.protocols.test_recovery import FIRST, effects_of, said, sent

if TYPE_CHECKING:
    from protocols.wire.envelope import Envelope
    from tests.simulation.host import Host

OTHER = b"another lineage."


# --- joiners --------------------------------------------------------------------------------------


def test_a_sponsor_that_does_not_say_how_things_stand() -> None:
    world, hosts = cluster(0)
    joiner = world.join(3, hosts[0])
    world.lose = lambda _sender, receiver, message: (
        receiver is joiner and isinstance(message, m.Welcome)
    )
    began = world.now
    effects_of(world, joiner, Tick())
    assert not any(isinstance(e, JoinFailed) for e in effects_of(world, joiner, Tick()))
    world.run(lambda: world.now > began + limits.LINK_OPEN_SECONDS)
    joiner.handle(Tick())
    assert "does not say" in joiner.joins_failed[0]


def test_a_cluster_that_parts_while_it_is_joined() -> None:
    world, hosts = cluster(0)
    joiner = world.join(3, hosts[0])
    reach(world, joiner, JoiningState.REQUESTED)
    policy = policy_of(hosts[0])
    view = make_view(OTHER, 9, list(policy.view.members), policy.view.edges)
    welcome = m.Welcome(hosts[0].me.node, replace(policy, view=view), 5)
    wanted = said(world, hosts[0], joiner, welcome)
    assert [e.reason for e in wanted if isinstance(e, JoinFailed)] == [
        "the cluster that was to be joined has parted"
    ]


def test_a_joiner_whose_last_host_goes_begins_again_though_it_has_other_links() -> None:
    world, hosts = cluster(0)
    joiner = world.join(3, hosts[0])
    reach(world, joiner, JoiningState.REQUESTED)
    stranger = world.join(4, hosts[1])
    effects_of(world, joiner, LinkUp(stranger.me))
    wanted = effects_of(world, joiner, LinkDown(hosts[0].me.node, LinkEnd.SILENT))
    assert any(isinstance(e, JoinFailed) for e in wanted)


def test_a_fence_ends_a_join_once() -> None:
    world, hosts = cluster(0)
    joiner = world.join(3, hosts[0])
    reach(world, joiner, JoiningState.REQUESTED)
    wanted = said(world, hosts[0], joiner, m.Fence(*FIRST))
    assert sent(wanted) == [m.Outside(*FIRST)]
    assert state_of(joiner) is JoiningState.FAILED
    assert said(world, hosts[0], joiner, m.Fence(*FIRST)) == []


def test_who_may_enter_obeys_one_of_two_schedulers_of_a_term() -> None:
    """One of the two was elected without a quorum (protocol.md, H68)."""
    world, hosts = cluster(0)
    joiner = world.join(3, hosts[0])
    world.lose = lambda _s, _r, message: isinstance(message, m.CaughtUp)
    reach(world, joiner, JoiningState.CAUGHT_UP)
    world.run(lambda: node_of(joiner).cycle.state is CycleState.APPLYING)
    context = node_of(joiner).context
    epoch = (context.election.term + 1, 1)
    said(world, hosts[1], joiner, m.Fence(*epoch))
    assert context.freeze.holds
    assert (context.election.term, context.election.scheduler) == (epoch[0], hosts[1].me.node)
    assert said(world, hosts[2], joiner, m.Fence(*epoch)) == []
    assert context.election.scheduler == hosts[1].me.node


def test_a_parent_whose_link_broke_before_the_pull_began() -> None:
    """The joiner learns who its parent is only as the pull begins (protocol.md, H69)."""
    world, hosts = cluster(0)
    joiner = world.join(3, hosts[0])
    begins: dict[bytes, m.PullBegins] = {}

    def lose(sender: Host, receiver: Host, message: m.Message) -> bool:
        if receiver is joiner and isinstance(message, m.PullBegins):
            begins[sender.me.node] = message
        return receiver is joiner and isinstance(message, m.PullBegins)

    world.lose = lose
    world.run(lambda: len(begins) == 3)
    context = node_of(joiner).context
    first = next(iter(begins.values()))
    plan = context.policies[first.policy_term, first.version].pull_of(joiner.me.node)
    assert plan is not None
    effects_of(world, joiner, LinkDown(plan.parent, LinkEnd.GOODBYE))
    assert state_of(joiner) is JoiningState.WAITING, "it has other links"
    source = next(h for h in hosts if h.me.node != plan.parent)
    wanted = said(world, source, joiner, begins[source.me.node])
    name = world.hosts[plan.parent].me.name
    reasons = [e.reason for e in wanted if isinstance(e, JoinFailed)]
    assert reasons == [f"the link to {name} broke"]


def test_an_answer_to_no_fence() -> None:
    world, hosts = cluster(0)
    assert said(world, hosts[1], hosts[0], m.Outside(*FIRST)) == []
    go_on(world)


def test_a_device_that_began_anew_is_no_loss_to_a_joiner() -> None:
    world, hosts = cluster(0)
    joiner = world.join(3, hosts[0])
    reach(world, joiner, JoiningState.FOLLOWING)
    anew = replace(hosts[1].me, incarnation=hosts[1].me.incarnation + 1)
    assert sent(effects_of(world, joiner, LinkUp(anew))) == []


# --- members --------------------------------------------------------------------------------------


def test_a_device_that_began_anew_is_dead_as_the_member_it_was() -> None:
    world, hosts = cluster(0)
    anew = replace(hosts[1].me, incarnation=hosts[1].me.incarnation + 1)
    messages = sent(effects_of(world, hosts[2], LinkUp(anew)))
    assert m.LinkLost(hosts[1].me.node, True) in messages


def cut_off(world: World, hosts: list[Host]) -> None:
    """Cut the last two of five from the others."""
    few = hosts[3:]
    world.unreachable = lambda host, other: (host in few) != (other in few)
    for a in few:
        for b in hosts[:3]:
            world.cut(a, b)


def test_who_waits_for_the_rest_of_its_cluster_says_so() -> None:
    world, hosts = cluster(0, size=5)
    assert not any(node_of(h).recovery.is_cut_off for h in hosts)
    world.pauses = True
    cut_off(world, hosts)
    world.run(lambda: all(node_of(h).recovery.is_cut_off for h in hosts[3:]), 60.0)
    assert not any(node_of(h).recovery.is_cut_off for h in hosts[:3])


def test_a_scheduler_that_waits_for_a_quorum_is_cut_off() -> None:
    world, hosts = cluster(0, size=5)
    for other in hosts[2:]:
        for near in hosts[:2]:
            world.cut(near, other)
    machine = node_of(hosts[0])
    world.unreachable = lambda host, other: (host in hosts[:2]) != (other in hosts[:2])
    world.run(lambda: machine.recovery.fence is not None)
    fence = machine.recovery.fence
    assert fence is not None
    assert not machine.recovery.is_cut_off
    world.run(lambda: fence.state is FenceState.WAITING)
    assert machine.recovery.is_cut_off


def test_when_a_cluster_parts_its_joiners_are_told() -> None:
    world, hosts = cluster(0, size=2)
    first, second = sorted(hosts, key=lambda h: h.me.node)
    joiner = world.join(3, second)
    reach(world, joiner, JoiningState.REQUESTED)
    world.later(0.0, partial(world.kill, first))
    world.run(lambda: bool(joiner.joins_failed), 60.0)
    assert len(policy_of(second).view.members) == 1


# --- the scheduler --------------------------------------------------------------------------------


def test_a_joiner_that_all_its_sources_have_left_is_given_up() -> None:
    one, two, joiner = node(1), node(2), member(9)
    pulling = star_policy(2, (Pull(7, joiner, (two,), two),))
    scheduler = Negotiator(one, 1, pulling, 4, StandardPlanner())
    scheduler.joins.resume(0.0)
    scheduler.leave_request(two)
    scheduler.in_force(0.0, replace(star_policy(1), version=2))
    mail = scheduler.tick(0.0)
    assert (
        m.EVERYONE,
        m.JoinAborted(7, joiner.node, "all members that it was linked to have left"),
    ) in mail
    assert not scheduler.joins.open


def test_a_scheduler_that_hears_from_one_frozen_in_an_older_term_opens_a_fence() -> None:
    world, hosts = cluster(0)
    machine = node_of(hosts[0])
    view = policy_of(hosts[0]).view
    report = m.FenceReport(
        0, 1, 0, 0, bytes(32), bytes(32), b"", b"", policy_of(hosts[0]), 1, view.nodes, ()
    )
    messages = sent(said(world, hosts[1], hosts[0], report))
    assert any(isinstance(x, m.Fence) for x in messages)
    assert machine.recovery.fence is not None


def test_who_is_frozen_by_a_fence_of_a_term_that_is_over_says_so_again_and_again() -> None:
    world, hosts = cluster(0)
    machine = node_of(hosts[1])
    hosts[0].handle(Tick())
    world.lose = lambda _sender, _receiver, message: isinstance(
        message, m.FenceReport | m.Prepare | m.Commit
    )
    world.say(hosts[0], hosts[1], m.Fence(1, 1))
    world.run(lambda: machine.context.freeze.holds)
    world.say(hosts[2], hosts[1], m.Lead(9, "rotated"))
    told: list[m.Message] = []

    def note(_sender: Host, receiver: Host, message: m.Message) -> bool:
        if receiver is hosts[2] and isinstance(message, m.FenceReport):
            told.append(message)
        return True

    world.lose = note
    world.run(lambda: len(told) >= 2, 10.0)
    assert machine.recovery.is_cut_off or machine.context.freeze.holds


def test_a_round_that_is_reduced_after_the_end_changes_nothing() -> None:
    world, hosts = cluster(0)
    machine = node_of(hosts[1])
    context = machine.context
    word = ControlWord(*policy_of(hosts[1]).key, b"", b"", 0.0, b"", b"", True)
    machine.cycle.leave("left", "")
    event = RoundReduced(context.iteration, context.attempt, word)
    assert effects_of(world, hosts[1], event)[1:] == []


def test_who_says_that_it_lost_a_member_of_before_is_behind() -> None:
    world, hosts = cluster(0, size=4)
    hosts[3].handle(LeaveWanted())
    world.run(lambda: all(len(policy_of(h).view.members) == 3 for h in hosts[:3]))
    messages = sent(said(world, hosts[1], hosts[0], m.LinkLost(hosts[3].me.node, False)))
    assert any(isinstance(x, m.Fence) for x in messages)
    assert sent(effects_of(world, hosts[2], LinkUp(hosts[3].me))) != []
    assert sent(effects_of(world, hosts[2], LinkDown(hosts[3].me.node, LinkEnd.SILENT))) == []


def test_a_report_from_before_the_last_fence_opens_no_other_one() -> None:
    world, hosts = cluster(0, size=5)
    before = policy_of(hosts[1]).key
    world.kill(hosts[4])
    world.run(lambda: all(len(policy_of(h).view.members) == 4 for h in hosts[:4]))
    leader = next(h for h in hosts[:4] if node_of(h).context.election.leads)
    world.run(lambda: not node_of(leader).recovery.has_fence)
    reporter = next(h for h in hosts[:4] if h is not leader)
    context = node_of(reporter).context
    for key, opens in ((before, False), (policy_of(leader).key, True)):
        term, version = key
        at = (context.lineage, term, 1, version, 0, 0)
        lost = context.router.stamp(at, leader.me.node, m.LinkLost(hosts[4].me.node, False))
        found = sent(effects_of(world, leader, Received(reporter.me.node, lost)))
        assert any(isinstance(x, m.Fence) for x in found) == opens


# --- whom nobody hears ----------------------------------------------------------------------------


def expelled(seed: int) -> tuple[World, list[Host]]:
    """Return three members that have expelled the fourth, whose link to the first is still open."""
    world, hosts = cluster(seed, size=4)
    hosts[0].handle(ExpelWanted(hosts[3].me.node))
    world.run(lambda: all(len(policy_of(h).view.members) == 3 for h in hosts[:3]))
    node_of(hosts[0]).context.links[hosts[3].me.node] = hosts[3].me
    return world, hosts


def test_an_expelled_device_is_not_heard() -> None:
    world, hosts = expelled(0)
    old = replace(policy_of(hosts[0]), version=1)
    for message in (m.Fence(9, 1), m.PolicyBody(old), m.Lead(9, "rotated")):
        assert said(world, hosts[3], hosts[0], message) == []
    assert node_of(hosts[0]).context.election.term == 1


def test_an_old_policy_is_not_stored_and_only_the_scheduler_introduces() -> None:
    world, hosts = cluster(0)
    old = replace(policy_of(hosts[1]), version=0)
    assert said(world, hosts[0], hosts[1], m.PolicyBody(old)) == []
    assert said(world, hosts[2], hosts[1], m.Introduce(7, member(9))) == []


def test_an_expelled_device_is_trusted_by_no_policy() -> None:
    world, hosts = expelled(0)
    gone = hosts[3].me
    policy = policy_of(hosts[0])
    body = replace(
        policy,
        version=policy.version + 1,
        view=make_view(policy.view.lineage, 99, list(policy.view.members), policy.view.edges),
        pulls=(Pull(7, gone, (hosts[0].me.node,), hosts[0].me.node),),
    )
    wanted = said(world, hosts[1], hosts[0], m.PolicyBody(body))
    assert Trust(gone) not in wanted


# --- expulsions -----------------------------------------------------------------------------------


def test_an_expulsion_outlives_the_flight_of_its_device() -> None:
    one, two, three = node(1), node(2), node(3)
    scheduler = Negotiator(one, 1, star_policy(3), 6, StandardPlanner())
    assert scheduler.expel(two, three, known=True) == []
    scheduler.in_force(0.0, replace(star_policy(2), version=2))
    assert scheduler.expel(two, three, known=True) == []
    scheduler.tick(0.0)
    assert scheduler.switch is not None
    assert scheduler.switch.policy.view.expelled == (three,)


def test_a_scheduler_that_is_expelled_makes_way_once_nothing_is_open() -> None:
    world, hosts = cluster(0)
    machine = node_of(hosts[0])
    wanted = said(world, hosts[1], hosts[0], m.Expel(hosts[0].me.node))
    assert [type(x) for x in sent(wanted)] == [m.PassRole]
    again = said(world, hosts[1], hosts[0], m.Expel(hosts[0].me.node))
    assert sent(again) == [], "an heir has been asked"
    machine.succession.negotiator = None
    machine.succession.make_way(world.now)


def test_a_scheduler_whose_switch_is_open_does_not_make_way_yet() -> None:
    world, hosts = cluster(0)
    machine = node_of(hosts[0])
    assert machine.negotiator is not None
    machine.negotiator.leave_request(hosts[2].me.node)
    machine.negotiator.tick(world.now)
    assert machine.negotiator.switch is not None
    machine.succession.make_way(world.now)
    assert machine.succession.deadline is None


def test_who_is_alone_keeps_the_role() -> None:
    world = World(0, steps=1000)
    machine = node_of(world.found())
    machine.succession.step_down(world.now)
    assert machine.succession.deadline is None


def test_a_role_that_nobody_takes_is_kept() -> None:
    world, hosts = cluster(0)
    machine = node_of(hosts[0])
    negotiator = machine.negotiator
    assert negotiator is not None
    world.lose = lambda _sender, _receiver, message: isinstance(message, m.PassRole)
    machine.succession.step_down(world.now)
    hosts[0].handle(Tick())
    held_back = [negotiator.passing]
    world.run(lambda: machine.succession.deadline is None, 10.0)
    held_back.append(negotiator.passing)
    assert held_back == [True, False]
    assert machine.negotiator is negotiator
    go_on(world)


def test_a_newer_fence_finds_us_frozen_already() -> None:
    world, hosts = cluster(0)
    first = effects_of(world, hosts[1], Received(hosts[0].me.node, stamped(world, hosts, 1)))
    assert FreezeRound() in first
    since = node_of(hosts[1]).recovery.fenced._frozen_since
    second = effects_of(world, hosts[1], Received(hosts[0].me.node, stamped(world, hosts, 2)))
    assert FreezeRound() in second
    assert node_of(hosts[1]).recovery.fenced._frozen_since == since


def stamped(world: World, hosts: list[Host], number: int) -> Envelope:
    """Return the founder's fence of that number, addressed to the second host."""
    context = node_of(hosts[0]).context
    tags = (context.lineage, context.election.term, 0, 0, 0, 0)
    return context.router.stamp(tags, hosts[1].me.node, m.Fence(1, number))
