"""What the agent that owns a shell gives to it: services and options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from edgeagent.config import PAUSE
from edgeagent.plugins import load_policy
from protocols.scheduler.join_cost import JoinWay

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from edgeagent import handover
    from edgeagent.config import AgentConfig
    from edgeagent.planner.policies import CustomPolicy
    from edgeagent.search import Spawn


class ToTrainer(Protocol):
    """Sends one message to the trainer."""

    def __call__(
        self, message: handover.Message, ready: asyncio.Future[None] | None = None
    ) -> None:
        """Send it when `ready` is done, before whatever is sent later."""


@dataclass(frozen=True, slots=True)
class Owner:
    """What the agent does for its shell.

    `departed(why, message)` says that the node is no member any more, and
    `join_failed(reason, pause_s, stands_by)` that its join has failed. `stands_by(reason)` says
    that it follows from outside for now. `use_token` replaces the token. `spawn` starts a task
    whose failure ends the agent.
    """

    to_trainer: ToTrainer
    departed: Callable[[str, str], None]
    join_failed: Callable[[str, float, bool], None]
    stands_by: Callable[[str], None]
    use_token: Callable[[bytes], None]
    spawn: Spawn


@dataclass(frozen=True, slots=True)
class Options:
    """The user's choices for the node; the fields are those of `NodeConfig`. `custom` is the user's
    own policy, None for the standard one, and `trees` the shape that the standard one uses. If this
    device founds a cluster, `wait_for` devices have to be there before its trainer gets work."""

    wanted_neighbours: tuple[str, ...] = ()
    pauses: bool = False
    rotate_every: int = 0
    custom: CustomPolicy | None = None
    join_stall_s: float = 0.0
    trees: str = "packed"
    join_way: JoinWay = JoinWay.AUTO
    stands_by: bool = False
    follows: bool = False
    wait_for: int = 1


def options_of(config: AgentConfig) -> Options:
    """Return those of the user's choices that concern the node; raise `UsageError` if there is no
    policy of the name that the user has given."""
    return Options(
        wanted_neighbours=config.neighbours,
        pauses=config.on_partition == PAUSE,
        rotate_every=config.rotate_every,
        custom=load_policy(config.policy) if config.policy else None,
        join_stall_s=config.join_stall,
        trees=config.trees,
        join_way=JoinWay(config.join_way),
        stands_by=config.standby != "never",
        follows=config.standby == "always",
        wait_for=config.wait_for,
    )
