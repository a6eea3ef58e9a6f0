"""What a trainer saves, and when.

It saves the state at the end of training, after every so many iterations if asked to, and, when a
cluster's state is about to replace its own, what it has trained until then. A file that holds more
training or belongs to another job is never overwritten: it gets another name, and one line tells
the user. A state that was put aside once is not put aside again while it is the same. Of the files
that are written every so many iterations this trainer removes only those it has written itself,
because the others may be all that is left of another run.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from typing import TYPE_CHECKING

from edgeagent.errors import EdgeAgentError
from edgeagent.handover import SavedAside
from edgeagent.places import check_save_path, lack_of_room, other_places
from edgeagent.slots_file import slots_path
from edgeagent.trainer.checkpoint import aside_place, keep_what_is_there, save_checkpoint
from edgeagent.trainer.slot_files import save_slots

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeagent.shared_memory import SharedMemory
    from edgeagent.trainer.options import Options
    from edgeagent.trainer.state import TrainingState


class Saving:
    """Writes the files of one trainer; `say` is called with each line for the user.

    `saved` is where the state was written at the end, "" if it was not, and `error` is why.
    `memory` is the shared memory with the state; until it is set, there is nothing to save, so no
    file is written and none is reported.
    """

    def __init__(self, options: Options, state: TrainingState, say: Callable[[str], None]) -> None:
        self.error = ""
        self.saved = ""
        self.memory: SharedMemory | None = None
        self._path = options.save
        self._beside = options.beside
        self._every = options.save_every if options.beside else 0
        self._keep = options.keep
        self._state = state
        self._say = say
        # The state's scalars after its last change. They are kept, because the script may have
        # changed the optimizer's since, which is not part of the state yet.
        self._meta = b""
        self._aside = ""  # the file in which the present state was put aside, "" if it was not
        # The files of `save_every` that this trainer has written and not removed, oldest first.
        self._written: deque[str] = deque()

    def changed(self, meta: bytes) -> None:
        """Note that the state is another one from now on, whose scalars are `meta`."""
        self._meta = meta
        self._aside = ""

    def applied(self, meta: bytes) -> None:
        """Note that an update was made, and write the state if `save_every` says so.

        If that fails, the user is told and training goes on.
        """
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
        if path in self._written:  # a younger state was adopted meanwhile, and has come here again
            self._written.remove(path)
        self._written.append(path)
        while 0 < self._keep < len(self._written):
            with contextlib.suppress(OSError):  # an agent in the same folder may have done it
                old = self._written.popleft()
                os.unlink(old)
                if self._state.shards is not None:
                    os.unlink(slots_path(old))

    def now(self, path: str) -> None:
        """Write the state to `path`; raise `EdgeAgentError` if that fails."""
        check_save_path(path)
        self._write(path)

    def at_end(self) -> None:
        """Write the state at the end of training; `saved` or `error` says what came of it.

        If it cannot be written where it should be, because the disk is full for example, it is
        written to another folder, since this may be all that there is of a long training.
        """
        if not self._path or self.memory is None:
            return
        try:
            self._write_over(self._path)
        except EdgeAgentError as error:
            self.error = f"{error}{self._elsewhere()}"
        else:
            self.saved = self._path

    def _elsewhere(self) -> str:
        """Write the state to the first other place that takes it; return what to say of it."""
        for place in other_places(self._path, self._state.layout.size):
            with contextlib.suppress(EdgeAgentError):
                self._write(place)
                return f"; the training state is in {place} instead"
        return ""

    def begin(self, meta: bytes, *, writes: bool) -> None:
        """Note the scalars of the state at the start. Tell the user, if files are going to be
        written at all, when there is no room for one."""
        self.changed(meta)
        place = self._path or (self._beside if self._every else "")
        if writes and place and (line := lack_of_room(place, self._state.layout.size)):
            self._say(line)

    def aside(self, keep: bool) -> SavedAside:
        """Write the state to a file of its own, because another state is about to replace it.

        `keep` says whether it is worth that. Returns the file, or why there is none.
        """
        if not keep or not self._path or self.memory is None:
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
        """Write the state to `path`; a file there that is worth more is renamed before."""
        line = keep_what_is_there(path, self._state.layout, self._state.iteration)
        if line:
            self._say(line)
        self._write(path)

    def _write(self, path: str) -> None:
        if self.memory is None:
            raise EdgeAgentError(f"cannot save {path}: there is no training state yet")
        self._state.bring_home(whole=True)
        memory, notes = self.memory.state.view(), self._state.notes()
        save_checkpoint(path, self._state.layout, memory, self._meta, notes)
        if (shards := self._state.shards) is not None:
            save_slots(path, shards, self.memory.held.view(), self._meta, shards.stripes)


def step_path(path: str, iteration: int) -> str:
    """Return the name beside `path` of the state after `iteration` updates."""
    stem, extension = os.path.splitext(path)
    return f"{stem}-step-{iteration:06d}{extension or '.safetensors'}"
