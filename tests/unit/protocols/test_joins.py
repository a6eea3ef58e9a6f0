"""Joins with mishaps: the cluster goes on, and every device that wants to join gets in."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING

import pytest

from protocols import events, limits
from protocols.events import LeaveWanted, ShardArrived
from protocols.member.context import _not_known
from protocols.member.cycle_table import CycleState
from protocols.member.joining_table import JoiningState
from protocols.network.link_end import LinkEnd
from protocols.wire import messages as m
from tests.simulation.world import Host, World
from tests.unit.protocols.clusters import (
    BESIDE,
    ENDLESS,
    ON_THE_WAY,
    cluster,
    enter,
    go_on,
    node_of,
    persist,
    policy_of,
    reach,
    settle,
    state_of,
)
from tests.variants import variants

if TYPE_CHECKING:
    from protocols.cluster.policy import Policy

SEEDS = variants(range(1), long=range(2))
each_state = pytest.mark.parametrize("state", ON_THE_WAY)
each_seed = pytest.mark.parametrize("seed", SEEDS)


@each_state
@each_seed
def test_joiner_vanishes(seed: int, state: JoiningState) -> None:
    world, hosts = cluster(seed, beside=state in BESIDE)
    joiner = world.join(9, hosts[1])
    reach(world, joiner, state)
    world.vanish(joiner)
    enter(world, world.join(8, hosts[0]))
    go_on(world)
    settle(world)
    assert all(not policy_of(host).pulls for host in hosts)
    assert joiner.me not in policy_of(hosts[0]).view.members


@each_seed
def test_joiner_vanishes_when_the_switch_waits_for_it(seed: int) -> None:
    world, hosts = cluster(seed)
    joiner = world.join(9, hosts[1])

    def about_to_enter() -> bool:
        negotiator = node_of(hosts[0]).negotiator
        assert negotiator is not None
        switch = negotiator.switch
        return switch is not None and joiner.me in switch.policy.view.members

    world.run(about_to_enter)
    world.vanish(joiner)
    enter(world, world.join(8, hosts[0]))
    assert joiner.me not in policy_of(hosts[0]).view.members


@each_state
@each_seed
def test_joiner_starts_again(seed: int, state: JoiningState) -> None:
    world, hosts = cluster(seed, beside=state in BESIDE)
    reach(world, world.join(9, hosts[1]), state)
    joiner = persist(world, world.join(9, hosts[2], incarnation=2), hosts[2])
    assert joiner.me in policy_of(joiner).view.members
    assert joiner.me.incarnation == 2
    go_on(world)


@each_state
@each_seed
def test_joiner_tries_again(seed: int, state: JoiningState) -> None:
    world, hosts = cluster(seed, beside=state in BESIDE)
    reach(world, world.join(9, hosts[1]), state)
    persist(world, world.join(9, hosts[1]), hosts[1])
    go_on(world)


def test_a_newer_incarnation_ends_the_older_ones_join() -> None:
    world, hosts = cluster(0)
    joiner = world.join(9, hosts[1])
    reach(world, joiner, JoiningState.PULLING)
    newer = world.join(8, hosts[1]).me
    again = type(newer)(joiner.me.node, 2, "n9", "sim", (), b"", sparse=False)
    world.say(hosts[1], hosts[0], m.JoinRequest(again, ()))
    world.run(lambda: bool(joiner.joins_failed))
    assert joiner.joins_failed == ["the device started again"]


@each_state
@pytest.mark.parametrize("seed", variants(range(2), long=range(4)))
def test_scheduler_leaves_while_somebody_joins(seed: int, state: JoiningState) -> None:
    world, hosts = cluster(seed, beside=state in BESIDE)
    joiner = world.join(9, hosts[1])
    reach(world, joiner, state)
    hosts[0].handle(LeaveWanted())
    world.run(lambda: hosts[0].gone == "left")
    persist(world, joiner, hosts[2])
    go_on(world)


def wrong(liars: list[Host], host: Host, _shard: int, piece: bytes) -> bytes:
    return bytes(len(piece)) if host in liars else piece


@pytest.mark.parametrize("seed", [0, 1, 5])  # the others are quicker in the rest
def test_one_source_lies(seed: int) -> None:
    world, hosts = cluster(seed)
    world.tamper = partial(wrong, [hosts[1]])
    joiner = world.join(9, hosts[0])
    enter(world, joiner)
    served = [shards for shards in hosts[1].serves.values() if shards]
    assert served, "the liar was asked for nothing"
    assert joiner.state == expected(world, joiner)
    go_on(world)


def expected(world: World, host: Host) -> list[int]:
    other = next(h for h in world.members if h is not host)
    world.run(lambda: host.iteration == other.iteration)
    return other.state


@each_seed
def test_all_sources_lie(seed: int) -> None:
    world, hosts = cluster(seed)
    world.tamper = partial(wrong, hosts)
    joiner = world.join(9, hosts[0])
    world.run(lambda: bool(joiner.joins_failed))
    assert "from no source" in joiner.joins_failed[0]
    world.vanish(joiner)  # as the agent does, who then tries again
    world.tamper = partial(wrong, [])
    enter(world, world.join(8, hosts[0]))


def sources_of(joiner: Host) -> tuple[bytes, bytes]:
    """Return the joiner's parent and another one of its sources."""
    pull = policy_of(joiner).pull_of(joiner.me.node)
    assert pull is not None
    return pull.parent, next(s for s in pull.sources if s != pull.parent)


