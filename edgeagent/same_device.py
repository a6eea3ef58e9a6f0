"""Tells the trainer how many agents run on this device, because they share its processor cores."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from edgeagent.handover import AgentsHere
from edgeagent.local.state_dir import running_agents, this_machine

if TYPE_CHECKING:
    from edgeagent.trainer_link import TrainerLink

POLL_SECONDS = 2.0


async def watch_same_device(root: str, link: TrainerLink) -> None:
    """Tell the trainer for ever how many agents of this user run here, whenever that changes.

    `root` is the folder of their state directories, which machines may share. Agents of other
    users, and those with a folder of their own, as in containers, are not seen.
    """
    told, machine = 1, this_machine()
    while True:
        running = await asyncio.to_thread(running_agents, root)
        agents = max(1, sum(agent.machine == machine for agent in running))
        if agents != told:
            told = agents
            link.send(AgentsHere(agents))
        await asyncio.sleep(POLL_SECONDS)
