"""Whose orders a member follows: its scheduler's, and no impossible ones.

In each test a member sends something to another member of a running cluster that it has no right to
send, or that is impossible. The test checks the effects; afterwards the cluster must go on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from protocols import limits
from protocols.cluster.election import Election
from protocols.cluster.policy import Electorate, Policy
from protocols.errors import RemoteProtocolError
from protocols.member.joining_table import JoiningState
from protocols.member.orders import may_order
from protocols.wire import messages as m
from tests.unit.protocols.clusters import cluster, go_on, node_of, policy_of
from tests.unit.protocols.records import node
from tests.unit.protocols.test_recovery import decision, said, sent, without

if TYPE_CHECKING:
    from tests.simulation.world import Host, World

FAR = limits.MAX_TERM


def restart_at(host: Host) -> m.Restart:
    """Return a decision that fits the present state of `host`."""
    policy = policy_of(host)
    return decision(replace(policy, version=policy.version + 1), host.iteration)


def calm(world: World, hosts: list[Host]) -> None:
    """Check that no member is frozen, and all go on with the terms they had."""
    assert not any(node_of(host).context.freeze.holds for host in hosts)
    assert [node_of(host).context.election.term for host in hosts] == [1] * len(hosts)
    go_on(world)


@pytest.mark.parametrize(
    "message",
    [m.Fence(1, 5), m.Fence(FAR, 1), m.Lead(FAR, "no one"), m.PassRole(2), m.PassRole(FAR)],
)
def test_who_does_not_lead_orders_nothing(message: m.Message) -> None:
    world, hosts = cluster(0)
    for _ in range(40):
        assert said(world, hosts[1], hosts[2], message) == []
    calm(world, hosts)


def test_the_scheduler_of_another_cluster_orders_nothing() -> None:
    world, hosts = cluster(0)
    stranger = node(9)  # in a later term than ours
    assert may_order(node_of(hosts[2]).context, hosts[1].me.node, 2)
    assert not may_order(node_of(hosts[2]).context, stranger, 2)
    node_of(hosts[2])._deliver(world.now, stranger, m.Fence(2, 1))
    calm(world, hosts)


def test_the_terms_of_another_cluster_are_not_remembered() -> None:
    _, hosts = cluster(0)
    context = node_of(hosts[2]).context
    for term in range(2, 10 * limits.MAX_TERM_STEP, limits.MAX_TERM_STEP):
        assert not may_order(context, node(9), term)
    assert context.election.seen_term <= 1
    assert not context.election.is_credible(10 * limits.MAX_TERM_STEP)


def test_who_waits_for_a_policy_in_force_does_not_know_who_may_lead() -> None:
    _, hosts = cluster(0)
    context = node_of(hosts[2]).context
    context.fetch((1, 100))
    assert may_order(context, node(9), 2)


def test_a_scheduler_cannot_have_its_role_taken_over_in_any_term() -> None:
    world, hosts = cluster(0)
    assert sent(said(world, hosts[0], hosts[2], m.PassRole(FAR))) == []
    calm(world, hosts)


def test_a_vote_in_a_far_term_is_refused_and_binds_nobody() -> None:
    world, hosts = cluster(0)
    key = policy_of(hosts[1]).key
    (answer,) = sent(said(world, hosts[1], hosts[2], m.VoteRequest(FAR, *key, True)))
    assert answer == m.Vote(FAR, False, *key)
    (answer,) = sent(said(world, hosts[1], hosts[2], m.VoteRequest(2, *key, True)))
    assert answer == m.Vote(2, True, *key)


def test_those_who_were_apart_for_long_catch_up_by_asking_again() -> None:
    election = Election(node(1))
    election.found()
    far = 10 * limits.MAX_TERM_STEP
    asked = 1
    while not election.is_credible(far):
        asked += 1
    assert asked == 10
    assert election.term == election.voted_term == 1


def test_decisions_come_from_the_fence_that_was_answered() -> None:
    world, hosts = cluster(0)
    restart = restart_at(hosts[2])
    for message in (m.Prepare(1, 5, restart), m.Commit(1, 5, restart)):
        assert said(world, hosts[1], hosts[2], message) == []
    assert said(world, hosts[0], hosts[2], m.Commit(1, 5, restart)) == []  # there was no fence
    gone = decision(without(policy_of(hosts[2]), hosts[2]), hosts[2].iteration)
    assert said(world, hosts[1], hosts[2], m.Commit(1, 5, gone)) == []
    calm(world, hosts)


@pytest.mark.parametrize(
    "change",
    [
        {"iteration": 1 << 40},
        {"redo": limits.MAX_ATTEMPT},
        {"finish": limits.MAX_ATTEMPT},
        {"have": (b"", b"\xff\xff", b"")},
        {"work": (b"\x01", b"\x01", b"\xfe")},
        {"work": (b"", b"\x01", b"\xfc")},
    ],
)
@pytest.mark.parametrize("kind", [m.Prepare, m.Commit])
def test_decisions_that_cannot_be_are_the_senders_fault(
    kind: type[m.Prepare | m.Commit], change: dict[str, object]
) -> None:
    world, hosts = cluster(0)
    said(world, hosts[0], hosts[2], m.Fence(1, 5))
    right = restart_at(hosts[2])
    wrong = replace(right, **change)  # type: ignore[arg-type]  # names of its own fields
    with pytest.raises(RemoteProtocolError, match="a decision"):
        said(world, hosts[0], hosts[2], kind(1, 5, wrong))
    assert sent(said(world, hosts[0], hosts[2], m.Prepare(1, 5, right))) == [m.Prepared(1, 5)]


def test_policies_come_from_the_scheduler_or_who_was_asked() -> None:
    world, hosts = cluster(0)
    policy = policy_of(hosts[2])
    newer = replace(policy, version=policy.version + 1, reason="not the scheduler's")
    assert said(world, hosts[1], hosts[2], m.PolicyBody(newer)) == []
    assert newer.key not in node_of(hosts[2]).context.policies
    node_of(hosts[2]).context.fetch(newer.key)
    assert m.PolicyStored(*newer.key) in sent(said(world, hosts[1], hosts[2], m.PolicyBody(newer)))
    assert node_of(hosts[2]).context.policies[newer.key] == newer


def test_policies_that_cannot_be_are_the_senders_fault() -> None:
    world, hosts = cluster(0)
    policy = policy_of(hosts[2])
    far = replace(policy, version=policy.version + 1 + limits.MAX_VERSION_STEP)
    with pytest.raises(RemoteProtocolError, match="cannot have come"):
        said(world, hosts[0], hosts[2], m.PolicyBody(far))
    other = replace(policy, version=policy.version + 1, shares=(1, 1, 1))
    with pytest.raises(RemoteProtocolError, match="micro-batches"):
        said(world, hosts[0], hosts[2], m.PolicyBody(other))
    calm(world, hosts)


def test_a_report_that_cannot_be_costs_its_sender_the_membership() -> None:
    """The member claims to have stored a policy of strangers, and to be at an iteration at which
    no member can be."""
    world, hosts = cluster(0, 5)

    def lie(sender: Host, receiver: Host, message: m.Message) -> bool:
        if not isinstance(message, m.FenceReport) or sender is not hosts[2]:
            return False
        if receiver is hosts[0]:
            strangers = Electorate(1, message.newest + 1, (node(70),))
            wrong = replace(message, iteration=1 << 40, stored=(strangers,))
            world.say(sender, receiver, wrong)
        return True

    world.lose = lie
    world.kill(hosts[4])
    honest = (hosts[0], hosts[1], hosts[3])
    world.run(lambda: all(len(policy_of(h).view.members) == 3 for h in honest), 5.0)
    goal = max(h.iteration for h in honest) + 9
    world.run(lambda: all(h.iteration >= goal for h in honest), 5.0)
    assert hosts[2].gone == "expelled"


def test_a_joiner_believes_no_impossible_welcome() -> None:
    world, hosts = cluster(0)
    policy = policy_of(hosts[0])
    more_work = replace(policy, shares=tuple(share + 1 for share in policy.shares))
    joiner = world.join(3, hosts[0])
    joining = node_of(joiner).joining
    assert joining is not None
    me = hosts[0].me.node

    def welcome(wrong: Policy) -> m.Welcome:
        return m.Welcome(me, wrong, 30)

    with pytest.raises(RemoteProtocolError, match="another number of micro-batches"):
        joining.welcome(world.now, me, welcome(more_work))
    world.run(lambda: joining.state is not JoiningState.ATTACHING)
    for wrong, why in (
        (more_work, "another number of micro-batches"),
        (replace(policy, term=FAR), "a term that cannot have come"),
        (replace(policy, version=limits.MAX_VERSION), "a version that cannot have come"),
    ):
        with pytest.raises(RemoteProtocolError, match=why):
            joining.welcome(world.now, me, welcome(wrong))
    assert node_of(joiner).context.election.term == 1
    world.run(lambda: joiner.is_member)
    go_on(world)
