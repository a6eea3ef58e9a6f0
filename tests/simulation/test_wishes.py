"""What users want of a running cluster (links, expulsions, tokens), and the scheduler's
rotation."""

from __future__ import annotations

from functools import partial

import pytest

from protocols.cluster.view import edge
from protocols.events import ExpelWanted, LinkWanted, TokenWanted
from tests.simulation.test_failures import cluster
from tests.simulation.test_small_world import finish, stop
from tests.simulation.world import Host, World
from tests.variants import variants

SEEDS = variants(range(2), long=range(20))
TOKEN = b"t" * 16


def wants(world: World, host: Host, wish: LinkWanted | ExpelWanted) -> str:
    """Let the user of `host` want something, and run until there is an answer; return that."""
    assert host.node is not None
    wishes = host.node.wishes
    host.handle(wish)
    world.run(lambda: wishes.answer(wish) is not None)
    answer = wishes.answer(wish)
    assert answer is not None
    return answer


def all_use(hosts: list[Host], token: bytes) -> bool:
    return all(host.token == token for host in hosts)


def edges(host: Host) -> list[tuple[bytes, bytes]]:
    assert host.node is not None
    assert host.node.context.policy is not None
    return [(e.low, e.high) for e in host.node.context.policy.view.edges]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_link_is_removed_and_stays_away_until_it_is_added(seed: int) -> None:
    world, hosts = cluster(seed, 4, steps=400)
    a, b = world.random.sample(hosts, 2)
    pair = edge(a.me.node, b.me.node)
    ends = (pair.low, pair.high)
    assert wants(world, a, LinkWanted(b.me.node, False)) == ""
    world.run(lambda: b.me.node not in a.links and a.me.node not in b.links)
    before = world.now
    world.run(lambda: world.now > before + 1.0)
    assert all(ends not in edges(h) for h in hosts)
    assert b.me.node not in a.links, "nobody opens it again"
    assert wants(world, b, LinkWanted(a.me.node, True)) == ""
    assert a.me.node in b.links
    assert wants(world, b, LinkWanted(a.me.node, True)) == "", "it is there already"
    stop(world)


def test_the_last_link_between_two_parts_is_not_removed() -> None:
    world, hosts = cluster(0, 2, steps=200)
    answer = wants(world, hosts[1], LinkWanted(hosts[0].me.node, False))
    assert "in two" in answer
    stop(world)


def test_a_link_to_a_stranger_or_to_oneself_is_refused() -> None:
    world, hosts = cluster(0, 3, steps=200)
    assert "no such member" in wants(world, hosts[1], LinkWanted(bytes(32), True))
    assert "no such member" in wants(world, hosts[1], ExpelWanted(bytes(32)))
    stop(world)


def test_a_link_that_cannot_be_opened_is_refused() -> None:
    world, hosts = cluster(0, 3, steps=200)
    assert wants(world, hosts[1], LinkWanted(hosts[2].me.node, False)) == ""
    world.run(lambda: hosts[2].me.node not in hosts[1].links)
    world.unreachable = lambda host, other: {host, other} == {hosts[1], hosts[2]}
    assert "could be opened" in wants(world, hosts[1], LinkWanted(hosts[2].me.node, True))
    stop(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_link_is_removed_while_the_scheduler_dies(seed: int) -> None:
    world, hosts = cluster(seed, 4, steps=400)
    world.before(world.random.randint(1, 60), partial(world.kill, hosts[0]))
    a, b = world.random.sample(hosts[1:], 2)
    assert wants(world, a, LinkWanted(b.me.node, False)) == ""
    world.run(lambda: hosts[0].gone is not None)  # it may die only after that
    stop(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_member_is_expelled(seed: int) -> None:
    world, hosts = cluster(seed, 4, steps=400)
    who, victim = world.random.sample(hosts, 2)
    assert wants(world, who, ExpelWanted(victim.me.node)) == ""
    world.run(lambda: victim.gone is not None)
    assert victim.gone == "removed"
    rest = [h for h in hosts if h is not victim]
    world.run(lambda: all(len(edges(h)) == 3 for h in rest))
    assert all("expelled" in [r.values.get("reason") for r in h.reports] for h in rest)
    world.joins_end = True
    again = world.join(hosts.index(victim), rest[0], incarnation=2)
    world.run(lambda: again.gone is not None)
    assert "expelled" in again.joins_failed[0]
    stop(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_new_token_reaches_all_members_and_those_that_enter_later(seed: int) -> None:
    world, hosts = cluster(seed, 3, steps=500)
    late = world.join(3, hosts[1])
    world.before(world.random.randint(1, 80), partial(hosts[2].handle, TokenWanted(TOKEN)))
    world.run(lambda: all(h.token == TOKEN for h in (*hosts, late)))
    stop(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_last_of_several_tokens_counts(seed: int) -> None:
    world, hosts = cluster(seed, 3, steps=400)
    for number in range(6):
        token = world.random.randbytes(16)
        hosts[number % 3].handle(TokenWanted(token))
        world.run(partial(all_use, hosts, token))
    stop(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_expelled_one_does_not_hear_the_new_token(seed: int) -> None:
    world, hosts = cluster(seed, 4, steps=400)
    who, victim = world.random.sample(hosts, 2)
    assert wants(world, who, ExpelWanted(victim.me.node)) == ""
    who.handle(TokenWanted(TOKEN))
    rest = [h for h in hosts if h is not victim]
    world.run(lambda: all(h.token == TOKEN for h in rest) and victim.gone is not None)
    stop(world)
    assert victim.token == b""


@pytest.mark.parametrize("seed", SEEDS)
def test_the_role_rotates(seed: int) -> None:
    world = World(seed, steps=200)
    world.rotate_every = 10
    hosts = [world.found()]
    for number in range(1, 4):
        hosts.append(world.join(number, hosts[0]))
        world.run(lambda: len(world.members) == len(hosts))
    if seed % 2:
        world.later(1.0, partial(world.kill, hosts[seed % 4]))
    finish(world)
    assert len({node for _, node in world.leaders.items()}) >= 2
    why = [r.values["why"] for h in hosts for r in h.reports if r.event == "scheduler"]
    assert "rotated" in why


@pytest.mark.parametrize("seed", variants(range(2), long=range(6)))
def test_a_minority_that_pauses_waits(seed: int) -> None:
    world = World(seed, steps=150)
    world.pauses = True
    hosts = [world.found()]
    for number in range(1, 5):
        hosts.append(world.join(number, hosts[0]))
    world.run(lambda: len(world.members) == 5 and all(len(edges(h)) == 10 for h in hosts))
    world.unreachable = lambda host, other: (host in hosts[:2]) != (other in hosts[:2])
    for a in hosts[:2]:
        for b in hosts[2:]:
            world.cut(a, b)
    world.run(lambda: all(h.gone == "steps" for h in hosts[2:]))
    before = world.now
    world.run(lambda: world.now > before + 60.0)
    assert all(h.gone is None for h in hosts[:2])
