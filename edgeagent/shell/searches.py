"""Searches for ways, in a thread of their own: messages and chunks go on meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from protocols import events

if TYPE_CHECKING:
    from edgeagent.search import Spawn
    from edgeagent.shell.hub import Hub
    from protocols import effects
    from protocols.scheduler.planning import Planner


class Searches:
    """The searches of one agent's planner. The node begins one only after the last has ended."""

    def __init__(self, hub: Hub, planner: Planner, spawn: Spawn) -> None:
        self._hub = hub
        self._planner = planner
        self._spawn = spawn

    def perform(self, effect: effects.PlannerEffect) -> None:
        """Begin a search, and give the node what it finds."""
        self._spawn(self._search(effect))

    async def _search(self, effect: effects.PlannerEffect) -> None:
        node = self._hub.node
        if node is None:
            return
        measures = node.monitor.measures  # as they are now; the thread sees no change of them
        found = await asyncio.to_thread(
            self._planner.search, effect.policy, measures, effect.before
        )
        if self._hub.node is node:
            self._hub.handle(events.WaysFound(effect.number, found))
