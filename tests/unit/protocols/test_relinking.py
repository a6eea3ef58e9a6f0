"""Links that have ended are dialled again: at which addresses, and when."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgeagent.planner.standard import StandardPlanner
from protocols import limits
from protocols.cluster.policy import Policy
from protocols.cluster.view import edge, make_view
from protocols.effects import Dial, Trust
from protocols.events import DialFailed, Faulty, LinkDown, LinkUp, Located, Tick
from protocols.network.link_end import LinkEnd
from protocols.wire import messages as m
from tests.unit.protocols.clusters import cluster, go_on, node_of, policy_of
from tests.unit.protocols.test_recovery import sent

if TYPE_CHECKING:
    from tests.simulation.world import Host, World


def dials(world: World, host: Host, event: object) -> list[Dial]:
    wanted = node_of(host).handle(world.now, event)  # type: ignore[arg-type]
    return [e for e in wanted if isinstance(e, Dial)]


def lose(world: World, host: Host, other: Host, why: LinkEnd) -> list[Dial]:
    host.links.pop(other.me.node, None)
    return dials(world, host, LinkDown(other.me.node, why))


def test_only_who_may_come_back_is_dialled() -> None:
    for why in LinkEnd:
        world, hosts = cluster(0)
        found = lose(world, hosts[0], hosts[1], why)
        not_now = why.proves_departure or why is LinkEnd.PROTOCOL_ERROR
        assert [d.member.node for d in found] == ([] if not_now else [hosts[1].me.node])


def test_who_has_broken_the_protocol_is_trusted_and_dialled_after_pauses_that_grow() -> None:
    world, hosts = cluster(0, size=2)
    node, peer = node_of(hosts[0]), hosts[1].me
    for pause in (5.0, 10.0, 20.0):
        assert lose(world, hosts[0], hosts[1], LinkEnd.PROTOCOL_ERROR) == []
        assert dials(world, hosts[0], Located(peer.node, (f"192.0.2.7:{pause:.0f}",), 1, b"")) == []
        world.now += pause - 0.1
        assert dials(world, hosts[0], Tick()) == []
        assert node.deadline is not None
        assert node.deadline <= world.now + 0.11
        world.now += 0.2
        wanted = node.handle(world.now, Tick())
        (trust,) = (e for e in wanted if isinstance(e, Trust))
        (dial,) = (e for e in wanted if isinstance(e, Dial))
        assert wanted.index(trust) < wanted.index(dial)
        assert trust.member.node == dial.member.node == peer.node
        node.handle(world.now, LinkUp(peer))


def test_who_was_accused_of_what_it_has_sent_is_dialled_no_more() -> None:
    world, hosts = cluster(0, size=2)
    node, peer = node_of(hosts[0]), hosts[1].me.node
    node.handle(world.now, Faulty(peer, "a sum that cannot be"))
    assert lose(world, hosts[0], hosts[1], LinkEnd.PROTOCOL_ERROR) == []
    world.now += limits.OFFENCE_SECONDS + 0.1
    assert dials(world, hosts[0], Tick()) == []
    node.recovery._gone[peer] = LinkEnd.SILENT  # a pair that an accusation without bytes has parted
    assert [d.member.node for d in dials(world, hosts[0], Tick())] == [peer]


def test_the_pause_before_a_member_is_trusted_again_has_a_limit() -> None:
    world, hosts = cluster(0, size=2)
    relinking, peer = node_of(hosts[0]).recovery.relinking, hosts[1].me.node
    for _ in range(2000):
        relinking.broke_protocol(world.now, peer)
    relinking.watch(world.now, [peer])
    assert relinking.deadline == world.now + limits.OFFENCE_MOST_SECONDS


def test_a_dial_that_failed_is_tried_again_after_a_while() -> None:
    world, hosts = cluster(0, size=2)
    assert lose(world, hosts[0], hosts[1], LinkEnd.RESET)
    peer = hosts[1].me.node
    assert dials(world, hosts[0], Tick()) == []
    assert dials(world, hosts[0], DialFailed(peer)) == []
    world.now += limits.RETRY_SECONDS
    assert [d.member.node for d in dials(world, hosts[0], Tick())] == [peer]
    assert dials(world, hosts[0], DialFailed(b"s" * 32)) == []


def test_who_has_moved_is_dialled_at_once_where_it_was_found() -> None:
    world, hosts = cluster(0, size=2)
    peer, new = hosts[1].me, "192.0.2.7:1"
    lose(world, hosts[0], hosts[1], LinkEnd.SILENT)
    (found,) = dials(world, hosts[0], Located(peer.node, (new,), 1, b""))
    assert found.member == replace(peer, addresses=(new, *peer.addresses))
    assert dials(world, hosts[0], Located(peer.node, (new,), 1, b"")) == []
    for other, where in ((b"s" * 32, (new,)), (peer.node, ())):
        assert dials(world, hosts[0], Located(other, where, 1, b"")) == []


def test_a_new_link_shows_where_a_member_is_now() -> None:
    world, hosts = cluster(0, size=2)
    peer, new = hosts[1].me, "192.0.2.7:1"
    lose(world, hosts[0], hosts[1], LinkEnd.SILENT)
    dials(world, hosts[0], LinkUp(replace(peer, addresses=(new,))))
    (found,) = dials(world, hosts[0], LinkDown(peer.node, LinkEnd.RESET))
    assert found.member.addresses[0] == new


def test_a_member_that_was_away_learns_from_a_new_link_that_the_others_went_on() -> None:
    world, hosts = cluster(0)
    policy = policy_of(hosts[1])
    others = [m for m in policy.view.members if m.node != hosts[1].me.node]
    lineage, number = policy.view.lineage, policy.view.number
    for of, version, gone in ((b"x" * 16, 9, False), (lineage, -1, False), (lineage, 9, True)):
        view = make_view(of, number + 1, others, [edge(others[0].node, others[1].node)])
        plan = StandardPlanner().plan(view, 8, ())
        newer = Policy(1, policy.version + version, view, plan.parents, plan.shares, (), "")
        world.say(hosts[0], hosts[1], m.Welcome(hosts[0].me.node, newer, 9))
        assert (hosts[1].gone == "expelled") is gone


def test_a_link_that_stands_still_again_and_again_is_given_up() -> None:
    world, hosts = cluster(0)
    for k in range(1, limits.MOST_STALLS + 1):
        found = lose(world, hosts[0], hosts[1], LinkEnd.STALLED)
        assert bool(found) is (k < limits.MOST_STALLS)
        dials(world, hosts[0], LinkUp(hosts[1].me))


def test_links_that_stand_still_seldom_are_not_given_up() -> None:
    world, hosts = cluster(1)
    for _ in range(2 * limits.MOST_STALLS):
        assert lose(world, hosts[0], hosts[1], LinkEnd.STALLED)
        dials(world, hosts[0], LinkUp(hosts[1].me))
        node_of(hosts[0]).debt.began()  # no trainer owes anything for so long
        world.now += limits.STALLS_WITHIN_SECONDS / (limits.MOST_STALLS - 1)


def test_a_link_that_was_given_up_is_one_no_more_though_its_other_end_opens_it() -> None:
    world, hosts = cluster(0)
    one, other = hosts[1], hosts[2]
    for _ in range(limits.MOST_STALLS):
        world.run(lambda: other.me.node in one.links and one.me.node in other.links)
        world.unlink_for(one, other, LinkEnd.STALLED, LinkEnd.RESET)
    pair = edge(one.me.node, other.me.node)
    world.run(lambda: all(pair not in policy_of(h).view.edges for h in hosts))
    assert not node_of(one).recovery.relinking.deadline
    go_on(world)


def test_a_link_that_was_opened_anew_is_told_of_until_there_is_a_fence() -> None:
    world, hosts = cluster(0)
    one, other = node_of(hosts[1]), hosts[2].me
    one.handle(world.now, LinkDown(other.node, LinkEnd.RESET))
    one.handle(world.now, LinkUp(other))
    for seconds in (limits.RETRY_SECONDS, limits.RETRY_SECONDS):
        world.now += seconds
        wanted = one.handle(world.now, Tick())
        assert m.LinkLost(other.node, False) in sent(wanted)
    one.context.freeze.asked()
    world.now += limits.RETRY_SECONDS
    assert m.LinkLost(other.node, False) not in sent(one.handle(world.now, Tick()))
