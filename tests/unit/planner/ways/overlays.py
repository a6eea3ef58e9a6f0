"""Random networks to plan ways for, and the linear program's bound of each."""

from __future__ import annotations

import math
import random

from edgeagent.planner.ways.network import Network
from tests.bounds.packing import packing

MBIT = 1e6 / 8


def overlay(seed: int) -> Network:
    """Return 3 to 10 members joined by a random tree and more links, as many as the seed says, up
    to all.

    Each direction of a link has a rate of its own, 5 to 155 Mbit/s, and a delay of 1 to 30 ms.
    Members have limits of 50 to 300 Mbit/s, sending and receiving, for every other seed.
    """
    chance = random.Random(seed)
    count = 3 + seed % 8
    dense = chance.uniform(0.2, 1)
    order = chance.sample(range(count), count)
    tree = {frozenset((order[k], order[chance.randrange(k)])) for k in range(1, count)}
    rates = {}
    for u in range(count):
        for v in range(u):
            if frozenset((u, v)) in tree or chance.random() < dense:
                for ends in ((u, v), (v, u)):
                    rates[ends] = chance.uniform(5, 155) * MBIT
    delays = {ends: chance.uniform(1e-3, 30e-3) for ends in rates}
    up, down = (
        tuple(chance.uniform(50, 300) * MBIT if seed % 2 else math.inf for _ in range(count))
        for _ in range(2)
    )
    return Network(rates, delays, up, down)


def all_pairs(count: int, seed: int = 1, *, limited: bool = False, near: int = 0) -> Network:
    """Return members that are all linked, or each with the `near` next ones in a circle; 5 to 155
    Mbit/s each direction, 30 ms; with limits of 50 to 300 Mbit/s if `limited`."""
    chance = random.Random(seed)
    rates = {
        (u, v): chance.uniform(5, 155) * MBIT
        for u in range(count)
        for v in range(count)
        if u != v and (not near or min((u - v) % count, (v - u) % count) <= near // 2)
    }
    up, down = (
        tuple(chance.uniform(50, 300) * MBIT if limited else math.inf for _ in range(count))
        for _ in range(2)
    )
    return Network(rates, dict.fromkeys(rates, 0.03), up, down)


def bound(network: Network) -> float:
    """Return the least peak of any ways in seconds per byte, as the linear program finds it.

    It takes no infinite limit; what all links carry together is as good as none.
    """
    members = range(network.count)
    rates = [[network.rates.get((u, v), 0.0) for v in members] for u in members]
    every = sum(network.rates.values())
    up = [min(limit, every) for limit in network.up_limits]
    down = [min(limit, every) for limit in network.down_limits]
    return 1 / packing(rates, up, down).rate
