"""What the agent that owns a shell gives to it: services and options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from protocols.scheduler.join_cost import JoinWay

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from edgeagent import handover
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
    `join_failed(reason, pause_s, stands_by)` that its join has failed. `use_token` replaces the
    token. `spawn` starts a task whose failure ends the agent.
    """

    to_trainer: ToTrainer
    departed: Callable[[str, str], None]
    join_failed: Callable[[str, float, bool], None]
    use_token: Callable[[bytes], None]
    spawn: Spawn


@dataclass(frozen=True, slots=True)
class Options:
    """The user's choices for the node; the fields are those of `NodeConfig`. `custom` is the user's
    own policy, None for the standard one, and `trees` the shape that the standard one uses."""

    wanted_neighbours: tuple[str, ...] = ()
    pauses: bool = False
    rotate_every: int = 0
    custom: CustomPolicy | None = None
    join_stall_s: float = 0.0
    trees: str = "packed"
    join_way: JoinWay = JoinWay.AUTO
    stands_by: bool = False
