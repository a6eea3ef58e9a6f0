"""A member that has stored the decision for a fork acts on it once a member of the fork has."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from protocols import effects, events, limits
from protocols.recovery.campaign import Campaign
from protocols.wire import messages as m
from tests.unit.protocols.clusters import cluster, go_on, node_of, policy_of
from tests.unit.protocols.test_recovery import decision, effects_of, said, sent

if TYPE_CHECKING:
    from tests.simulation.world import Host

FORK = b"f" * limits.LINEAGE_BYTES
EPOCH = (1, 5)


class Bench:
    """A cluster in which `member` has stored a decision for a fork without the last of four."""

    def __init__(self) -> None:
        self.world, hosts = cluster(0, size=4)
        self.leader, self.other, self.member, self.outsider = hosts
        self.context = node_of(self.member).context
        self.before = self.context.lineage
        said(self.world, self.leader, self.member, m.Fence(*EPOCH))
        effects_of(self.world, self.member, events.Frozen(b""))
        said(self.world, self.leader, self.member, m.Prepare(*EPOCH, self.restart()))

    def restart(self) -> m.Restart:
        """Return the decision that does the running iteration again among the first three."""
        policy = policy_of(self.member)
        view, gone = policy.view, self.outsider.me.node
        members = tuple(x for x in view.members if x.node != gone)
        edges = tuple(e for e in view.edges if gone not in (e.low, e.high))
        fork = replace(view, lineage=FORK, number=view.number + 1, members=members, edges=edges)
        root = members[0].node
        parents = tuple(b"" if x.node == root else root for x in members)
        last = replace(
            policy, version=policy.version + 1, view=fork, parents=parents, shares=(4, 2, 2)
        )
        return decision(last, self.context.iteration)

    def hears(
        self, sender: Host, *, via: Host | None = None, lineage: bytes = FORK
    ) -> list[effects.Effect]:
        """Return the effects of a message in a lineage, which came over the link to `via`."""
        router = node_of(sender).context.router
        envelope = router.stamp((lineage, 1, 0, 0, 0, 0), self.member.me.node, m.Ping(1.0))
        return effects_of(
            self.world, self.member, events.Received((via or sender).me.node, envelope)
        )

    @property
    def has_followed(self) -> bool:
        return self.context.lineage == FORK


def test_who_hears_a_member_of_its_fork_acts_on_the_decision() -> None:
    bench = Bench()
    wanted = bench.hears(bench.other)
    assert bench.has_followed
    assert policy_of(bench.member).view.lineage == FORK
    assert not node_of(bench.member).context.freeze.holds
    assert m.Committed(*EPOCH) in sent(wanted)
    assert m.Pong(1.0) in sent(wanted), "the message is of our lineage now"
    again = said(bench.world, bench.leader, bench.member, m.Commit(*EPOCH, bench.restart()))
    assert sent(again) == [m.Committed(*EPOCH)], "a repetition, which is only acknowledged"


def test_a_commit_that_comes_first_is_acknowledged_once() -> None:
    bench = Bench()
    commit = m.Commit(*EPOCH, bench.restart())
    router = node_of(bench.leader).context.router
    envelope = router.stamp((FORK, 1, 0, 0, 0, 0), bench.member.me.node, commit)
    event = events.Received(bench.leader.me.node, envelope)
    wanted = effects_of(bench.world, bench.member, event)
    assert sent(wanted).count(m.Committed(*EPOCH)) == 1
    assert bench.has_followed


def test_nobody_follows_who_cannot_know() -> None:
    bench = Bench()
    bench.hears(bench.other, via=bench.leader)  # what is passed on proves nothing
    bench.hears(bench.outsider)  # who is in no view of that lineage
    bench.hears(bench.other, lineage=b"o" * limits.LINEAGE_BYTES)
    bench.hears(bench.other, lineage=bench.before)
    assert bench.context.lineage == bench.before
    assert node_of(bench.member).context.freeze.holds


def test_who_has_reported_to_a_newer_fence_follows_no_more() -> None:
    bench = Bench()
    said(bench.world, bench.leader, bench.member, m.Fence(1, 6))
    fenced = node_of(bench.member).recovery.fenced
    assert not fenced.missed_fork
    assert sent(bench.hears(bench.other)) == []
    assert bench.context.lineage == bench.before
    assert fenced.missed_fork, "the fork waits for it, so it has to stand (protocol.md, H72)"


def test_who_has_missed_a_fork_stands_although_the_later_scheduler_lives() -> None:
    """That one cannot decide its fence, and the members of the fork obey it no more."""
    bench = Bench()
    said(bench.world, bench.leader, bench.member, m.Fence(1, 6))
    bench.hears(bench.other)
    asked = []
    for _ in range(130):
        bench.world.now += 0.1
        asked += sent(effects_of(bench.world, bench.member, events.Tick()))
    assert any(isinstance(x, m.VoteRequest | m.Lead) for x in asked)
    for led in (False, True):
        asked = []
        if led:
            lead = m.Lead(node_of(bench.member).context.election.voted_term + 1, "failed over")
            asked = sent(said(bench.world, bench.other, bench.member, lead))
        for _ in range(90):
            bench.world.now += 0.1
            asked += sent(effects_of(bench.world, bench.member, events.Tick()))
        stands = any(isinstance(x, m.VoteRequest | m.Lead) for x in asked)
        assert stands is not led, "a new scheduler is given time to decide"


def test_a_scheduler_for_whom_a_fork_waits_gives_way_if_the_fork_does_not_obey_it() -> None:
    world, hosts = cluster(0, size=4)
    node = node_of(hosts[0])
    node.recovery.fenced.asked(world.now, hosts[0].me.node, (1, 1))
    assert node.context.freeze.holds
    node.recovery.fenced.missed_fork = True
    for fork_term, waits_s, gives_way in ((1, 9.0, False), (1, 11.0, True), (0, 11.0, False)):
        node.recovery.fenced._fork_term = fork_term
        node.context.now = world.now + waits_s
        assert node.recovery._campaign.gives_way(node.context.now) is gives_way


def test_who_has_missed_a_fork_stands_although_it_it_pauses_without_a_quorum() -> None:
    """It has reported to a later fence of the lineage that was left, whose leader is gone. The
    members of the fork wait for it, and it would wait for a quorum (protocol.md, H72)."""
    world, hosts = cluster(0, size=7)
    leader, first, last = hosts[:3]
    before = policy_of(leader).view.lineage
    recovery, context = node_of(last).recovery, node_of(last).context
    context.config = replace(context.config, pauses=True)
    parts = (node_of(last).succession, recovery.fenced, recovery._missing_parts)
    recovery._campaign = Campaign(context, *parts)
    for host in hosts[3:]:
        world.vanish(host)
    world.lose = lambda _s, receiver, message: (
        receiver is last and not isinstance(message, m.Fence | m.Prepare | m.LinkLost)
    )
    world.run(lambda: policy_of(first).view.lineage != before, 5.0)
    assert policy_of(last).view.lineage == before
    later = m.Fence(context.election.term + 1, 1)
    router = node_of(hosts[3]).context.router
    envelope = router.stamp((before, later.fence_term, 0, 0, 0, 0), last.me.node, later)
    last.handle(events.Received(first.me.node, envelope))
    world.lose = lambda _s, _r, _m: False
    world.run(lambda: policy_of(last).view.lineage != before, 120.0)
    go_on(world)
    assert policy_of(first).view.lineage == policy_of(last).view.lineage


def test_a_fork_goes_on_although_its_scheduler_dies_before_all_have_heard_its_decision() -> None:
    """Four of seven die, and the scheduler of the fork does as soon as one of the two others has
    acted on its decision. Each of these would wait for the other, which is in another lineage."""
    world, hosts = cluster(0, size=7)
    leader, first, last = hosts[:3]
    before = policy_of(leader).view.lineage

    def loses(sender: Host, receiver: Host, message: m.Message) -> bool:
        return isinstance(message, m.Commit) and (sender, receiver) == (leader, last)

    world.lose = loses
    for host in hosts[3:]:
        world.vanish(host)
    world.run(lambda: policy_of(first).view.lineage != before, 5.0)
    assert policy_of(last).view.lineage == before
    world.kill(leader)
    world.run(lambda: all(len(policy_of(h).view.nodes) == 2 for h in (first, last)), 5.0)
    go_on(world)
    assert policy_of(first).view.lineage == policy_of(last).view.lineage
