"""Joins in a cluster whose state begins with frozen weights: who has them does not pull them."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from protocols.errors import RemoteProtocolError
from protocols.events import OwnShardsHashed
from protocols.member.joining_table import JoiningState
from protocols.scheduler.join_cost import JoinCost
from protocols.wire.messages import ManifestRequest
from tests.simulation.numbers import CONSTANT_BYTES
from tests.unit.protocols.clusters import cluster, enter, go_on, node_of, reach

if TYPE_CHECKING:
    from tests.simulation.world import Host

each_seed = pytest.mark.parametrize("seed", range(2))
SAME, OTHER = 6, 4  # devices with the same frozen weights as device 0, and with others


def spared(host: Host) -> int:
    """Return how many bytes of the state a joiner needed not pull."""
    return sum(r.values["spared_bytes"] for r in host.reports if r.event == "pull_spares")


@each_seed
def test_frozen_weights_that_are_here_are_not_pulled(seed: int) -> None:
    world, hosts = cluster(seed, is_frozen=True)
    joiner = world.join(SAME, hosts[0])
    reach(world, joiner, JoiningState.PULLING)
    node = node_of(joiner)
    joining = node.joining
    assert joining is not None
    assert joining.pull is not None
    assert joining.pull.keeps_own  # nobody hashes them
    assert joining.keeps_constants
    enter(world, joiner)
    assert spared(joiner) == CONSTANT_BYTES // joining.shard_bytes * joining.shard_bytes > 0
    progress = joining.progress(world.now)
    assert progress.pulled_bytes == progress.total_bytes
    assert progress.total_bytes == node.context.config.state_bytes - spared(joiner)
    assert node.context.constants == node_of(hosts[0]).context.config.constants
    go_on(world)


@each_seed
def test_who_may_have_overwritten_its_frozen_weights_looks_at_each_shard(seed: int) -> None:
    world, hosts = cluster(seed, is_frozen=True)
    joiner = world.join(SAME, hosts[0])
    context = node_of(joiner).context
    context.config = replace(context.config, constants=b"")
    reach(world, joiner, JoiningState.LINKING)
    joining = node_of(joiner).joining
    assert joining is not None
    keeps = [joining.keeps_constants]
    reach(world, joiner, JoiningState.PULLING)
    assert [*keeps, joining.keeps_constants] == [True, False]
    assert spared(joiner) == 0
    enter(world, joiner)
    assert spared(joiner) > 0
    go_on(world)


@each_seed
def test_other_frozen_weights_are_pulled(seed: int) -> None:
    world, hosts = cluster(seed, is_frozen=True)
    joiner = world.join(OTHER, hosts[0])
    before = joiner.constant
    enter(world, joiner)
    assert spared(joiner) == 0
    assert joiner.constant == hosts[0].constant != before
    context = node_of(joiner).context
    assert context.constants == node_of(hosts[0]).context.constants != context.config.constants
    go_on(world)


@pytest.mark.parametrize("number", [SAME, OTHER])
def test_the_scheduler_is_told_which_frozen_weights_a_joiner_has(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, hosts = cluster(0, is_frozen=True)
    told: list[tuple[bytes, bytes]] = []
    real = JoinCost.refusal

    def refusal(cost: JoinCost, name: str, rates: tuple[int, ...], constants: bytes) -> str:
        told.append((cost.constants, constants))
        return real(cost, name, rates, constants)

    monkeypatch.setattr(JoinCost, "refusal", refusal)
    joiner = world.join(number, hosts[0])
    own = hashlib.sha256(joiner.constant).digest()
    enter(world, joiner)
    assert told == [(hashlib.sha256(hosts[0].constant).digest(), own)]


def test_digests_are_asked_for_of_shards_that_exist() -> None:
    world, hosts = cluster(0, is_frozen=True)
    joiner = world.join(SAME, hosts[0])
    reach(world, joiner, JoiningState.PULLING)
    node = node_of(joiner)
    assert node.joining is not None
    number, size = node.joining.number, node.context.config.state_bytes
    wanted = ManifestRequest(number, size, 0)  # the whole state is one shard
    node_of(hosts[0]).serving.manifest_wanted(joiner.me.node, wanted)
    with pytest.raises(RemoteProtocolError, match="do not exist"):
        node_of(hosts[0]).serving.manifest_wanted(joiner.me.node, replace(wanted, first=1))


def test_digests_of_another_join_or_of_none_are_of_no_use() -> None:
    world, hosts = cluster(0, is_frozen=True)
    joiner = world.join(SAME, hosts[0])
    digests = OwnShardsHashed(0, (bytes(32),) * 2)
    hosts[0].handle(digests)  # it has not joined, but founded
    reach(world, joiner, JoiningState.LINKING)
    joining = node_of(joiner).joining
    assert joining is not None
    joiner.handle(replace(digests, join=joining.number))  # nothing is pulled yet
    reach(world, joiner, JoiningState.PULLING)
    joiner.handle(replace(digests, join=joining.number + 1))
    enter(world, joiner)
    assert spared(joiner) > 0
