"""Has an agent pause and go on, as `decision.py` says.

A device that pauses is away, as with `trainer.away()`: it stays a member, applies all updates and
computes nothing, and the others take its share. If it is alone, its work is kept from its trainer,
and training stands still; a newcomer is still let in. If all devices of a cluster pause, each keeps
its work for `decision.HOLD_SECONDS` only: so they make about a step a minute, and who goes on does
not wait longer than that for those who still pause. A metered connection is another matter, because
sums pass through members that are away, too: there the device leaves the cluster and joins again
later.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Protocol

from edgeagent.pausing.decision import Keeping, Part, Pausing, Reason, Wishes
from edgeagent.pausing.facts import facts_of, this_device

if TYPE_CHECKING:
    from edgeagent.config import AgentConfig
    from edgeagent.membership import Membership
    from edgeagent.observer import Observer
    from edgeagent.pausing.facts import Device
    from edgeagent.shell import Shell
    from edgeagent.trainer_link import TrainerLink
    from protocols.member.node import Node

POLL_SECONDS = 1.0
_SOURCES = {
    Reason.BATTERY: "whether this device runs on battery",
    Reason.ACTIVITY: "when this device was last used",
    Reason.METERED: "whether its network connection is metered",
}


class PausedAgent(Protocol):
    """The agent, as far as a pause needs it."""

    shell: Shell | None
    trainer_link: TrainerLink
    membership: Membership
    observer: Observer


def wishes_of(config: AgentConfig) -> Wishes:
    """Return when the user wants this device to pause."""
    return Wishes(config.pause_on_battery, config.pause_on_activity, config.pause_on_metered)


async def watch_pauses(
    config: AgentConfig, agent: PausedAgent, device: Device | None = None
) -> None:
    """Have `agent` pause and go on for ever, unless the user wants no pauses."""
    wishes = wishes_of(config)
    if not wishes.any:
        return
    device = device or this_device(sys.platform, os.environ)
    watch = PauseWatch(wishes, agent)
    while True:
        facts = await asyncio.to_thread(facts_of, device, wishes)
        watch.decision.see(asyncio.get_running_loop().time(), facts)
        watch.act()
        await asyncio.sleep(POLL_SECONDS)


class PauseWatch:
    """What follows from the decision for one agent."""

    def __init__(self, wishes: Wishes, agent: PausedAgent) -> None:
        self.decision = Pausing(wishes)
        self._wishes = wishes
        self._agent = agent
        self._told: tuple[Reason, ...] = ()
        self._warned: set[Reason] = set()
        self._keeping = Keeping()

    def act(self) -> None:
        """Pause or go on, as the decision is now, and say so if that has changed."""
        self._warn()
        self._tell()
        agent, reasons, part = self._agent, self.decision.reasons, self._part
        out, now = Reason.METERED in reasons, asyncio.get_running_loop().time()
        link = agent.trainer_link
        if self._keeping.lets_out(now, part, is_kept=link.is_holding):
            link.hold(work=False, rejoin=out)  # lets out what is kept, and no more
        link.hold(work=self._keeping.keeps(reasons, part), rejoin=out)
        if agent.shell is not None:
            agent.shell.trainer.pause(bool(reasons))
            if out:
                agent.membership.stand_aside()

    @property
    def _part(self) -> Part:
        """What part this device has in its cluster."""
        node = self._node
        if node is None:
            return Part()
        joins = node.negotiator.joins.open.values() if node.negotiator is not None else ()
        newcomers = any(not join.outside for join in joins)
        return Part(bool(node.context.departs), newcomers, not node.context.is_alone)

    @property
    def _node(self) -> Node | None:
        """The node, None if there is none that takes part."""
        node = self._agent.shell.node if self._agent.shell is not None else None
        return None if node is None or node.over else node

    def _tell(self) -> None:
        reasons, before = self.decision.reasons, self._told
        if reasons == before:
            return
        self._told = reasons
        self._agent.observer.paused(
            [reason.value for reason in reasons],
            " and ".join(self._wishes.text(reason) for reason in reasons),
        )

    def _warn(self) -> None:
        """Say once of each fact that it is not known."""
        for reason in self.decision.unknown:
            if reason not in self._warned:
                self._warned.add(reason)
                self._agent.observer.say(
                    f"warning: {_SOURCES[reason]} is not known here, so --pause-on-{reason.value} "
                    "has no effect (docs/pausing.md says what is asked)"
                )
