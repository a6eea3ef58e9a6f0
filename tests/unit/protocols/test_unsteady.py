"""Links that break again and again are not asked for anew, whoever is the scheduler."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from protocols import limits
from protocols.cluster.view import edge
from protocols.recovery.unsteady import Unsteady
from protocols.wire import messages as m
from tests.unit.protocols.clusters import cluster, enter, node_of, policy_of, settle
from tests.unit.protocols.records import node

WITHIN = limits.STALLS_WITHIN_SECONDS
PAUSE = limits.LET_GO_SECONDS


def test_a_link_is_spared_after_it_was_lost_often_and_until_that_is_long_ago() -> None:
    links = Unsteady()
    for k in range(limits.MOST_STALLS - 1):
        links.lost(float(k), node(1), node(2))
    links.lost(0.5, node(3), node(1))
    assert links.until == {}
    links.lost(50.0, node(2), node(1))
    assert links.until == {edge(node(1), node(2)): (WITHIN, 50.0 + PAUSE)}
    links.lost(60.0, node(2), node(1))  # the first of the last three was at 1 s
    assert links.until == {edge(node(1), node(2)): (1.0 + WITHIN, 60.0 + PAUSE)}


def test_losses_of_long_ago_are_forgotten() -> None:
    links = Unsteady()
    for _ in range(limits.MOST_STALLS):
        links.lost(0.0, node(1), node(2))
    links.lost(WITHIN + 1.0, node(3), node(4))
    assert links.until == {}


@pytest.mark.parametrize("losses", range(limits.MOST_STALLS + 1))
def test_no_scheduler_asks_for_a_link_that_was_lost_often(losses: int) -> None:
    world, hosts = cluster(0, size=3)
    leader = node_of(next(h for h in hosts if node_of(h).negotiator is not None))
    one, two = (h.me.node for h in hosts if node_of(h) is not leader)
    for _ in range(losses):
        leader.recovery.link_lost(world.now, one, two, reset=False)
        leader.recovery.losses.renewed(one, two)
    policy = leader.context.policy
    assert policy is not None
    center = leader.context.node
    view = replace(policy.view, edges=tuple(e for e in policy.view.edges if e != edge(one, two)))
    parents = tuple(b"" if n == center else center for n in view.nodes)
    star = replace(policy, view=view, parents=parents)
    for _ in range(2):  # the second time as a scheduler that has just begun
        leader.succession.lead(world.now, star)
        negotiator = leader.negotiator
        assert negotiator is not None
        asked = [x for _, x in negotiator.tick(world.now) if isinstance(x, m.OpenLinks)]
        assert len(asked) == (losses < limits.MOST_STALLS)


def test_a_spared_link_is_opened_if_the_cluster_would_be_in_parts_without_it() -> None:
    world, hosts = cluster(0, size=2)
    leader = node_of(next(h for h in hosts if node_of(h).negotiator is not None))
    negotiator, (pair,) = leader.negotiator, policy_of(hosts[0]).view.edges
    assert negotiator is not None
    negotiator.asked_links.spare(pair, world.now + 1000.0, 0.0)
    apart = replace(negotiator.policy.view, edges=())
    negotiator._agenda.policy = SimpleNamespace(view=apart, stripes=())  # type: ignore[assignment]
    assert [type(x) for _, x in negotiator._repair()] == [m.OpenLinks]


def test_a_device_whose_only_link_breaks_often_waits_a_minute_and_others_join() -> None:
    world, hosts = cluster(0, size=2)
    leader = node_of(hosts[0])
    joiner = world.join(9, hosts[0])
    enter(world, joiner)
    settle(world)
    ours, theirs = (h.me.node for h in (hosts[0], joiner))
    for _ in range(limits.MOST_STALLS):
        leader.recovery.link_lost(world.now, ours, theirs, reset=False)
        leader.recovery.losses.renewed(ours, theirs)
    world.vanish(joiner)
    settle(world)
    negotiator = leader.negotiator
    assert negotiator is not None
    request = m.JoinRequest(replace(joiner.me, incarnation=2), (hosts[0].me.name,))
    *_, (to, refusal) = negotiator.joins.request(world.now, request)
    assert (to, type(refusal)) == (theirs, m.JoinAborted)
    assert isinstance(refusal, m.JoinAborted)
    assert "again and again" in refusal.reason
    assert 0 < refusal.pause_ms <= 1000 * PAUSE
    near = replace(request, neighbours=tuple(h.me.name for h in hosts))
    asked = [n for n, x in negotiator.joins.request(world.now, near) if isinstance(x, m.Introduce)]
    assert asked == [hosts[1].me.node]
    negotiator.joins.give_up(next(iter(negotiator.joins.open)), "for the test")
    later = negotiator.joins.request(world.now + PAUSE, request)
    assert [n for n, x in later if isinstance(x, m.Introduce)] == [ours]


@pytest.mark.parametrize("counts", [True, False])
def test_a_newcomer_is_let_in_without_the_link_that_broke_in_each_of_its_joins(
    counts: bool,
) -> None:
    """`counts`: the link was one of the join, and broke; otherwise it was reported as missing."""
    world, hosts = cluster(0, size=3)
    leader = node_of(hosts[0])
    negotiator = leader.negotiator
    assert negotiator is not None
    newcomer = replace(hosts[0].me, node=node(9), name="newcomer")
    near = tuple(h.me.name for h in hosts)
    bad = hosts[1].me.node

    def asked() -> list[bytes]:
        letters = negotiator.joins.request(world.now, m.JoinRequest(newcomer, near))
        return [n for n, x in letters if isinstance(x, m.Introduce)]

    for _ in range(limits.MOST_STALLS):
        assert bad in asked()
        (join,) = negotiator.joins.open.values()
        join.links = join.neighbours if counts else ()
        leader.recovery.link_lost(world.now, bad, newcomer.node, reset=False)
        assert bad not in join.links
        leader.recovery.link_lost(world.now, bad, newcomer.node, reset=False)  # the same once more
        if join.number in negotiator.joins.open:
            negotiator.joins.give_up(join.number, "for the test")
    found = asked()
    assert len(found) == (2 if counts else 3)
    assert (bad in found) is not counts


def test_links_that_end_with_a_process_are_not_counted() -> None:
    world, hosts = cluster(0, size=3)
    leader = node_of(hosts[0])
    one, two = (h.me.node for h in hosts[1:])
    for _ in range(limits.MOST_STALLS):
        leader.recovery.link_lost(world.now, one, two, reset=True)
        leader.recovery.losses.renewed(one, two)
    assert leader.recovery._unsteady.until == {}
