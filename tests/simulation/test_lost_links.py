"""Links that end although nobody has died: they are opened again, and nobody goes on apart.

No process ends in these tests. So with `--on-partition pause` no member may ever go on without a
quorum, whatever the network does, and a link that can be opened again costs no member its
membership.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from protocols import limits
from protocols.events import LinkDown
from protocols.network.link_end import LinkEnd
from protocols.scheduler import fence
from tests.simulation import faults, storm
from tests.simulation.faults import Intensities
from tests.simulation.test_failures import cluster
from tests.simulation.test_small_world import finish
from tests.variants import variants

if TYPE_CHECKING:
    from tests.simulation.world import Host, World

NOBODY_DIED = (
    LinkEnd.RESET,
    LinkEnd.SOCKET_ERROR,
    LinkEnd.SILENT,
    LinkEnd.DROPPED,
    LinkEnd.STALLED,
    LinkEnd.CUT,
    LinkEnd.REPLACED,
)
ALIVE = Intensities(delay=0.01, truncate=0.0005, stall=2, cut=3, split=1, one_way=1, pause=1)


def lineages(hosts: list[Host]) -> list[bytes]:
    return [h.node.context.lineage for h in hosts if h.node is not None]


def end_link(world: World, a: Host, b: Host, why: LinkEnd) -> None:
    """End the link between `a` and `b`, each end at its own moment; it can be opened again."""
    world.later(world.delay(), lambda: lose(a, b, why))
    world.later(world.delay(), lambda: lose(b, a, LinkEnd.RESET))


def lose(host: Host, other: Host, why: LinkEnd) -> None:
    if host.links.pop(other.me.node, None) is not None:
        host.handle(LinkDown(other.me.node, why))


@pytest.mark.parametrize("seed", variants(range(1), long=range(6)))
@pytest.mark.parametrize("why", NOBODY_DIED)
@pytest.mark.parametrize("size", [2, 3])
def test_a_link_that_ends_is_opened_again(seed: int, why: LinkEnd, size: int) -> None:
    world, hosts = cluster(seed, size, steps=150)
    before = lineages(hosts)
    for k in range(limits.MOST_STALLS - 1):  # once more, and the link would be given up
        world.later(0.2 * k, lambda: end_link(world, hosts[0], hosts[1], why))
    world.run(lambda: min(h.iteration for h in hosts) > 120)
    assert lineages(hosts) == before
    policy = hosts[0].node.context.policy if hosts[0].node else None
    assert policy is not None
    assert len(policy.view.members) == size
    finish(world)


@pytest.mark.parametrize("seed", variants(range(1), long=range(6)))
@pytest.mark.parametrize("pauses", [True, False])
def test_two_that_are_parted_for_a_moment_go_on_together(seed: int, pauses: bool) -> None:
    world, hosts = cluster(seed, 2, steps=150)
    before = lineages(hosts)
    world.cut(*hosts)
    world.later(limits.HALF_WAIT_SECONDS - 2.5, world.severed.clear)
    world.run(lambda: min(h.iteration for h in hosts) > 120)
    assert lineages(hosts) == before
    finish(world)


@pytest.mark.parametrize("seed", variants(range(3), long=range(40)))
def test_nobody_who_pauses_goes_on_apart_while_all_live(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fence.decide

    def decide(*arguments: object, forks: bool) -> object:
        assert not forks, "a fork although nobody has died"
        return real(*arguments, forks=forks)  # type: ignore[arg-type]

    monkeypatch.setattr(fence, "decide", decide)
    size = faults.stream(seed, "size").choice((2, 2, 3, 4))
    history = storm.Storm(seed, ALIVE, storm.Size(size, 250))
    world = history.world
    world.pauses, world.most_compute, world.most_delay = True, 0.3, 0.01
    for number in range(size):
        world.start(number, first=number == 0)
    world.run(lambda: len(world.members) == size)
    history._worst = [2.0]
    for kind in ("stall", "cut", "split", "one_way", "pause"):
        history._plan(kind, 8.0)  # early enough for everything to have healed before the end
    world.run(lambda: all(h.gone is not None for h in world.hosts.values()))
    history._judge()
    assert {"cut", "split", "one_way", "pause"} <= world.fired.keys()
