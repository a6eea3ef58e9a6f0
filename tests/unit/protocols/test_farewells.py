"""Which links are closed when a join was given up, which may stay, and which are missing."""

from __future__ import annotations

from protocols import effects, events, limits
from protocols.member.joining_table import JoiningState
from protocols.network.link_end import LinkEnd
from protocols.wire import messages as m
from tests.simulation.world import member
from tests.unit.protocols.clusters import cluster, enter, node_of, policy_of, reach, settle
from tests.unit.protocols.test_guards import STRANGER, effects_of, negotiator_of, said


def closed(wanted: list[effects.Effect]) -> list[effects.Effect]:
    return [e for e in wanted if isinstance(e, effects.Distrust | effects.CloseLink)]


def test_a_joiner_that_was_given_up_has_to_go() -> None:
    world, hosts = cluster(0)
    joiner = world.join(9, hosts[1])
    reach(world, joiner, JoiningState.PULLING)
    (number,) = negotiator_of(hosts[0]).joins.open
    node = joiner.me.node
    aborted = m.JoinAborted(number, node, "no progress")
    other = m.JoinAborted(number + 1, node, "another join")
    assert closed(said(world, hosts[0], hosts[1], other)) == []
    wanted = closed(said(world, hosts[0], hosts[1], aborted))
    assert wanted == [effects.Distrust(node), effects.CloseLink(node)]
    assert closed(said(world, hosts[0], hosts[1], aborted)) == [], "once"
    world.unlink(hosts[2], joiner, LinkEnd.PROCESS_ENDED)
    assert closed(said(world, hosts[0], hosts[2], aborted)) == [effects.Distrust(node)]


def test_a_joiner_that_has_begun_anew_may_stay() -> None:
    world, hosts = cluster(0)
    joiner = world.join(9, hosts[1])
    reach(world, joiner, JoiningState.PULLING)
    (number,) = negotiator_of(hosts[0]).joins.open
    for host in hosts[1:]:
        world.unlink(host, joiner, LinkEnd.PROCESS_ENDED)
        effects_of(world, host, events.LinkUp(joiner.me))
    aborted = m.JoinAborted(number, joiner.me.node, "its link broke")
    assert closed(said(world, hosts[0], hosts[1], aborted)) == []
    said(world, hosts[0], hosts[2], m.Introduce(number + 1, joiner.me))
    assert closed(said(world, hosts[0], hosts[2], aborted)) == []


def test_a_member_may_stay_whatever_is_said_of_its_join() -> None:
    world, hosts = cluster(0)
    joiner = world.join(9, hosts[1])
    reach(world, joiner, JoiningState.PULLING)
    (number,) = negotiator_of(hosts[0]).joins.open
    enter(world, joiner)
    settle(world)
    aborted = m.JoinAborted(number, joiner.me.node, "late")
    assert closed(said(world, hosts[0], hosts[1], aborted)) == []


def test_who_is_expected_is_bounded() -> None:
    world, hosts = cluster(0)
    for number in range(2 * limits.MAX_OPEN_JOINS):
        said(world, hosts[0], hosts[1], m.Introduce(1000 + number, member(100 + number)))
    assert len(node_of(hosts[1]).introductions.expected) == limits.MAX_OPEN_JOINS


def test_only_the_scheduler_has_links_opened() -> None:
    world, hosts = cluster(0)
    message = m.OpenLinks(0, (STRANGER,))
    dial = effects.Dial(STRANGER)
    assert dial not in said(world, hosts[2], hosts[1], message)
    assert dial in said(world, hosts[0], hosts[1], message)


def test_a_scheduler_whose_part_is_over_wants_no_tick() -> None:
    world, hosts = cluster(0)
    world.join(9, hosts[1])
    world.run(lambda: bool(negotiator_of(hosts[0]).joins.open))
    node = node_of(hosts[0])
    assert node.deadline is not None
    node.cycle.leave("left", "")
    assert node.deadline is None


def test_a_join_that_is_entering_is_late_for_nothing() -> None:
    """With this seed the scheduler's own word offers the entry, so a round names it for certain."""
    world, hosts = cluster(1)
    joiner = world.join(9, hosts[1])
    negotiator = negotiator_of(hosts[0])
    world.run(lambda: any(negotiator.joins._enters(j) for j in negotiator.joins.open.values()))
    (join,) = negotiator.joins.open.values()
    join.deadline = world.now - 1.0
    due = negotiator.deadline
    assert due is None or due > world.now
    enter(world, joiner)


def test_a_new_neighbour_without_a_link_is_lost() -> None:
    """The joiner dies when its entry can no longer be stopped."""
    world, hosts = cluster(0, size=1)
    joiner = world.join(9, hosts[0])
    negotiator = negotiator_of(hosts[0])
    world.run(lambda: any(negotiator.joins._enters(j) for j in negotiator.joins.open.values()))
    world.vanish(joiner)
    before = node_of(hosts[0]).context.iteration
    world.run(lambda: node_of(hosts[0]).context.iteration > before + 3)
    assert [m.name for m in policy_of(hosts[0]).view.members] == ["n0"]
