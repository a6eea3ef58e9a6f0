"""Joins beside the training with real shells: what sources keep, what travels, what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeagent.dataplane import snapshot
from protocols.errors import RemoteProtocolError
from protocols.member import pull
from protocols.member.joining_table import JoiningState
from protocols.rounds.control_word import EMPTY
from protocols.scheduler.join_cost import JoinWay
from protocols.wire.bulk import BulkHeader, BulkKind
from protocols.wire.messages import UpdateRecord
from tests.simulation.virtual.world import Host, World, play
from tests.variants import variants

SEEDS = variants(range(4), long=range(12))
STEPS = 150


def state_of(host: Host) -> JoiningState | None:
    node = host.shell.node
    return node.joining.state if node is not None and node.joining is not None else None


def keeps(host: Host) -> tuple[int, int]:
    """Return how many snapshots and how many updates a host keeps for joiners."""
    kept = host.shell.copies
    return len(kept._snapshots), len(kept._updates)


async def members(world: World, count: int = 3) -> list[Host]:
    world.join_way = JoinWay.BESIDE
    hosts = await world.cluster(count)
    await world.until(lambda: hosts[0].trainer.iteration >= 20)
    return hosts


async def copying(world: World) -> tuple[list[Host], Host]:
    """Return members, and a joiner that has begun to copy."""
    hosts = await members(world)
    joiner = world.host()
    joiner.join(hosts[0])
    await world.until(lambda: state_of(joiner) is JoiningState.COPYING)
    return hosts, joiner


async def nobody_waits(world: World) -> None:
    hosts, joiner = await copying(world)
    assert any(keeps(host)[0] for host in hosts)
    await world.until(lambda: joiner.is_member)
    (joined,) = joiner.all("joined")
    assert joined["updates"] > 0
    assert sum(source["bytes"] for source in joined["sources"]) == joined["bytes"]
    await world.until(lambda: all(keeps(host) == (0, 0) for host in hosts))
    assert not joiner.shell.copies._incoming


async def a_source_is_killed(world: World) -> None:
    hosts, joiner = await copying(world)
    hosts[1].kill()
    await world.until(lambda: joiner.is_member)


async def memory_is_short(world: World) -> None:
    hosts = await members(world)
    joiner = world.host()
    joiner.join(hosts[0])
    await world.until(lambda: joiner.is_member)
    assert joiner.all("joined")[0]["updates"] == 0


async def the_joiner_is_killed(world: World) -> None:
    hosts, joiner = await copying(world)
    joiner.kill()
    await world.until(lambda: all(keeps(host) == (0, 0) for host in hosts))


async def several_copy_together(world: World) -> None:
    (first,) = await members(world, 1)
    joiners = [world.host() for _ in range(3)]
    for joiner in joiners:
        joiner.join(first)
    await world.until(lambda: all(joiner.is_member for joiner in joiners))
    named = [source["node"] for joiner in joiners for source in joiner.all("joined")[0]["sources"]]
    assert {joiner.name for joiner in joiners} & set(named), "none has sent another one anything"
    for joiner in joiners:
        assert not joiner.shell.pulls._aside
    await world.until(lambda: all(keeps(host) == (0, 0) for host in (first, *joiners)))


@pytest.mark.parametrize("seed", variants(range(1), long=range(1, 6)))
def test_joiners_serve_each_other(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull, "WINDOW_SECONDS", 0.0)  # a few shards at a time
    play(several_copy_together, seed, steps=400)


@pytest.mark.parametrize("seed", SEEDS)
def test_nobody_waits(seed: int) -> None:
    play(nobody_waits, seed, steps=STEPS)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_source_is_killed(seed: int) -> None:
    play(a_source_is_killed, seed, steps=STEPS)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_joiner_is_killed(seed: int) -> None:
    play(the_joiner_is_killed, seed, steps=STEPS)


def test_without_memory_for_a_snapshot_the_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "SPARE", 1e12)
    play(memory_is_short, 0, steps=STEPS)


def part(joiner: Host, **changes: int) -> BulkHeader:
    """Return the header of a part of the first update that the joiner lacks."""
    node = joiner.shell.node
    assert node is not None
    assert node.joining is not None
    values = {"iteration": node.context.iteration, "index": 0, "length": 8} | changes
    lineage, number = node.context.lineage, node.joining.number
    at, index, length = values["iteration"], values["index"], values["length"]
    return BulkHeader(BulkKind.UPDATE, lineage, 0, 0, at, 0, index, length, reference=number)


def test_parts_that_nobody_wants_are_not_taken() -> None:
    async def story(world: World) -> None:
        hosts, joiner = await copying(world)
        received, source = joiner.shell.copies, hosts[0].me.node
        assert received.arriving(b"?" * 32, part(joiner)) is None
        assert received.arriving(source, part(joiner, iteration=10**6)) is None
        assert received.arriving(source, part(joiner, index=10**6)) is None
        assert not received._incoming, "no memory is reserved for what was not asked for"
        received.received(joiner.shell.peers.links[source], part(joiner, iteration=10**6))
        assert hosts[0].shell.copies.arriving(source, part(joiner)) is None, "it is no joiner"
        node = joiner.shell.node
        assert node is not None
        assert node.joining is not None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(node.joining, "expects_update", lambda *_: True)
            with pytest.raises(RemoteProtocolError, match="wrong length"):
                received.arriving(source, part(joiner, length=7))
        received._incoming.clear()
        await world.until(lambda: joiner.is_member)

    play(story, 1, steps=STEPS)


def test_an_update_that_lacks_micro_batches_is_refused() -> None:
    async def story(world: World) -> None:
        _, joiner = await copying(world)
        more = replace(EMPTY, done=b"\xff\x01").encode()
        lacking = replace(EMPTY, done=b"\x7f").encode()
        with pytest.raises(RemoteProtocolError, match="lacks micro-batches"):
            joiner.shell.copies.check(UpdateRecord(1, 1, lacking, 1, bytes(32), ()))
        with pytest.raises(RemoteProtocolError, match="there are none of"):
            joiner.shell.copies.check(UpdateRecord(1, 1, more, 1, bytes(32), ()))
        await world.until(lambda: joiner.is_member)

    play(story, 2, steps=STEPS)


def test_memory_that_ends_while_a_snapshot_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_state: memoryview) -> memoryview:
        raise MemoryError

    monkeypatch.setattr(snapshot, "private_memory", fails)
    play(memory_is_short, 1, steps=STEPS)


def test_a_full_disk_is_no_reason_to_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    play(nobody_waits, 3, steps=STEPS)
