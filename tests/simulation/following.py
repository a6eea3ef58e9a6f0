"""Back pressure of joiners that follow the rounds, as `shell/rounds.py` has it.

Gradients are larger than what a link takes on its way. So a member gives an update to its trainer
only when the joiners to which it forwards the running round have come as far, and take it in. A
joiner that does not come as far is waited for as long as the link between them lasts.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from protocols import events

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.host import Host

LOOK_SECONDS = 0.05  # between two looks whether it takes them in


def when_followed(host: Host, iteration: int, then: Callable[[], None]) -> None:
    """Call `then`, which hands the update of `iteration` over, once every joiner that follows
    `host` reads the running round."""
    if not is_behind(host):
        then()
        return
    host.soon(LOOK_SECONDS, partial(_look_again, host, iteration, then))


def _look_again(host: Host, iteration: int, then: Callable[[], None]) -> None:
    if is_behind(host):
        host.soon(LOOK_SECONDS, partial(_look_again, host, iteration, then))
    else:
        then()
        host.handle(events.UpdateDelayed(iteration))


def is_behind(host: Host) -> bool:
    """Whether a joiner gets chunks of the running round and has not come as far, so that it takes
    none of them in."""
    node, reduce = host.node, host.reduce
    policy = node.context.policy if node is not None else None
    if node is None or reduce is None or policy is None or not node.context.is_member:
        return False
    if reduce.round.spec.chunks == 1:  # a control word alone is on its way at once
        return False
    followers = [j for j in policy.subscribers(host.me.node) if not node.followers.has_failed(j)]
    linked = [host.world.hosts[j].reduce for j in followers if j in node.context.links]
    here = reduce.round.spec.key[3:]  # iteration and attempt
    return any(there is None or there.round.spec.key[3:] < here for there in linked)
