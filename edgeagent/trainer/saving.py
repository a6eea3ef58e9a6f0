"""What a trainer saves: the model at its end, the state every so many iterations, and what it
trained before another state replaces it.

Law: nothing that is worth more is written over, and one line says what became of it. A state that
was put aside once is not put aside again while it is the same. Of the files that are written every
so many iterations only those go that this trainer has written itself.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from typing import TYPE_CHECKING

from edgeagent.errors import EdgeAgentError
from edgeagent.handover import SavedAside
from edgeagent.places import check_save_path
from edgeagent.trainer.checkpoint import aside_place, keep_what_is_there, save_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeagent.shared_memory import SharedMemory
    from edgeagent.trainer.options import Options
    from edgeagent.trainer.state import TrainingState


class Saving:
    """The files of one trainer. `say` tells the user."""

    def __init__(self, options: Options, state: TrainingState, say: Callable[[str], None]) -> None:
        self.error = ""  # why the model is not saved
        self.saved = ""  # where it lies
        self.memory: SharedMemory | None = None
        self._path = options.save
        self._beside = options.beside
        self._every = options.save_every if options.beside else 0
        self._keep = options.keep
        self._state = state
        self._say = say
        self._meta = b""  # the state's scalars, which the script may have changed since
        self._aside = ""  # where the present state was put aside
        self._written: deque[str] = deque()  # every so many iterations, oldest first

    def changed(self, meta: bytes) -> None:
        """The state is another one from now on, with these scalars."""
        self._meta = meta
        self._aside = ""

    def applied(self, meta: bytes) -> None:
        """An update was made: write the state if it is time."""
        self.changed(meta)
        iteration = self._state.iteration
        if not self._every or iteration % self._every:
            return
        path = step_path(self._beside, iteration)
        try:
            self._write_over(path)
        except EdgeAgentError as error:
            self._say(f"{error}; training goes on")
            return
        self._written.append(path)
        while 0 < self._keep < len(self._written):
            with contextlib.suppress(OSError):  # an agent in the same folder may have done it
                os.unlink(self._written.popleft())

    def now(self, path: str) -> None:
        """Write the state to `path`; raise `EdgeAgentError` if that fails."""
        check_save_path(path)
        self._write(path)

    def at_end(self) -> None:
        """Write the model; `saved` or `error` says what came of it."""
        if not self._path:
            return
        try:
            self._write_over(self._path)
        except EdgeAgentError as error:
            self.error = str(error)
        else:
            self.saved = self._path

    def aside(self, keep: bool) -> SavedAside:
        """Keep, if there is something to, what was trained before another state replaces it."""
        if not keep or not self._path:
            return SavedAside("", "")
        if not self._aside:
            place, line = aside_place(self._path, self._state.layout)
            if line:
                self._say(line)
            try:
                self._write(place)
            except EdgeAgentError as error:
                return SavedAside("", str(error))
            self._aside = place
        return SavedAside(self._aside, "")

    def _write_over(self, path: str) -> None:
        """Write the state; what is worth more than it gets another name."""
        line = keep_what_is_there(path, self._state.layout, self._state.iteration)
        if line:
            self._say(line)
        self._write(path)

    def _write(self, path: str) -> None:
        if self.memory is not None:
            self._state.bring_home()
            memory, notes = self.memory.state.view(), self._state.notes()
            save_checkpoint(path, self._state.layout, memory, self._meta, notes)


def step_path(path: str, iteration: int) -> str:
    """Return the name beside `path` of the state after `iteration` updates."""
    stem, extension = os.path.splitext(path)
    return f"{stem}-step-{iteration:06d}{extension or '.safetensors'}"
