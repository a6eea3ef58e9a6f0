"""Whole histories with one lying member, and what must come out of them."""

from __future__ import annotations

import asyncio
import random

from protocols.network.link_end import LinkEnd
from protocols.wire.messages import MESSAGES, Expel, Lead
from tests.simulation.virtual.liar import BULK_LIES, Liar, lie_of
from tests.simulation.virtual.loop import VirtualLoop
from tests.simulation.virtual.trainer import expected_state
from tests.simulation.virtual.world import Host, World

SUBJECTS = len(MESSAGES) + len(BULK_LIES)
MEMBERS = 4
LINKS = MEMBERS * (MEMBERS - 1) // 2
STEPS = 60
# Lies about which policy a reduced word names: members below the liar accuse the root.
POLICY_LIES = (("word down", "term"), ("word down", "version"))
PATIENCE_S = 60.0  # virtual seconds within which the honest members must finish


def play(seed: int) -> Liar:
    """Play the history of `seed`. Raises AssertionError if the honest members do not finish."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(_history(seed))


def problem_of(seed: int) -> str:
    """Return what goes wrong in the history of `seed`, "" if nothing does."""
    try:
        play(seed)
    except Exception as error:
        lines = str(error).splitlines() or ["no more is said"]
        return f"{type(error).__name__}: {lines[-1]}"
    return ""


async def _history(seed: int) -> Liar:
    world = World(seed, STEPS)
    dice = random.Random(seed)
    hosts = await world.cluster(MEMBERS)
    at = dice.randrange(12, 18)
    await world.until(lambda: all(host.edges == LINKS for host in hosts))
    await world.until(lambda: hosts[0].trainer.iteration >= at)
    liar = Liar(dice.choice(hosts), lie_of(seed))
    honest = [host for host in hosts if host is not liar.host]
    await world.passes(dice.uniform(0.0, 0.1))
    if dice.random() < 0.5:  # cause a fence, so that the liar can lie in it
        victims = sorted(hosts, key=lambda host: host is liar.host)
        a, b = victims[0], victims[1]
        if b.me.node in a.network.links:
            a.network.links[b.me.node].down("cut by the test", LinkEnd.RESET)
            if a.me.node in b.network.links:
                b.network.links[a.me.node].down("cut by the test", LinkEnd.RESET)
    await world.until(lambda: all(host.gone is not None for host in honest), PATIENCE_S)
    if liar.lie.kind is Expel:  # every member may expel another one, so that is no lie
        honest = [host for host in honest if host.gone != "removed"]
    _judge(honest, may_part=liar.lie.kind is Lead or liar.lie.bulk in POLICY_LIES)
    return liar


def _judge(honest: list[Host], *, may_part: bool) -> None:
    """Check that the honest members have finished, with the right state, and have not accused each
    other. `may_part`: nobody can tell the lie from the truth, so honest members may lose their
    membership (docs/protocol.md, 12.5); those that finish must have the right state
    nevertheless."""
    names = [host.name for host in honest]
    if may_part:
        honest = [host for host in honest if host.gone == "steps"]
        assert honest, "nobody has finished"
    for host in honest:
        assert host.gone == "steps", f"{host.name} ended with {host.gone!r}"
        assert host.trainer.state == expected_state(STEPS)
        if may_part:
            continue
        for event in host.all("accused"):
            both = event["by"] in names and event["node"] in names
            assert not both, f"{event['by']} parted from {event['node']}: {event['reason']}"
