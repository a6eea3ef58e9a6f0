"""Messages of a join are lost with the link that carried them.

The join has to go on soon after a repetition, and not only after the minute in which the scheduler
gives up a join without progress.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from protocols.member.joining_table import JoiningState
from protocols.wire import messages as m
from tests.simulation.test_failures import cluster
from tests.simulation.test_small_world import stop
from tests.variants import variants

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.world import Host

OF_A_JOIN = (
    m.JoinRequest,
    m.OpenLinks,
    m.LinksOpen,
    m.PullBegins,
    m.Pulled,
    m.CaughtUp,
)
SECONDS = 15.0  # a lost manifest costs ten, until its source is replaced


def first_lost(kind: type[m.Message]) -> Callable[[Host, Host, m.Message], bool]:
    """Return a function for `World.lose` that loses the first message of this kind from each sender
    to each receiver."""
    gone: dict[tuple[bytes, bytes], None] = {}

    def lose(sender: Host, receiver: Host, message: m.Message) -> bool:
        way = sender.me.node, receiver.me.node
        if not isinstance(message, kind) or way in gone:
            return False
        gone[way] = None
        return True

    return lose


CASES = [
    (3, m.Introduced),  # not with one member, which sends this to itself
    *((size, kind) for size in (1, 3) for kind in OF_A_JOIN),
]


@pytest.mark.parametrize("seed", variants(range(1), long=range(2)))
@pytest.mark.parametrize(("size", "kind"), CASES)
def test_a_join_whose_messages_are_lost_once(size: int, kind: type[m.Message], seed: int) -> None:
    world, hosts = cluster(seed, size, steps=300)
    world.lose = first_lost(kind)
    late = world.join(size, hosts[0])
    began = world.now
    world.run(lambda: late.node is not None and _has_entered(late))
    assert world.lost > 0
    assert world.now - began < SECONDS
    stop(world)


def _has_entered(host: Host) -> bool:
    joining = host.node.joining if host.node is not None else None
    return joining is not None and joining.state is JoiningState.ENTERED
