"""Back pressure of joiners that follow the rounds, as `shell/rounds.py` has it.

Gradients are larger than what a link takes on its way. So a member gives an update to its trainer
only when the joiners to which it forwards the running round have come as far, and take it in. The
link to a joiner that does not come as far for `limits.JOIN_PROGRESS_SECONDS` is closed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from protocols import events, limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.host import Host

LOOK_SECONDS = 0.05  # between two looks whether it takes them in


def when_followed(host: Host, iteration: int, then: Callable[[], None]) -> None:
    """Call `then`, which hands the update of `iteration` over, once every joiner that follows
    `host` reads the running round."""
    if not behind(host):
        then()
        return
    host.soon(LOOK_SECONDS, partial(_look_again, host, iteration, then, host.world.now))


def _look_again(host: Host, iteration: int, then: Callable[[], None], since: float) -> None:
    waited_for = behind(host)
    if not waited_for:
        then()
        host.handle(events.UpdateDelayed(iteration))
        return
    if host.world.now - since > limits.JOIN_PROGRESS_SECONDS:
        for joiner in waited_for:
            host.hang_up(joiner, host.ends.get(joiner))
        since = host.world.now
    host.soon(LOOK_SECONDS, partial(_look_again, host, iteration, then, since))


def behind(host: Host) -> list[bytes]:
    """Return the joiners that get chunks of the running round and have not come as far, so that
    they take none of them in."""
    node, reduce = host.node, host.reduce
    policy = node.context.policy if node is not None else None
    if node is None or reduce is None or policy is None or not node.context.is_member:
        return []
    if reduce.round.spec.chunks == 1:  # a control word alone is on its way at once
        return []
    followers = [j for j in policy.subscribers(host.me.node) if not node.followers.has_failed(j)]
    here = reduce.round.spec.key[3:]  # iteration and attempt
    return [j for j in followers if j in node.context.links and _is_before(host, j, here)]


def _is_before(host: Host, joiner: bytes, here: tuple[int, ...]) -> bool:
    there = host.world.hosts[joiner].reduce
    return there is None or there.round.spec.key[3:] < here
