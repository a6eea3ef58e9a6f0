"""The step of divided slots that the trainer still owes after an update, and who waits for it.

The trainer has new weights at once, and steps its slots while it waits for the next round
(`trainer/owed_slots.py`). Until then slots are neither lent nor replaced, the sums with which they
are stepped stay where they are, and nothing is sent to the trainer that needs stepped slots.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from edgeagent import handover
from edgeagent.errors import EdgeAgentError
from edgeagent.slot_steps import SlotStep, decoded

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeagent.dataplane.held_chunks import HeldChunks


class OwedSteps:
    """What one trainer owes. `send` sends it a message; `held` has the sums, None without them."""

    def __init__(self, send: Callable[[handover.Message], None], held: HeldChunks | None) -> None:
        self.step: SlotStep | None = None
        self._send = send
        self._held = held
        self._made: asyncio.Future[None] | None = None  # done once the step is made
        self._told: handover.Settle | None = None  # what the trainer knows of who waits

    def applied(self, message: handover.Applied) -> None:
        """The trainer has made an update, and says whether it owes the step of its slots. Raises
        `EdgeAgentError` if there is no such step."""
        if not message.rule:
            self.made()
            return
        try:
            self.step = decoded(message.rule, message.numbers)
        except ValueError as error:
            raise EdgeAgentError(f"the trainer owes {error}") from None

    def made(self) -> None:
        """The trainer has made the step."""
        self.step = None
        if self._held is not None:
            self._held.returned()
        made, self._made = self._made, None
        self._told = None
        if made is not None and not made.done():
            made.set_result(None)

    def wait(self, *, decides: bool) -> asyncio.Future[None] | None:
        """Return what is done once the step is made, None if nothing is owed; have the trainer make
        it soon. `decides`: what waits is a `Publish` or a `Reduced`."""
        if self.step is None:
            return None
        if self._told is None or (decides and not self._told.decides):
            self._told = handover.Settle(decides)
            self._send(self._told)
        if self._made is None:
            self._made = asyncio.get_running_loop().create_future()
        return self._made
