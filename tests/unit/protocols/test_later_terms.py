"""A candidate that obeys the scheduler of a later term, which is lost, gets the votes of members
that reach the scheduler of an earlier one."""

from __future__ import annotations

import pytest

from tests.unit.protocols.clusters import cluster, go_on, node_of


def test_an_old_scheduler_lets_itself_be_replaced_if_a_later_one_is_lost() -> None:
    world, hosts = cluster(0, pauses=True)
    old, heirs = hosts[0], hosts[1:]
    for heir in heirs:
        world.cut(old, heir)
    world.run(lambda: any(node_of(h).context.election.leads for h in heirs))
    later, other = sorted(heirs, key=lambda h: not node_of(h).context.election.leads)
    world.run(lambda: node_of(other).context.freeze.holds)
    assert node_of(other).context.election.term == 2
    world.cut(later, other)
    later.gone = "killed"
    world.severed.pop((old.me.node, other.me.node))
    world.severed.pop((other.me.node, old.me.node))
    assert node_of(old).context.election.leads
    go_on(world)
    assert node_of(old).context.election.term == node_of(other).context.election.term > 2


@pytest.mark.parametrize(("frozen_s", "granted"), [(1.0, False), (10.0, True)])
def test_who_is_frozen_for_long_votes_although_it_reaches_its_scheduler(
    frozen_s: float, granted: bool
) -> None:
    world, hosts = cluster(0)
    voter, candidate = hosts[2], hosts[1].me.node
    context = node_of(voter).context
    node_of(voter).recovery.fenced.asked(world.now, hosts[0].me.node, (1, 1))
    assert context.freeze.holds
    context.now = world.now + frozen_s
    assert node_of(voter).recovery.content(candidate) is not granted
