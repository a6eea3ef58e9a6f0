"""One random history per seed: joins, leaves, deaths, link failures, drawn with their intensity.

Law: the seed decides everything, so a seed that fails, fails again. `run` raises AssertionError
when an invariant breaks or the survivors stop making progress.
"""

from __future__ import annotations

from functools import partial

from protocols.effects import LeaveWanted
from tests.simulation.world import Host, World, expected_state

STEPS = 120


def run(seed: int) -> World:
    """Play the history of `seed` to its end and check it."""
    world = World(seed, steps=STEPS, micro_batches=4 + seed % 5)
    world.joins_end = True
    draw = world.random
    hosts = [world.found()]
    for number in range(1, draw.randint(2, 5)):
        hosts.append(world.join(number, hosts[0]))
    if draw.random() < 0.7:
        world.run(lambda: len(world.members) == len(hosts) or not running(world))
    for _ in range(draw.randint(1, 5)):
        world.later(draw.uniform(0.0, 2.0), partial(happen, world))
    world.run(lambda: not running(world))
    for host in world.hosts.values():
        if host.gone == "steps":
            assert host.state == expected_state(STEPS, world.micro_batches)
    return world


def running(world: World) -> list[Host]:
    return [h for h in world.hosts.values() if h.gone is None]


def happen(world: World) -> None:
    """One thing happens to somebody."""
    draw = world.random
    alive = running(world)
    members = world.members
    if len(alive) < 2 or not members:
        return
    kind = draw.choice(("kill", "kill", "leave", "join", "cut", "kill two"))
    victim = draw.choice(alive)
    if kind == "join" and len(world.hosts) < 9:
        world.join(len(world.hosts), draw.choice(members))
    elif kind == "leave":
        victim.handle(LeaveWanted())
    elif kind == "cut" and victim.links:
        other = draw.choice(sorted(victim.links.values(), key=lambda h: h.me.node))
        world.cut(victim, other)
    elif kind.startswith("kill"):
        world.kill(victim)
        if kind == "kill two" and len(alive) > 2:
            world.kill(draw.choice([h for h in alive if h is not victim]))
