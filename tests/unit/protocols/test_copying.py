"""Joins beside the training: nobody waits, and the joiner has the others' state in the end.

The world checks each state that an update leads to, so a joiner that misses an update or applies
one twice is found at its next step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from protocols import limits
from protocols.cluster.policy import Pull
from protocols.effects import DropUpdates
from protocols.errors import RemoteProtocolError
from protocols.events import UpdateArrived
from protocols.member.joining_table import JoiningState
from protocols.network.link_end import LinkEnd
from protocols.wire import messages as m
from tests.simulation.copies import UPDATE_BYTES
from tests.unit.protocols.clusters import (
    cluster,
    enter,
    go_on,
    joining_of,
    node_of,
    persist,
    policy_of,
    reach,
    reported,
    settle,
)
from tests.variants import variants

if TYPE_CHECKING:
    from protocols.member.copying import Copying
    from tests.simulation.world import Host, World

SEEDS = variants(range(1), long=range(2))
each_seed = pytest.mark.parametrize("seed", SEEDS)


def copying(
    seed: int, state: JoiningState = JoiningState.COPYING
) -> tuple[World, list[Host], Host]:
    """Return a world, its members, and a joiner in `state`, which copies beside the training."""
    world, hosts = cluster(seed, beside=True)
    joiner = world.join(9, hosts[0])
    reach(world, joiner, JoiningState.COPYING)
    return world, hosts, joiner


@each_seed
def test_a_source_that_is_lost_before_the_copy_begins_is_done_without(seed: int) -> None:
    world, hosts = cluster(seed, beside=True)
    joiner = world.join(9, hosts[0])
    reach(world, joiner, JoiningState.WAITING)
    policies = node_of(hosts[2]).context.policies
    world.run(lambda: bool(policies[max(policies)].pulls))
    assert hosts[1].me.node in policies[max(policies)].pulls[0].sources
    world.cut(joiner, hosts[1])
    enter(world, joiner)
    go_on(world)


def copy_of(host: Host) -> Copying:
    copy = joining_of(host).copy
    assert copy is not None
    return copy


def nothing_kept(world: World) -> bool:
    """Whether no member keeps anything for joiners any more."""
    return not any(h.copies.snapshots or h.copies.updates for h in world.members)


@each_seed
def test_a_joiner_copies_beside_the_training(seed: int) -> None:
    world, hosts, joiner = copying(seed)
    began = hosts[0].iteration
    held = [node_of(h).cycle.holds.joins for h in hosts]
    assert held == [()] * 3, "nobody waits while it copies"
    enter(world, joiner)
    assert joiner.iteration > began
    (told,) = reported(joiner, "joined")
    assert 0 < int(str(told["updates"])) <= joiner.iteration - began
    go_on(world)
    assert nothing_kept(world)


@each_seed
def test_several_copy_at_once(seed: int) -> None:
    world, hosts = cluster(seed, beside=True)
    joiners = [world.join(k, hosts[k % 3]) for k in (7, 8, 9)]
    world.run(lambda: all(joining_of(j).copy is not None for j in joiners))
    begun = {copy_of(joiner).begins.iteration for joiner in joiners}
    assert len(begun) == 1, "one snapshot serves all"
    for joiner in joiners:
        enter(world, joiner)
    go_on(world)
    assert nothing_kept(world)


@each_seed
def test_a_source_is_killed_while_a_joiner_copies(seed: int) -> None:
    world, hosts, joiner = copying(seed)
    number = joining_of(joiner).number
    world.vanish(hosts[2])
    persist(world, joiner, hosts[0])
    assert joining_of(joiner).number == number, "it has not begun anew"
    go_on(world)


@each_seed
def test_the_scheduler_is_killed_and_the_copy_is_carried_on(seed: int) -> None:
    world, hosts, joiner = copying(seed)
    number = joining_of(joiner).number
    world.vanish(hosts[0])
    persist(world, joiner, hosts[1])
    assert joining_of(joiner).number == number, "it has not begun anew"
    go_on(world)


@each_seed
def test_the_training_ends_while_a_joiner_copies(seed: int) -> None:
    world, hosts, joiner = copying(seed)
    for host in (*hosts, joiner):
        node_of(host).context.steps = hosts[0].iteration + 3
    world.run(lambda: all(host.gone is not None for host in hosts))
    world.run(lambda: joiner.gone is not None or bool(joiner.joins_failed))


@each_seed
def test_a_source_without_memory_for_a_snapshot(seed: int) -> None:
    world, hosts = cluster(seed, beside=True)
    hosts[1].copies.is_full = True
    enter(world, world.join(9, hosts[0]))
    for host in world.members:
        host.copies.is_full = True
    enter(world, world.join(8, hosts[0]))
    go_on(world)


@each_seed
def test_the_link_to_the_only_source_with_a_snapshot_ends(seed: int) -> None:
    world, hosts = cluster(seed, beside=True)
    hosts[0].copies.is_full = hosts[1].copies.is_full = True
    joiner = world.join(9, hosts[0])
    reach(world, joiner, JoiningState.COPYING)
    world.unlink(hosts[2], joiner, LinkEnd.PROCESS_ENDED)
    assert "every source" in joiner.joins_failed[0], "it does not wait for what nobody has"
    world.vanish(joiner)  # as the agent does, who then tries again
    again = world.join(9, hosts[0], incarnation=joiner.me.incarnation)
    enter(world, again)  # the others hold their update, since nobody has a snapshot
    go_on(world)


def spoilt(_host: Host, _shard: int, piece: bytes) -> bytes:
    return bytes(len(piece))


@each_seed
def test_a_source_that_alters_updates(seed: int) -> None:
    world, hosts, joiner = copying(seed)
    world.tamper = lambda host, shard, piece: (
        spoilt(host, shard, piece) if host is hosts[1] else piece
    )
    persist(world, joiner, hosts[0])
    go_on(world)


def test_no_source_has_the_right_parts() -> None:
    world, hosts, joiner = copying(0)
    world.tamper = spoilt
    world.run(lambda: bool(joiner.joins_failed))
    assert "from no source" in joiner.joins_failed[0]
    world.vanish(joiner)  # as the agent does, who then tries again
    world.tamper = lambda _host, _shard, piece: piece
    go_on(world)
    assert nothing_kept(world)
    assert hosts[0] in world.members


def test_messages_of_a_copy_may_be_lost() -> None:
    world, hosts = cluster(1, beside=True)
    world.lose = lambda _s, _r, message: (
        isinstance(message, m.UpdateRecord | m.PullBegins) and world.lost < 4
    )
    persist(world, world.join(9, hosts[0]), hosts[0])
    assert world.lost > 0
    go_on(world)


@each_seed
def test_a_joiner_that_hangs_costs_the_sources_nothing_after_a_while(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "COPY_IDLE_SECONDS", 10.0)
    world, hosts, joiner = copying(seed)
    joiner.gone = "hangs"
    end = world.now + 2 * limits.COPY_IDLE_SECONDS + 10.0
    world.run(lambda: world.now > end)
    assert nothing_kept(world)
    world.run(lambda: not policy_of(hosts[0]).pulls)  # the scheduler gives the join up later
    settle(world)


@pytest.mark.parametrize(("fitting", "kept"), [(1, limits.LEAST_LOGGED_UPDATES), (6, 6)])
def test_updates_are_kept_up_to_their_bound(
    fitting: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, hosts, joiner = copying(0)
    monkeypatch.setattr(limits, "MOST_LOGGED_BYTES", fitting * UPDATE_BYTES)
    world.lose = lambda sender, _r, _m: sender is joiner
    seen: list[int] = []

    def has_failed() -> bool:
        seen.extend(len(h.copies.updates) for h in hosts)
        return bool(joiner.joins_failed)

    world.run(has_failed)
    assert max(seen) == kept
    world.lose = lambda _s, _r, _m: False
    go_on(world)


def test_the_link_to_a_source_ends() -> None:
    world, hosts, joiner = copying(0)
    world.unlink(hosts[1], joiner, LinkEnd.PROCESS_ENDED)
    number = joining_of(joiner).number
    assert number not in node_of(hosts[1]).copies
    persist(world, joiner, hosts[0])
    go_on(world)


def test_a_source_with_another_snapshot_ends_the_join() -> None:
    _, hosts, joiner = copying(0)
    joining = joining_of(joiner)
    begins = replace(copy_of(joiner).begins, commit=b"?" * 32)
    joining.pull_begins(0.0, hosts[0].me.node, begins)
    assert joining.state is JoiningState.FAILED


def test_the_rate_of_a_source_is_known_from_parts_of_updates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, hosts, joiner = copying(0)
    joining, copy = joining_of(joiner), copy_of(joiner)
    taken: list[UpdateArrived] = []
    monkeypatch.setattr(copy, "arrived", taken.append)  # whatever was asked for
    for rate in (None, 5e6):
        joining.update_arrived(UpdateArrived(hosts[0].me.node, 1, 0, bytes(32), rate))
    assert len(taken) == 2
    assert joining._rates.offer(hosts[0].me.node, 0).rate == 5e6
    joining.copy = None
    with pytest.raises(RemoteProtocolError, match="not asked for"):
        joining.update_arrived(taken[0])


def test_a_copy_of_another_history_is_not_gone_on_with() -> None:
    _, _, joiner = copying(0)
    joining, copy = joining_of(joiner), copy_of(joiner)
    copy.has_state, copy.commit = True, b"?" * 32
    copy._records.clear()
    copy.stop_at(copy.next)
    joining.state = JoiningState.PULLING
    joining._copied_on(copy)
    assert joining.state is JoiningState.FAILED


def test_a_joiner_that_has_applied_the_last_update_ends_like_the_others() -> None:
    _, _, joiner = copying(0)
    copy = copy_of(joiner)
    copy.has_state = True
    node_of(joiner).context.steps = copy.next
    joining_of(joiner)._copied_on(copy)
    assert node_of(joiner).over


def test_a_copy_that_is_not_whole_is_dropped_when_the_members_hold_for_all_of_it() -> None:
    _, hosts, joiner = copying(0)
    joining, copy, context = joining_of(joiner), copy_of(joiner), node_of(joiner).context
    assert not copy.has_state
    policy = policy_of(hosts[0])
    sources = tuple(host.me.node for host in hosts)
    plan = Pull(joining.number, joiner.me, sources, sources[0])
    later = replace(copy.begins, iteration=copy.begins.iteration + 1)
    context.effects.clear()
    joining._begin_pull(0.0, replace(policy, pulls=(plan,)), plan, {sources[0]: later})
    assert joining.copy is None
    assert joining.state is JoiningState.PULLING
    (dropped,) = [e for e in context.effects if isinstance(e, DropUpdates)]
    assert dropped.before > later.iteration


def test_a_second_snapshot_is_not_begun_beside_the_first() -> None:
    _, hosts, joiner = copying(0)
    joining, copy = joining_of(joiner), copy_of(joiner)
    later = replace(copy.begins, iteration=copy.begins.iteration + 1, commit=b"?" * 32)
    joining.pull_begins(0.0, hosts[0].me.node, later)
    assert joining.copy is copy
    assert joining.state is JoiningState.COPYING


def test_a_source_that_begins_when_the_copy_is_close_is_asked_for_no_shards() -> None:
    world, hosts, joiner = copying(0)
    joining, copy = joining_of(joiner), copy_of(joiner)
    reach(world, joiner, JoiningState.COPIED)
    joining._context.effects.clear()
    joining.pull_begins(world.now, hosts[1].me.node, copy.begins)
    assert not joining._context.effects
    assert joining.state is JoiningState.COPIED


def test_a_source_whose_link_is_gone_when_the_copy_begins_is_done_without() -> None:
    world, hosts = cluster(0, beside=True)
    joiner = world.join(9, hosts[0])
    reach(world, joiner, JoiningState.WAITING)
    number = joining_of(joiner).number
    policies = node_of(hosts[0]).context.policies
    world.run(lambda: any(p.pull_of(joiner.me.node) for p in policies.values()))
    world.unlink(hosts[2], joiner, LinkEnd.PROCESS_ENDED)
    world.run(lambda: joining_of(joiner).pull is not None or bool(joiner.joins_failed))
    joiner = persist(world, joiner, hosts[0])
    assert joining_of(joiner).number == number
    go_on(world)


def test_a_request_of_a_joiner_whose_link_is_gone_is_not_served() -> None:
    world, hosts, joiner = copying(0)
    joining = joining_of(joiner)
    world.unlink(hosts[1], joiner, LinkEnd.PROCESS_ENDED)
    node = node_of(hosts[1])
    node.context.effects.clear()
    node.serving.shards_wanted(joiner.me.node, joining.number, joining.shard_bytes, (0,))
    assert not node.context.effects
