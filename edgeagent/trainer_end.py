"""The end of a trainer, as its agent sees it: what it has said, and what if it says nothing.

A trainer that ends in order hears of the end, saves its model, lets the script do what follows its
loop, and says so at each step. One that hangs is ended, and one that was killed has ended already:
for both the agent saves the model, as far as `rescue.py` can.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from edgeagent import handover
from edgeagent.errors import EdgeAgentError
from edgeagent.rescue import kill_and_save
from edgeagent.terminal.text import shown_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeagent.launch import OwnChild
    from edgeagent.shared_memory import SharedMemory
    from edgeagent.shell.trainer_side import OwnState
    from edgeagent.slot_steps import SlotStep

SAVE_SECONDS = 600.0  # the trainer may take this long to save at the end
SCRIPT_SECONDS = 2.0  # if a script still runs this long after saving, the user is told


class TrainerEnd:
    """What one trainer has said of its end. `child` is its process if this agent has started it."""

    def __init__(self, child: OwnChild | None) -> None:
        self._child = child
        self._finished: handover.Finished | None = None
        self._saved: handover.Saved | None = None
        self._rescued = ""  # the file in which the agent has saved the model
        self._is_closed = False
        # Each of these is also set by all that comes later, and by the trainer's own end.
        self._end_heard = asyncio.Event()  # it has heard of the end, and saves now
        self._model_saved = asyncio.Event()
        self._script_ended = asyncio.Event()

    # --- what happens -----------------------------------------------------------------------------

    def received(self, message: handover.Finished | handover.Saved | handover.EndHeard) -> None:
        """Note what the trainer says of its end."""
        self._end_heard.set()
        if isinstance(message, handover.Saved):
            self._saved = message
            self._model_saved.set()
        elif isinstance(message, handover.Finished):
            self._finished = message
            self._model_saved.set()
            self._script_ended.set()

    def closed(self) -> None:
        """Note that the trainer's end of the hand-over is closed, so it says nothing more."""
        self._is_closed = True
        for waited_for in (self._end_heard, self._model_saved, self._script_ended):
            waited_for.set()

    # --- what is known ----------------------------------------------------------------------------

    @property
    def is_finished(self) -> bool:
        """Whether the trainer has said its last word."""
        return self._finished is not None

    @property
    def was_silent(self) -> bool:
        """Whether the trainer ended without a word about its model: it crashed or was killed."""
        return self._is_closed and self._finished is None and self._saved is None

    @property
    def may_be_rescued(self) -> bool:
        """Whether the agent can end the trainer and has to save its model."""
        return self.was_silent or (self._child is not None and not self._model_saved.is_set())

    @property
    def told_path(self) -> str:
        """The file in which the trainer says it has saved the model, "" if it has not."""
        told = self._finished or self._saved
        return told.path if told is not None else ""

    @property
    def path(self) -> str:
        """The file with the model, whoever has written it, "" if nobody has."""
        return self.told_path or self._rescued

    @property
    def error(self) -> str:
        """What the trainer says went wrong, "" if nothing did."""
        told = self._finished or self._saved  # the script's own end is reported by its starter
        return told.error if told is not None else ""

    # --- what is waited for and done --------------------------------------------------------------

    async def is_heard(self, within_s: float) -> bool:
        """Return whether the trainer answers in time that it has heard of the end. One that is not
        a child of this agent cannot be ended, so its answer is not waited for."""
        if self._child is None:
            return True
        try:
            await asyncio.wait_for(self._end_heard.wait(), within_s)
        except TimeoutError:
            return False
        return True

    async def saves(self) -> bool:
        """Return whether the trainer has said within `SAVE_SECONDS` what became of its model."""
        try:
            await asyncio.wait_for(self._model_saved.wait(), SAVE_SECONDS)
        except TimeoutError:
            return False
        return True

    async def script_ends(self, goes_on: Callable[[], None]) -> None:
        """Let the script do what follows its loop, for as long as that takes; call `goes_on` once
        if it takes longer than `SCRIPT_SECONDS`."""
        try:
            await asyncio.wait_for(self._script_ended.wait(), SCRIPT_SECONDS)
        except TimeoutError:
            if self._child is not None:
                goes_on()
            await self._script_ended.wait()

    def rescue(
        self,
        hello: handover.Hello | None,
        memory: SharedMemory | None,
        own: OwnState | None,
        kept: OwnState | None,
        owed: SlotStep | None,
    ) -> tuple[str, bool]:
        """End the trainer if it still runs, and save what it has trained; see `kill_and_save`.

        Returns what became of its model, and whether all went well.
        """
        try:
            self._rescued = kill_and_save(self._child, hello, memory, own, kept, owed)
        except EdgeAgentError as error:
            return f"its model is not saved: {error}", False
        if not self._rescued:
            return "nothing was to be saved", True
        return f"the agent has saved its model in {shown_path(self._rescued)}", True
