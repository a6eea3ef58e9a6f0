"""Work that is kept from the trainer until as many devices are there as the user wants: finds out
who is there, and does what `edgeagent/assembly.py` says.

A node that wants to go gets its work back untouched, as from a trainer that hands it back, so that
no micro-batch is computed for a cluster that never began.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from edgeagent.assembly import Assembly, Present
from protocols import events
from protocols.scheduler.join import JoinState

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeagent.observer import Observer
    from edgeagent.shell.hub import Hub
    from protocols import effects
    from protocols.member.node import Node
    from protocols.scheduler.join import Join

# A newcomer in these states has all its links, and a step brings it on.
LINKED = (JoinState.LINKED, JoinState.COPYING, JoinState.PULLING, JoinState.CAUGHT_UP)


def present(node: Node) -> Present:
    """Return who is there, as far as `node` knows; only the scheduler knows of newcomers."""
    policy, negotiator = node.context.policy, node.negotiator
    joins = negotiator.joins.open.values() if negotiator is not None else ()
    linked = [join for join in joins if join.state in LINKED and not join.outside]
    copying = any(map(_gets_on, linked)) and not any(map(_needs_a_step, linked))
    members = len(policy.view.members) if policy is not None else 1
    return Present(members, len(linked), copying)


def _gets_on(join: Join) -> bool:
    """Whether `join` gets on although no step is done: its device copies the state beside the
    training, or waits for others that will begin to copy with it."""
    return join.state is JoinState.COPYING or join.waits_until is not None


def _needs_a_step(join: Join) -> bool:
    """Whether a step is needed for the device of `join` to begin its copy, or to enter. One that
    has copied the state beside the training can wait for others that still do."""
    if join.state is JoinState.LINKED:
        return not join.copied and join.waits_until is None
    return join.state in (JoinState.PULLING, JoinState.CAUGHT_UP)


class KeptWork:
    """What the node wants computed passes through here. `wanted` is how many devices have to be
    there first, this one included; `give` gives work to the trainer."""

    def __init__(
        self, hub: Hub, wanted: int, observer: Observer, give: Callable[[effects.GiveWork], None]
    ) -> None:
        self.assembly = Assembly(wanted)
        self._hub = hub
        self._observer = observer
        self._give = give
        self._clock = asyncio.get_running_loop().time
        self._kept: list[effects.GiveWork] = []

    def founded(self) -> None:
        """A node is about to found a cluster."""
        self.assembly.founded()

    def drop(self) -> None:
        """Forget the work of a node that takes no part any more."""
        self._kept.clear()
        self.assembly.gone()

    def stepped(self) -> None:
        """The trainer has applied an update."""
        self.assembly.stepped()

    def give(self, work: effects.GiveWork) -> None:
        """Give `work` to the trainer, now or later."""
        self._kept.append(work)
        self.look()

    def look(self) -> None:
        """Tell who is there if that has changed, and give the trainer what is kept no longer."""
        node, assembly = self._hub.node, self.assembly
        if node is not None and assembly.looks and assembly.look(self._clock(), present(node)):
            self._observer.assembling(assembly.wanted, assembly.here)
        if self._kept and not assembly.keeps_work:
            kept, self._kept = self._kept, []
            for work in kept:
                self._give(work)

    def hand_back(self) -> None:
        """Hand all that is kept back to the node, in the trainer's place."""
        kept, self._kept = self._kept, []
        for work in kept:
            nothing = (work.iteration, (), 0.0, b"", b"", True)
            self._hub.handle(events.Contributed(*nothing, work.turn))
