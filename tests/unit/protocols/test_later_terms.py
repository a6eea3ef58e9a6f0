"""A candidate that obeys the scheduler of a later term, which is lost, gets the votes of members
that reach the scheduler of an earlier one."""

from __future__ import annotations

import pytest

from protocols.cluster.election import Role
from tests.unit.protocols.clusters import cluster, go_on, node_of, policy_of


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


@pytest.mark.parametrize("smaller", [True, False])
def test_of_two_that_lead_in_one_term_one_stands_in_a_later_one(smaller: bool) -> None:
    """Two of five obey either of them, so neither has the quorum that its fence needs."""
    world, hosts = cluster(0, size=5, pauses=True)
    leader = next(h for h in hosts if node_of(h).context.election.leads)
    *others, lost = (h for h in hosts if h is not leader)
    rival = next(h for h in others if (h.me.node < leader.me.node) is smaller)
    others.remove(rival)
    before = node_of(leader).context.election.term
    for host in (rival, others[0]):
        node_of(host).context.election.scheduler = rival.me.node
    election = node_of(rival).context.election  # as after a wait for votes that never came
    election.state, election.by_quorum = Role.SCHEDULER, False
    node_of(rival).succession.lead(world.now, policy_of(rival))
    world.vanish(lost)
    go_on(world)
    terms = {node_of(h).context.election.term for h in (leader, rival, *others)}
    assert len(terms) == 1
    assert terms.pop() > before
