"""Tells the trainer how many agents run on this device, because they share its processor cores."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from edgeagent.handover import AgentsHere
from edgeagent.local.state_dir import running_agents

if TYPE_CHECKING:
    from edgeagent.trainer_link import TrainerLink

POLL_SECONDS = 2.0


async def watch_same_device(root: str, link: TrainerLink) -> None:
    """Tell the trainer for ever how many agents of this user run here, whenever that changes.

    `root` is the folder of their state directories. Agents of other users, and those in containers,
    are not seen.
    """
    told = 1
    while True:
        agents = max(1, len(await asyncio.to_thread(running_agents, root)))
        if agents != told:
            told = agents
            link.send(AgentsHere(agents))
        await asyncio.sleep(POLL_SECONDS)
