"""What lets a member that is cut off go on: news of those for which it waits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from edgeagent.planner.standard import StandardPlanner
from protocols import events, limits
from protocols.cluster.policy import Policy
from protocols.cluster.view import edge, make_view
from protocols.recovery.recovery import CUT_OFF_SECONDS
from protocols.wire import messages as m
from tests.simulation.world import member
from tests.unit.protocols.clusters import cluster, go_on, line, node_of, policy_of
from tests.unit.protocols.test_recovery import effects_of, sent

if TYPE_CHECKING:
    from tests.simulation.world import Host, World


def waits(world: World, host: Host, seconds: float = 60.0) -> bool:
    """Run for so long; return whether `host` is at the same iteration as before."""
    until, before = world.now + seconds, host.iteration
    world.run(lambda: world.now >= until)
    return host.iteration == before


def lose_power(world: World, host: Host) -> None:
    for other in world.hosts.values():
        if other is not host:
            world.cut(host, other)
    host.gone = "no power"


# --- a member that has started again --------------------------------------------------------------


def test_who_pauses_goes_on_once_the_others_are_found_to_have_started_again() -> None:
    world, (first, second) = cluster(0, size=2, pauses=True)
    lose_power(world, first)
    assert waits(world, second)
    gone, node = first.me, node_of(second)
    for incarnation in (gone.incarnation, gone.incarnation - 1):
        second.handle(events.Located(gone.node, gone.addresses, incarnation, b""))
        assert not node.recovery._has_departed(gone.node)
    second.handle(events.Located(gone.node, gone.addresses, gone.incarnation + 1, b""))
    go_on(world)
    assert policy_of(second).view.nodes == (second.me.node,)


def test_members_that_are_no_neighbours_can_have_started_again_too() -> None:
    world, (first, second, third) = line(0, 3, pauses=True)
    lose_power(world, third)
    lose_power(world, second)
    assert waits(world, first)
    for gone in (second.me, third.me):
        anew = events.Located(gone.node, gone.addresses, gone.incarnation + 1, b"")
        first.handle(anew)
    go_on(world)
    assert policy_of(first).view.nodes == (first.me.node,)


def test_who_is_in_our_lineage_again_is_not_taken_for_dead() -> None:
    """The others have gone on without this member, and it would go on beside them."""
    world, (first, second) = cluster(0, size=2, pauses=True)
    lose_power(world, first)
    assert waits(world, second)
    gone, lineage = first.me, node_of(second).context.lineage
    anew = events.Located(gone.node, gone.addresses, gone.incarnation + 1, lineage)
    second.handle(anew)
    assert waits(world, second)


def test_that_a_member_has_started_again_is_forgotten_once_the_view_names_it() -> None:
    _, hosts = cluster(0, size=4)
    node, gone = node_of(hosts[0]), hosts[3].me
    hosts[0].handle(events.Located(gone.node, gone.addresses, 2, b""))
    assert node.recovery._anew == {gone.node: 2}
    view = policy_of(hosts[0]).view
    for life, left in ((1, {gone.node: 2}), (2, {})):
        others = [member for member in view.members if member.node != gone.node]
        named = [*others, replace(gone, incarnation=life)]
        after = make_view(view.lineage, view.number + 1, named, view.edges)
        node.recovery.switched(view, after)
        assert node.recovery._anew == left


def test_that_a_member_has_started_again_is_told_once() -> None:
    world, hosts = cluster(0, pauses=True)
    gone = hosts[0].me
    anew = events.Located(gone.node, gone.addresses, gone.incarnation + 1, b"")
    told = m.LinkLost(gone.node, True)
    assert told in sent(effects_of(world, hosts[1], anew))
    assert told not in sent(effects_of(world, hosts[1], anew))


# --- a policy that was missed ---------------------------------------------------------------------


class Voter:
    """A member whose others are out of reach, and a neighbour that no policy names there."""

    def __init__(self, *, cut_off: bool = True) -> None:
        self.world, hosts = cluster(0)
        self.voter = hosts[2]
        self.candidate = self.world.add(7)
        if cut_off:
            for host in hosts[:2]:
                lose_power(self.world, host)
            waits(self.world, self.voter, CUT_OFF_SECONDS + 0.5)
        self.context = node_of(self.voter).context
        self.policy = policy_of(self.voter)
        self.context.links[member(7).node] = member(7)
        self.context.links[member(8).node] = member(8)

    def hears(self, message: m.Message, *, number: int = 7) -> list[m.Message]:
        """Return what is sent when the voter hears this of the neighbour of this number."""
        sender = member(number).node
        node = node_of(self.voter)
        node._deliver(self.world.now, sender, message)
        wanted, self.context.effects = self.context.effects, []
        return sent(wanted)

    def wants_vote(self, policy: Policy, *, number: int = 7) -> list[m.Message]:
        term = max(self.context.election.voted_term, self.context.election.term) + 1
        return self.hears(m.VoteRequest(term, *policy.key, False), number=number)

    def newer(self, *, versions: int = 1) -> Policy:
        """Return a policy that lets the neighbour in."""
        old = self.policy.view
        edges = [*old.edges, edge(self.voter.me.node, member(7).node)]
        view = make_view(old.lineage, old.number + 1, [*old.members, member(7)], edges)
        plan = StandardPlanner().plan(view, sum(self.policy.shares), ())
        version = self.policy.version + versions
        return Policy(self.policy.term, version, view, plan.parents, plan.shares, (), "")


def test_who_is_cut_off_fetches_the_policy_with_which_a_candidate_has_entered() -> None:
    bench = Voter()
    policy = bench.newer()
    first = bench.wants_vote(policy)
    assert m.PolicyFetch(*policy.key) in first
    assert [x.granted for x in first if isinstance(x, m.Vote)] == [False]
    bench.hears(m.PolicyBody(policy), number=8)
    assert policy.key not in bench.context.policies, "only the one that was asked is believed"
    assert bench.hears(m.PolicyBody(policy)) == [], "its scheduler may not count this as stored"
    assert bench.context.policies[policy.key] == policy
    bench.hears(m.PolicyBody(replace(policy, reason="another one")))
    assert bench.context.policies[policy.key] == policy, "what is stored is never replaced"
    second = bench.wants_vote(policy)
    assert [x.granted for x in second if isinstance(x, m.Vote)] == [True]
    assert not any(isinstance(x, m.PolicyFetch) for x in second)


@pytest.mark.parametrize(
    ("cut_off", "versions", "number"),
    [(False, 1, 7), (True, 0, 7), (True, limits.MAX_VERSION_STEP + 1, 7), (True, 1, 9)],
    ids=["not cut off", "not newer", "not credible", "no neighbour"],
)
def test_no_other_policy_of_a_stranger_is_fetched(
    cut_off: bool, versions: int, number: int
) -> None:
    bench = Voter(cut_off=cut_off)
    found = bench.wants_vote(bench.newer(versions=versions), number=number)
    assert not any(isinstance(x, m.PolicyFetch) for x in found)


# --- after the last step --------------------------------------------------------------------------


def test_who_pauses_ends_although_the_others_have_ended_unseen() -> None:
    world, (first, second) = cluster(0, size=2, steps=40, pauses=True)
    world.run(lambda: first.iteration == second.iteration == 40)
    lose_power(world, first)
    world.run(lambda: second.gone is not None, 2 * limits.PAUSED_END_SECONDS)
    assert second.gone == "steps"