@pytest.mark.parametrize("state", [JoiningState.PULLING, JoiningState.CAUGHT_UP])
@each_seed
def test_a_source_is_lost(seed: int, state: JoiningState) -> None:
    world, hosts = cluster(seed)
    joiner = world.join(9, hosts[0])
    reach(world, joiner, state)
    _, other = sources_of(joiner)
    world.unlink(world.hosts[other], joiner, LinkEnd.PROCESS_ENDED)
    enter(world, joiner)
    assert other not in policy_of(joiner).view.neighbours(joiner.me.node)
    go_on(world)


@each_seed
def test_the_only_source_leaves(seed: int) -> None:
    world, hosts = cluster(seed)
    joiner = world.join(9, hosts[0], neighbours=("n2",))
    reach(world, joiner, JoiningState.PULLING)
    world.tamper = partial(wrong, hosts)  # so that the pull is not done before
    hosts[2].handle(LeaveWanted())
    world.run(lambda: hosts[2].gone == "left")
    world.tamper = partial(wrong, [])
    persist(world, joiner, hosts[0])
    go_on(world)


@each_seed
def test_a_source_is_lost_before_it_is_one(seed: int) -> None:
    world, hosts = cluster(seed)
    joiner = world.join(9, hosts[0])
    reach(world, joiner, JoiningState.WAITING)
    world.run(lambda: any(hosts[1].me.node in p.sources for p in newest(hosts[0]).pulls))
    world.unlink(hosts[1], joiner, LinkEnd.PROCESS_ENDED)
    persist(world, joiner, hosts[0])
    go_on(world)


def newest(host: Host) -> Policy:
    context = node_of(host).context
    return context.policies[context.newest_key]


@pytest.mark.parametrize(
    "state", [JoiningState.PULLING, JoiningState.FOLLOWING, JoiningState.CAUGHT_UP]
)
@each_seed
def test_the_parent_is_lost(seed: int, state: JoiningState) -> None:
    world, hosts = cluster(seed)
    joiner = world.join(9, hosts[0])
    reach(world, joiner, state)
    parent, _ = sources_of(joiner)
    world.unlink(world.hosts[parent], joiner, LinkEnd.PROCESS_ENDED)
    world.run(lambda: bool(joiner.joins_failed), 5.0)
    go_on(world)
    persist(world, joiner, hosts[1])


@each_seed
def test_the_parent_is_lost_when_the_round_is_here(seed: int) -> None:
    world, hosts = cluster(seed)
    joiner = world.join(9, hosts[0])
    world.lose = lambda _s, _r, message: isinstance(message, m.CaughtUp)
    reach(world, joiner, JoiningState.CAUGHT_UP)
    world.run(lambda: node_of(joiner).cycle.state is CycleState.APPLYING)
    parent, _ = sources_of(joiner)
    world.unlink(world.hosts[parent], joiner, LinkEnd.PROCESS_ENDED)
    assert not joiner.joins_failed, "the round that is here may have let it in"
    world.run(lambda: bool(joiner.joins_failed), 5.0)
    world.lose = lambda _s, _r, _m: False
    go_on(world)
    persist(world, joiner, hosts[1])


@pytest.mark.parametrize("state", [JoiningState.REQUESTED, JoiningState.PULLING])
def test_a_silent_joiner_is_given_up(state: JoiningState) -> None:
    world, hosts = cluster(1)
    world.most_compute = 0.5
    joiner = world.join(9, hosts[0])
    reach(world, joiner, state)
    began = world.now
    joiner.gone = "hangs"  # it does nothing any more, but its links stay open
    world.run(lambda: world.now > began + limits.JOIN_PROGRESS_SECONDS + 5.0)
    go_on(world)
    enter(world, world.join(8, hosts[0]))
    settle(world)
    assert all(not policy_of(host).pulls for host in hosts)


