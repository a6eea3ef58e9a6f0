"""Joiners that copy the same state at the same time serve each other."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from protocols import limits
from protocols.effects import Dial, SendShards
from protocols.errors import RemoteProtocolError
from protocols.member.fellows import MOST_FELLOWS, _nearest
from protocols.member.joining_table import JoiningState
from protocols.member.pull import AskManifest, AskShards, Pull, PullDone, PullState
from protocols.member.shard_sizes import common_shard_size, shard_count
from protocols.network.link_end import LinkEnd
from protocols.wire import messages as m
from tests.simulation import pulls
from tests.unit.protocols.clusters import (
    cluster,
    enter,
    go_on,
    joining_of,
    node_of,
    persist,
    settle,
)
from tests.unit.protocols.test_pull import A, B, asked, evenly, leaves, no_rate, right
from tests.variants import variants

from .records import node

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.cluster.policy import Pull as PullPlan
    from protocols.member.fellows import Fellows
    from protocols.member.node import Node
    from tests.simulation.host import Host
    from tests.simulation.world import World

C, D = node(3), node(4)  # fellows
FRAME_S = 0.1  # for one shard of a device, so that a copy takes a while


# --- what is asked of whom ------------------------------------------------------------------------


def pull_of(number: int, count: int, shards: int = 12) -> Pull:
    """Return the pull of one of several joiners, which the one source has begun."""
    pull = Pull(shards, 16, (A,), no_rate, evenly, part=(number, count))
    pull.began(A)
    pull.manifest(A, leaves(shards))
    return pull


def test_each_joiner_asks_the_members_for_another_part_first() -> None:
    for number in range(3):
        pull = pull_of(number, 3)
        first = [k for k in range(12) if pull.expects(A, k)]
        assert first == [number, number + 3]
        for shard in first:
            pull.shard(A, shard, right(shard))
        assert [k for k in range(12) if pull.expects(A, k)] == [number + 6, number + 9]


def test_after_its_part_it_asks_for_what_no_other_has_and_begins_elsewhere() -> None:
    wanted = []
    for number in range(3):
        pull = pull_of(number, 3)
        pull.has(D, tuple(range(12)))  # it is asked for two at a time
        pull.lost(D)
        for _ in range(2):
            for shard in [k for k in range(12) if pull.expects(A, k)]:
                pull.shard(A, shard, right(shard))
        wanted.append([k for k in range(12) if pull.expects(A, k)])
    assert len({tuple(asks) for asks in wanted}) == 3


def test_a_fellow_is_asked_for_what_it_has() -> None:
    pull = pull_of(0, 2)
    assert pull.has(C, (1, 3, 5)) == [AskShards(C, (1, 3))]
    assert pull.expects(C, 1)
    assert pull.awaited == {A: 1, C: 0}
    assert pull.shard(C, 1, right(1)) == [AskShards(C, (5,))]
    assert pull.has(C, (0, 1)) == [], "asked of the member, or here"
    assert pull.verified == {1: C}


def test_what_a_member_was_asked_for_is_not_asked_of_a_fellow() -> None:
    pull = pull_of(0, 2, shards=4)
    assert pull.has(C, (0, 1, 2, 3)) == [AskShards(C, (1, 3))]
    for shard in (0, 2):
        pull.shard(A, shard, right(shard))
    pull.shard(C, 1, right(1))
    assert pull.shard(C, 3, right(3)) == [PullDone()]
    assert pull.has(C, (0,)) == [], "it needs nothing any more"
    assert pull.lost(C) == []


def test_a_fellow_whose_shard_does_not_match_is_asked_for_no_more() -> None:
    pull = pull_of(0, 2)
    pull.has(C, (1, 3, 5, 7))
    effects = pull.shard(C, 1, b"wrong")
    assert not asked(effects, C)
    assert not pull.expects(C, 3)
    while waiting := [k for k in range(12) if pull.expects(A, k)]:
        pull.shard(A, waiting[0], right(waiting[0]))
    assert pull.state is PullState.DONE
    assert set(pull.verified.values()) == {A}


def test_wrong_shards_that_came_before_the_manifest() -> None:
    pull = Pull(8, 16, (A,), no_rate, evenly, part=(0, 2))
    assert AskManifest(A) in pull.began(A)
    pull.has(C, (1, 3))
    pull.shard(C, 1, b"wrong")
    pull.shard(C, 3, b"wrong")
    assert not pull.verified
    pull.manifest(A, leaves(8))
    assert not pull.expects(C, 1)
    assert pull.state is PullState.COPYING


def test_what_a_lost_fellow_owed_comes_from_the_member() -> None:
    pull = pull_of(0, 2, shards=4)
    pull.has(C, (1, 3))
    for shard in (0, 2):
        pull.shard(A, shard, right(shard))
    assert pull.lost(C) == [AskShards(A, (1, 3))]
    assert pull.lost(C) == []


def test_fellows_cannot_replace_the_members() -> None:
    pull = pull_of(0, 2)
    pull.has(C, tuple(range(12)))
    (failed,) = pull.lost(A)
    assert pull.state is PullState.FAILED, failed


def test_what_no_fellow_can_have_is_refused() -> None:
    pull = pull_of(0, 2)
    with pytest.raises(RemoteProtocolError, match="do not exist"):
        pull.has(C, (12,))
    assert pull.has(A, (1,)) == [], "a source has everything"
    waiting = Pull(4, 16, (A, B), no_rate, evenly)
    assert waiting.has(C, (1,)) == [], "nothing has begun"


def test_joiners_that_exchange_shards_have_one_size_for_them() -> None:
    for size in (0, 1, 64 << 10, 60_000_000, 3 << 30, 1 << 40):
        shard = common_shard_size(size)
        assert shard % 64 == 0
        assert shard_count(size, shard) <= 1 << 14
    assert shard_count(60_000_000, common_shard_size(60_000_000)) == 256


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9, 20])
def test_neighbours_in_the_ring_are_neighbours_of_each_other(count: int) -> None:
    nodes = sorted(node(k) for k in range(1, count + 1))
    near = {n: _nearest(nodes, at) for at, n in enumerate(nodes)}
    for n, others in near.items():
        assert len(others) == min(count - 1, MOST_FELLOWS)
        assert len(set(others)) == len(others)
        assert n not in others
        assert all(n in near[other] for other in others)


# --- whole clusters -------------------------------------------------------------------------------


def slowly(world: World) -> None:
    """Let each device send one shard after the other, each in `FRAME_S`, which nobody knows: so a
    joiner asks for a few at a time."""
    free: dict[bytes, float] = {}
    at_once = world.stream

    def stream(sender: Host, to: bytes, what: Callable[[Host], None], size: int = 0) -> None:
        if getattr(what, "func", None) is not pulls.arrive:
            at_once(sender, to, what, size)
            return
        at = max(world.now, free.get(sender.me.node, 0.0)) + FRAME_S
        free[sender.me.node] = at
        world.later(at - world.now, partial(at_once, sender, to, what, size))

    world.stream = stream  # type: ignore[method-assign]
    world.probe = lambda host, node: None  # type: ignore[method-assign]


def crowd(seed: int, *, sparse: bool = False) -> tuple[World, list[Host], list[Host]]:
    """Return a world, its only member, and joiners that copy its state together."""
    world, hosts = cluster(seed, size=1, beside=True)
    world.sparse = sparse
    slowly(world)
    joiners = [world.join(k, hosts[0]) for k in (5, 6, 7)]
    world.run(lambda: all(joining_of(j).pull is not None for j in joiners))
    return world, hosts, joiners


def pull_at(host: Host) -> Pull:
    pull = joining_of(host).pull
    assert pull is not None
    return pull


def fellows_of(host: Host) -> Fellows:
    return joining_of(host).fellows


def served(host: Host) -> int:
    """Return how many shards `host` has sent."""
    return sum(map(len, host.serves.values()))


SEEDS = pytest.mark.parametrize("seed", variants(range(1), long=range(1, 6)))


@SEEDS
def test_joiners_serve_each_other(seed: int) -> None:
    world, hosts, joiners = crowd(seed)
    assert sorted(fellows_of(j).part for j in joiners) == [(0, 3), (1, 3), (2, 3)]
    for joiner in joiners:
        enter(world, joiner)
    shards = shard_count(len(hosts[0].flat), joining_of(joiners[0]).shard_bytes)
    assert all(served(joiner) for joiner in joiners)
    assert served(hosts[0]) < 3 * shards, "the member need not send everything to each"
    go_on(world)


def test_they_do_so_while_the_members_wait() -> None:
    world, hosts = cluster(0, size=1)
    slowly(world)
    first = world.join(4, hosts[0])
    world.run(lambda: joining_of(first).state is JoiningState.PULLING)
    # The next policy names the first of these that is linked, the one after it the others.
    joiners = [world.join(k, hosts[0]) for k in (5, 6, 7)]
    for joiner in (first, *joiners):
        enter(world, joiner)
    assert not served(first)
    assert sum(served(joiner) > 0 for joiner in joiners) == 2
    go_on(world)


@SEEDS
def test_a_joiner_is_killed_while_others_ask_it(seed: int) -> None:
    world, hosts, joiners = crowd(seed)
    world.run(lambda: served(joiners[1]) > 0)
    world.vanish(joiners[1])
    for joiner in (joiners[0], joiners[2]):
        persist(world, joiner, hosts[0])
    settle(world)
    go_on(world)


def test_a_joiner_that_alters_what_it_passes_on_is_found_out() -> None:
    world, _, joiners = crowd(1)
    liar = joiners[0]

    def tamper(host: Host, _shard: int, piece: bytes) -> bytes:
        return bytes(len(piece)) if host is liar else piece

    world.tamper = tamper
    for joiner in joiners:
        enter(world, joiner)
    assert served(liar), "it was asked"
    for joiner in joiners[1:]:
        assert liar.me.node not in pull_at(joiner).verified.values()
    go_on(world)


def test_links_between_joiners_are_opened_again() -> None:
    world, _, joiners = crowd(2)
    low, high = sorted(joiners, key=lambda j: j.me.node)[:2]
    world.run(lambda: high.me.node in low.links and served(low) > 0)
    world.unlink(low, high, LinkEnd.RESET)
    before = world.now
    world.run(lambda: high.me.node in low.links)
    assert world.now > before
    for joiner in joiners:
        enter(world, joiner)


def told(node: Node, plan: PullPlan, **other: Any) -> m.ShardsHere:
    """Return what the joiner of `plan` may say to the joiner `node`."""
    joining = node.joining
    assert joining is not None
    assert joining.copy is not None
    at, size = joining.copy.begins.iteration, joining.shard_bytes
    values = {"join": plan.join, "iteration": at, "shard_bytes": size, "begins": False}
    return m.ShardsHere(**{**values, "shards": (0,), **other})


def test_only_what_fits_the_same_copy_counts() -> None:
    world, _, joiners = crowd(0)
    world.run(lambda: served(joiners[0]) > 0)
    first, other = joiners[0], joiners[1]
    fellows, policy = fellows_of(first), list(node_of(first).context.policies.values())[-1]
    plan = policy.pull_of(other.me.node)
    assert plan is not None
    node, sender = node_of(first), other.me.node
    assert fellows.here(world.now, sender, told(node, plan)) == (0,)
    wrong: list[dict[str, Any]] = [
        {"join": plan.join + 1},
        {"iteration": 10_000},
        {"shard_bytes": 64},
    ]
    for change in wrong:
        assert fellows.here(world.now, sender, told(node, plan, **change)) == ()
    assert fellows.here(world.now, D, told(node, plan)) == ()
    link = node.context.links.pop(sender)
    assert fellows.here(world.now, sender, told(node, plan)) == (), "there is no link"
    node.context.links[sender] = link

    size, here = joining_of(first).shard_bytes, next(iter(pull_at(first).verified))
    node.context.effects.clear()
    fellows.wanted(sender, m.ShardRequest(plan.join, size, (here,)))
    assert [e for e in node.context.effects if isinstance(e, SendShards)]
    node.context.effects.clear()
    fellows.wanted(sender, m.ShardRequest(plan.join + 1, size, (here,)))
    fellows.wanted(D, m.ShardRequest(plan.join, size, (here,)))
    assert not node.context.effects
    for request in ((size, (here, here)), (64, (here,)), (size, (9999,))):
        with pytest.raises(RemoteProtocolError, match="not here"):
            fellows.wanted(sender, m.ShardRequest(plan.join, *request))


def test_nothing_is_said_once_the_copy_is_whole() -> None:
    world, _, joiners = crowd(3)
    for joiner in joiners:
        enter(world, joiner)
    for joiner in joiners:
        fellows, context = fellows_of(joiner), node_of(joiner).context
        context.effects.clear()
        fellows.tick(world.now)
        fellows.linked(joiners[0].me.node)
        assert fellows.deadline is None
        assert not [e for e in context.effects if isinstance(e, Dial)]


def test_a_large_cluster_does_not_keep_the_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ALL_LINKED_MEMBERS", 3)
    world, hosts, joiners = crowd(4)
    first = joiners[0]
    world.run(lambda: all(j.me.node in first.links for j in joiners[1:]))
    world.run(lambda: bool(joining_of(first).copy.has_state))  # type: ignore[union-attr]
    world.run(lambda: not any(j.me.node in first.links for j in joiners))
    for joiner in joiners:
        enter(world, joiner)
    go_on(world)
    assert hosts[0].gone is None


def test_devices_whose_links_the_user_has_chosen_open_no_others() -> None:
    world, hosts, joiners = crowd(0, sparse=True)
    assert all(fellows_of(j).part == (0, 1) for j in joiners)
    for joiner in joiners:
        enter(world, joiner)
    assert not any(served(joiner) for joiner in joiners)
    go_on(world)
    assert hosts[0].gone is None