RETRIED = (
    m.JoinRequest,
    m.Introduce,
    m.Introduced,
    m.OpenLinks,
    m.LinksOpen,
    m.PolicyBody,
    m.PolicyStored,
    m.JoinProgress,
    m.CaughtUp,
    m.LeaveRequest,
    m.PassRole,
    m.VoteRequest,
    m.Vote,
)


@pytest.mark.parametrize("seed", range(4))
def test_messages_that_are_repeated_may_be_lost(seed: int) -> None:
    world, hosts = cluster(seed)
    world.most_compute = 0.2
    world.linger = 30.0  # a member that lacks a body counts the leaver until it has fetched that
    world.lose = lambda _s, _r, message: (
        isinstance(message, RETRIED) and world.random.random() < 0.4
    )
    joiner = world.join(9, hosts[0])
    enter(world, joiner)
    hosts[1].handle(LeaveWanted())
    world.run(lambda: hosts[1].gone == "left")
    hosts[0].handle(LeaveWanted())
    world.run(lambda: hosts[0].gone == "left")
    assert world.lost > 0
    go_on(world)


def test_no_link_to_the_sponsor() -> None:
    world = World(0, steps=ENDLESS)
    first = world.found()
    world.unreachable = lambda _host, _other: True
    joiner = world.join(1, first)
    world.run(lambda: bool(joiner.joins_failed))
    assert joiner.joins_failed == ["no link to n0 could be opened"]


def test_no_link_to_any_chosen_neighbour() -> None:
    world, hosts = cluster(0)
    world.unreachable = lambda _host, other: other is hosts[1]
    joiner = world.join(9, hosts[0], neighbours=("n1",))
    world.run(lambda: bool(joiner.joins_failed))
    assert joiner.joins_failed == ["no link to any chosen neighbour could be opened"]
    go_on(world)


def test_a_joiner_whose_request_nobody_answers_looks_for_a_cluster_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "JOIN_ANSWER_SECONDS", 9.0)
    world, hosts = cluster(0)
    joiner = world.join(9, hosts[1])
    reach(world, joiner, JoiningState.REQUESTED)
    node_of(joiner).context.election.scheduler = b"s" * 32  # who has left, and was the scheduler
    asked_at = world.now
    world.run(lambda: bool(joiner.joins_failed))
    assert joiner.joins_failed == ["no scheduler has answered for 9 s"]
    assert world.now - asked_at < limits.JOIN_ANSWER_SECONDS + 2 * limits.RETRY_SECONDS


@each_seed
def test_one_chosen_neighbour_out_of_reach(seed: int) -> None:
    world, hosts = cluster(seed)
    world.unreachable = lambda _host, other: other is hosts[1]
    joiner = world.join(9, hosts[0])
    enter(world, joiner)
    near = policy_of(joiner).view.neighbours(joiner.me.node)
    assert near == tuple(sorted(h.me.node for h in (hosts[0], hosts[2])))


@each_seed
def test_two_join_at_once_and_one_vanishes(seed: int) -> None:
    world, hosts = cluster(seed)
    one, two = world.join(9, hosts[0]), world.join(8, hosts[1])
    reach(world, one, JoiningState.PULLING)
    world.vanish(one)
    persist(world, two, hosts[1])
    go_on(world)


def test_no_more_joins_than_the_limit() -> None:
    world, hosts = cluster(0, size=1)
    negotiator = node_of(hosts[0]).negotiator
    assert negotiator is not None
    example = hosts[0].me
    for k in range(limits.MAX_OPEN_JOINS + 3):
        stranger = hashlib.sha256(b"stranger %d" % k).digest()
        request = m.JoinRequest(
            type(example)(stranger, 1, f"s{k}", "sim", (), b"", sparse=False), ()
        )
        negotiator.joins.request(world.now, request)
    assert len(negotiator.joins.open) == limits.MAX_OPEN_JOINS


def test_joiner_leaves_before_it_is_in() -> None:
    world, hosts = cluster(0)
    joiner = world.join(9, hosts[0])
    reach(world, joiner, JoiningState.PULLING)
    joiner.handle(LeaveWanted())
    assert joiner.gone == "left"
    assert state_of(joiner) is JoiningState.PULLING
    world.run(lambda: not joiner.links)
    go_on(world)
    assert joiner.me not in policy_of(hosts[0]).view.members


def test_a_pull_does_not_begin_for_a_joiner_that_has_left() -> None:
    world, hosts = cluster(0)
    joiner = world.join(9, hosts[0])
    node = node_of(joiner)
    world.run(lambda: any(p.pull_of(joiner.me.node) for p in node.context.policies.values()))
    assert state_of(joiner) is JoiningState.WAITING
    (policy,) = (p for p in node.context.policies.values() if p.pull_of(joiner.me.node))
    joiner.handle(LeaveWanted())
    assert node.joining is not None
    begins = m.PullBegins(node.joining.number, 3, *policy.key, bytes(32), 0, b"", ())
    node._deliver(world.now, hosts[0].me.node, begins)  # it was on its way when the user left
    assert state_of(joiner) is JoiningState.WAITING
    assert joiner.gone == "left"


@each_seed
def test_joiner_leaves_when_it_may_be_let_in(seed: int) -> None:
    world, hosts = cluster(seed)
    joiner = world.join(9, hosts[0])
    reach(world, joiner, JoiningState.CAUGHT_UP)
    joiner.handle(LeaveWanted())
    world.run(lambda: joiner.gone is not None)
    assert joiner.gone == "left"
    settle(world)
    go_on(world)
    assert joiner.me not in policy_of(hosts[0]).view.members


def test_a_joiner_that_pulls_nothing_holds_nobody_up_for_ever() -> None:
    world, hosts = cluster(0)
    world.lose = lambda _sender, _receiver, message: isinstance(message, m.ShardRequest)
    joiner = world.join(3, hosts[0])
    world.joins_end = True
    world.run(lambda: bool(joiner.joins_failed))
    assert len(joiner.joins_failed) == 1
    go_on(world)


def test_a_source_from_which_a_round_arrives_is_not_given_up() -> None:
    world, hosts = cluster(0, size=1)
    world.lose = lambda _sender, _receiver, message: isinstance(message, m.ShardRequest)
    joiner = world.join(3, hosts[0])
    reach(world, joiner, JoiningState.PULLING)
    for k in range(int(3 * limits.PULL_STALL_SECONDS)):
        then = world.now + 1.0
        world.later(1.0, lambda: None)
        world.run(lambda then=then: world.now >= then)  # type: ignore[misc]
        links = (events.Incoming(hosts[0].me.node, 0.0, None, 0, received_bytes=k),)
        joiner.handle(events.Measured(links, None, None, None))
    assert joiner.joins_failed == []
    world.joins_end = True
    world.run(lambda: bool(joiner.joins_failed))  # now nothing arrives any more
    assert "every source" in joiner.joins_failed[0]


def test_a_source_that_sends_nothing_is_replaced_by_the_others() -> None:
    """The source has said that it holds the state, and answers heartbeats."""
    world, hosts = cluster(0)
    joiner = world.join(3, hosts[0])
    world.lose = lambda _sender, receiver, message: (
        isinstance(message, m.ShardRequest) and receiver.me.node == sources_of(joiner)[1]
    )
    began = world.now
    world.run(lambda: joiner in world.members)
    assert world.now - began < 4 * limits.PULL_STALL_SECONDS
    go_on(world)


def test_sources_with_different_states_are_not_mixed() -> None:
    world, hosts = cluster(0)
    joiner = world.join(3, hosts[0])
    reach(world, joiner, JoiningState.PULLING)
    joining = node_of(joiner).joining
    assert joining is not None
    source = next(node for node in joining.sources if node in node_of(joiner).context.links)
    other = m.PullBegins(joining.number, 1, 1, 1, bytes(32), 1, b"", ())
    joining.pull_begins(world.now, source, other)
    assert joining.state is JoiningState.FAILED
    world.joins_end = True
    joiner.perform(node_of(joiner).handle(world.now, events.Tick()))
    world.run(lambda: bool(joiner.joins_failed))
    assert joiner.joins_failed == ["its sources hold different states"]


def test_a_joiner_that_nobody_named_gives_up_when_every_link_broke() -> None:
    world, hosts = cluster(0)
    joiner = world.join(3, hosts[0])
    joining = joiner.node.joining if joiner.node is not None else None
    assert joining is not None
    world.run(lambda: joining.state is JoiningState.CAUGHT_UP and not joining.may_enter)
    assert joiner.node is not None
    joiner.node.context.links.clear()
    joining.tick(world.now)
    assert joining.state is JoiningState.FAILED


def test_without_a_monitor_nothing_is_known_of_sources() -> None:
    assert _not_known(b"") is None


def test_a_fence_waits_for_the_round_that_may_make_a_joiner_a_member() -> None:
    world, hosts = cluster(0)
    joiner = world.join(3, hosts[0])
    world.lose = lambda _s, _r, message: isinstance(message, m.CaughtUp)
    reach(world, joiner, JoiningState.CAUGHT_UP)
    world.run(lambda: node_of(joiner).cycle.state is CycleState.APPLYING)
    world.say(hosts[0], joiner, m.Fence(1, 1))
    assert node_of(joiner).context.freeze.holds
    assert state_of(joiner) is JoiningState.CAUGHT_UP, "not given up yet"
    world.run(lambda: bool(joiner.joins_failed), 5.0)
    world.lose = lambda _s, _r, _m: False
    end = world.now + 1.0
    world.run(lambda: world.now > end)  # what it has answered to the fence arrives
    world.vanish(joiner)  # as the agent does, who then tries again
    go_on(world)


def test_the_rate_that_a_shard_came_with_counts_for_what_is_planned_next() -> None:
    world, hosts = cluster(0)
    joiner = world.join(3, hosts[0])
    sources = [h.me.node for h in hosts]
    asked: list[tuple[bytes, int]] = []

    def asks() -> bool:
        joining = node_of(joiner).joining
        pull = joining.pull if joining is not None else None
        pairs = [(n, k) for n in sources for k in range(64)]
        asked[:] = [(n, k) for n, k in pairs if pull is not None and pull.expects(n, k)]
        return bool(asked)

    world.run(asks)
    joining = node_of(joiner).joining
    assert joining is not None
    source, shard = asked[0]
    joining.shard(ShardArrived(source, shard, bytes(32), rate=5e6))
    assert joining._rates.offer(source, 0).rate == 5e6


@pytest.mark.parametrize(
    ("known", "least_s", "most_s"),
    [
        (3, 0.0, limits.PROBE_REST_SECONDS / 2),
        (1, limits.PROBE_REST_SECONDS, limits.PROBE_WAIT_SECONDS / 2),
        (0, limits.PROBE_WAIT_SECONDS, 1.2 * limits.PROBE_WAIT_SECONDS),
    ],
)
def test_a_joiner_waits_a_little_for_the_rates_of_its_links(
    known: int, least_s: float, most_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, hosts = cluster(0)
    joiner = world.join(3, hosts[0])
    whose, probed = hosts[:known], joiner.probed
    monkeypatch.setattr(joiner, "probed", lambda other: probed(other) if other in whose else None)
    reach(world, joiner, JoiningState.LINKING)
    world.run(lambda: all(h.me.node in joiner.links for h in hosts))
    began = world.now
    reach(world, joiner, JoiningState.WAITING)
    assert least_s <= world.now - began <= most_s
    enter(world, joiner)
    go_on(world)


def test_a_joiner_knows_when_it_has_the_whole_state() -> None:
    world, hosts = cluster(0)
    joiner = world.join(3, hosts[0])
    reach(world, joiner, JoiningState.PULLING)
    joining = node_of(joiner).joining
    assert joining is not None
    before = joining.has_pulled
    reach(world, joiner, JoiningState.FOLLOWING)
    assert (before, joining.has_pulled) == (False, True)


def test_what_comes_late_to_a_join_that_was_given_up_is_of_no_use() -> None:
    world, hosts = cluster(0)
    joiner = world.join(3, hosts[0])
    world.joins_end = False
    reach(world, joiner, JoiningState.PULLING)
    joining = node_of(joiner).joining
    assert joining is not None
    assert joining.pull is not None
    joining.fail("given up")
    for shard in list(joining.pull._asked):
        source = joining.pull._asked[shard]
        joining.shard(ShardArrived(source, shard, bytes(32)))
    assert state_of(joiner) is JoiningState.FAILED


def test_a_joiner_that_has_fallen_too_far_behind_gives_up() -> None:
    world, hosts = cluster(0)
    joiner = world.join(3, hosts[0])
    reach(world, joiner, JoiningState.CAUGHT_UP)
    node = node_of(joiner)
    joining = node.joining
    assert joining is not None
    world.now += 1.0
    joining.tick(world.now)
    node.cycle.state = CycleState.FETCHING
    joining.tick(world.now)
    joining.tick(world.now + limits.FETCH_PATIENCE_SECONDS / 2)
    assert state_of(joiner) is JoiningState.CAUGHT_UP
    joining.tick(world.now + limits.FETCH_PATIENCE_SECONDS)
    assert state_of(joiner) is JoiningState.FAILED
